import { create } from '@bufbuild/protobuf';
import { credentials as grpcCredentials, type ChannelCredentials, type ChannelOptions } from '@grpc/grpc-js';

import { Access, Tokens, type TokenSource } from './access.js';
import { callServerStreaming, callUnary, encode, type CallOptions } from './calls.js';
import { checkText, errorOf, FanfareError } from './errors.js';
import { positionOf } from './events.js';
import { CloseStreamRequestSchema, FanfareService, PublishBatchRequestSchema, PublishRequestSchema, SubscribeRequestSchema, type SubscribeRequest, type SubscribeResponse } from './gen/fanfare/v1/fanfare_pb.js';
import type { Position } from './position.js';
import { isRepeatable, newFrameOf, publishedOf, type NewFrame, type Published, type PublishOptions } from './publish.js';
import { Replicas, type Replica } from './replicas.js';
import { Backoff, isFinal, withRetries, type Attempt, type BackoffOptions } from './retry.js';
import { Subscription, type SubscribeOptions } from './subscription.js';

/** Options of a {@link Client}. */
export interface ClientOptions {
  /**
   * The servers' addresses, such as `'127.0.0.1:7420'`, `'dns:///fanfare:7420'` or
   * `'unix:///run/fanfare.sock'`: one, or several replicas of which any will do.
   */
  targets: string | readonly string[];
  /** How to secure connections. Default: not at all, for loopback and Unix sockets. */
  credentials?: ChannelCredentials | undefined;
  /** Waits before retries and before a subscription is resumed. */
  backoff?: BackoffOptions | undefined;
  /** Milliseconds after which a publish is given up, with all its retries. Default 30,000. */
  timeout?: number | undefined;
  /**
   * Milliseconds after which an attempt of a publish is given up and another one made,
   * on the next target if there is one. Only for what may be attempted again though it
   * may have been done. Default 10,000.
   */
  attemptTimeout?: number | undefined;
  /** Milliseconds to wait for a connection before the next target is tried. Default 5,000. */
  connectTimeout?: number | undefined;
  /**
   * Milliseconds after which a subscription to which nothing comes is resumed over
   * a new call. Must be longer than the servers' heartbeat, which comes every 15
   * seconds. Default 60,000.
   */
  idleTimeout?: number | undefined;
  /**
   * Returns a bearer token, which every call is sent with. If the server refuses it, as
   * it does when it has expired, a new one is asked for, once for all calls; if that is
   * refused, too, the error is final. What the source throws ends a publish; a
   * subscription tries again later. Default: none is sent.
   */
  token?: TokenSource | undefined;
  /** Options of `@grpc/grpc-js` for the connections, beside or instead of this library's. */
  channelOptions?: ChannelOptions | undefined;
}

const channelDefaults: ChannelOptions = {
  // A dead connection is noticed within 20 seconds. Servers allow a ping every 10.
  'grpc.keepalive_time_ms': 15_000,
  'grpc.keepalive_timeout_ms': 5_000,
  'grpc.initial_reconnect_backoff_ms': 100,
  'grpc.max_reconnect_backoff_ms': 5_000,
  // Servers decide how large a frame may be.
  'grpc.max_receive_message_length': -1,
  'grpc.max_send_message_length': -1,
  // Otherwise clients of one process share connections, which none of them closes.
  'grpc.use_local_subchannel_pool': 1,
  // A service config found in DNS might retry publishes that must not be.
  'grpc.service_config_disable_resolution': 1,
};

/**
 * Publishes frames and subscribes to streams. All its calls share one connection,
 * to one of the targets; when that fails they go on with the next one.
 *
 * ```ts
 * const client = new Client({ targets: '127.0.0.1:7420' });
 * const { position } = await client.publish({ channel: 'chat/messages', scope: 'lobby', payload: 'hello' });
 * ```
 */
export class Client {
  readonly #replicas: Replicas;
  readonly #backoff: BackoffOptions | undefined;
  readonly #timeout: number;
  readonly #attemptTimeout: number;
  readonly #tokens: Tokens | undefined;
  readonly #idleTimeout: number;
  readonly #subscriptions = new Set<Subscription>();
  readonly #closed = new AbortController();

  /**
   * Connects with the first call. A client that is no longer needed must be closed.
   *
   * @throws TypeError without a target, RangeError if a time is not above 0.
   */
  constructor(options: ClientOptions) {
    const targets = typeof options.targets === 'string' ? [options.targets] : options.targets;
    if (targets.length === 0) {
      throw new TypeError('a client needs at least one target');
    }
    const { timeout, attemptTimeout, connectTimeout, idleTimeout, backoff } = options;
    checkTimes({ timeout, attemptTimeout, connectTimeout, idleTimeout, 'backoff.min': backoff?.min, 'backoff.max': backoff?.max });
    this.#replicas = new Replicas(
      targets,
      options.credentials ?? grpcCredentials.createInsecure(),
      { ...channelDefaults, ...options.channelOptions },
      options.connectTimeout ?? 5_000,
    );
    this.#backoff = options.backoff;
    this.#timeout = options.timeout ?? 30_000;
    this.#attemptTimeout = options.attemptTimeout ?? 10_000;
    this.#tokens = options.token && new Tokens(options.token);
    this.#idleTimeout = options.idleTimeout ?? 60_000;
  }

  /**
   * Publishes one frame, and returns when it is committed. Retries where that is
   * safe: with an idempotency key, which durable frames have by default, whatever
   * fails; without one, where certainly nothing was published.
   *
   * Rejects with a {@link FanfareError}. Its reason is `OUTCOME_UNKNOWN` if the
   * frame may have been published, and `EXPECTATION_FAILED` if
   * {@link NewFrame.expected} is not the head.
   */
  async publish(frame: NewFrame, options: PublishOptions = {}): Promise<Published> {
    const wire = newFrameOf(frame);
    const request = encode(PublishRequestSchema, create(PublishRequestSchema, { frame: wire }));
    const response = await this.#retrying(isRepeatable([wire]), options, ({ client }, call, timeout) =>
      callUnary(client, FanfareService.method.publish, request, call, timeout));
    return publishedOf(response);
  }

  /**
   * Publishes frames of any streams, all or nothing, in one transaction: 1 to 1,000,
   * together at most 4 MiB. What became of each is at its place in the result. It
   * retries and rejects as {@link publish} does, and with `PARTLY_DUPLICATE` if
   * some of the frames were published before and others were not.
   */
  async publishBatch(frames: readonly NewFrame[], options: PublishOptions = {}): Promise<Published[]> {
    const wire = frames.map((frame, i) => newFrameOf(frame, `frames[${i}]`));
    const request = encode(PublishBatchRequestSchema, create(PublishBatchRequestSchema, { frames: wire }));
    const response = await this.#retrying(isRepeatable(wire), options, ({ client }, call, timeout) =>
      callUnary(client, FanfareService.method.publishBatch, request, call, timeout));
    return response.results.map(publishedOf);
  }

  /**
   * Closes a stream, and returns its last position. Its subscribers get what came
   * before, then `closed`; the next publish begins a new numbering. With an expected
   * epoch only that numbering is closed, otherwise it rejects with
   * `EXPECTATION_FAILED`; then it is repeated, as {@link publish} is with a key.
   */
  async closeStream(stream: { channel: string; scope?: string | undefined; expectedEpoch?: bigint | undefined }, options: PublishOptions = {}): Promise<Position> {
    const { channel, scope = '', expectedEpoch } = stream;
    checkText('channel', channel);
    checkText('scope', scope);
    const wire = create(CloseStreamRequestSchema, { channel, scope, ...(expectedEpoch !== undefined && { expectedEpoch }) });
    const request = encode(CloseStreamRequestSchema, wire);
    const response = await this.#retrying(expectedEpoch !== undefined, options, ({ client }, call, timeout) =>
      callUnary(client, FanfareService.method.closeStream, request, call, timeout));
    return positionOf(response.last);
  }

  /**
   * Subscribes to a stream. The call to the server is made when the first event is
   * asked for; frames that commit after the `subscribed` event are delivered.
   *
   * @throws SyntaxError if `start.after` is a text and no position.
   */
  subscribe(options: SubscribeOptions): Subscription {
    const access = new Access(this.#tokens);
    return new Subscription(options, {
      open: (request, signal) => this.#open(request, signal, access),
      renews: (error) => access.renews(error),
      backoff: this.#backoff,
      began: (subscription) => this.#subscriptions.add(subscription),
      ended: (subscription) => this.#subscriptions.delete(subscription),
    });
  }

  /** Ends all subscriptions and calls, and closes the connections. */
  close(): void {
    this.#closed.abort();
    for (const subscription of [...this.#subscriptions]) {
      void subscription.close();
    }
    this.#replicas.close();
  }

  async #retrying<T>(
    repeatable: boolean,
    options: PublishOptions,
    call: (replica: Replica, options: CallOptions, timeout: number) => Promise<T>,
  ): Promise<T> {
    checkTimes({ timeout: options.timeout });
    const access = new Access(this.#tokens);
    const timeout = repeatable ? this.#attemptTimeout : Infinity;
    const attempt: Attempt<T> = async (signal, sent) => {
      const metadata = await access.metadata(signal);
      const replica = await this.#replicas.connected(signal);
      sent();
      return this.#watching(replica, () => call(replica, { metadata, signal }, timeout));
    };
    return withRetries(attempt, {
      repeatable,
      renews: (error) => access.renews(error),
      backoff: new Backoff(this.#backoff),
      timeout: options.timeout ?? this.#timeout,
      signals: [options.signal, this.#closed.signal],
    });
  }

  async #watching<T>(replica: Replica, call: () => Promise<T>): Promise<T> {
    try {
      return await call();
    } catch (thrown) {
      throw this.#noted(replica, thrown);
    }
  }

  async *#open(request: SubscribeRequest, signal: AbortSignal, access: Access): AsyncGenerator<SubscribeResponse, void, undefined> {
    if (this.#closed.signal.aborted) {
      throw new FanfareError('FAILED_PRECONDITION', 'the client is closed');
    }
    const encoded = encode(SubscribeRequestSchema, request);
    const metadata = await access.metadata(signal);
    const replica = await this.#replicas.connected(signal);
    try {
      const responses = callServerStreaming(replica.client, FanfareService.method.subscribe, encoded, { metadata, signal }, this.#idleTimeout);
      for await (const response of responses) {
        access.accepted();
        yield response;
      }
    } catch (thrown) {
      throw this.#noted(replica, thrown);
    }
  }

  /** Has the next calls go elsewhere if what a call threw is the replica's doing. */
  #noted(replica: Replica, thrown: unknown): FanfareError {
    const error = errorOf(thrown);
    if (!isFinal(error) && error.code !== 'CANCELLED' && error.code !== 'ABORTED' && error.reason !== 'SLOW_SUBSCRIBER') {
      this.#replicas.failed(replica);
    }
    return error;
  }
}

// 0 is no limit in other libraries; here it would be no time.
function checkTimes(times: Record<string, number | undefined>): void {
  for (const [name, milliseconds] of Object.entries(times)) {
    if (milliseconds !== undefined && !(milliseconds > 0)) {
      throw new RangeError(`${name} must be above 0 ms, and is ${milliseconds}`);
    }
  }
}
