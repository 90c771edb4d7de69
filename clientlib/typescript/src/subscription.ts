import { create } from '@bufbuild/protobuf';
import { durationMs } from '@bufbuild/protobuf/wkt';

import { checkText, errorOf, FanfareError } from './errors.js';
import { frameOf, gapOf, positionOf, subscribedOf, type Event, type Frame, type Gap, type Subscribed } from './events.js';
import { SubscribeRequestSchema, type Frame as WireFrame, type SubscribeRequest, type SubscribeResponse } from './gen/fanfare/v1/fanfare_pb.js';
import { Position } from './position.js';
import { Backoff, isFinal, sleep, type BackoffOptions } from './retry.js';
import { onAbort } from './signals.js';

/**
 * Where a subscription begins: with everything that the backlog may replay, with
 * frames that commit after it is in force, after a position, or with at most the
 * newest frames.
 */
export type Start = 'oldest' | 'live' | { readonly after: Position | string } | { readonly last: number | bigint };

/** What to subscribe to. */
export interface SubscribeOptions {
  /** The stream's channel. */
  channel: string;
  /** The stream's scope. Default: empty. */
  scope?: string | undefined;
  /** Where to begin. Default: `'oldest'`. */
  start?: Start | undefined;
  /** Ends the subscription when it is aborted, as {@link Subscription.close} does. */
  signal?: AbortSignal | undefined;
}

/** One call of Subscribe, to its end. It throws the error that the call ends with. */
export type Open = (request: SubscribeRequest, signal: AbortSignal) => AsyncIterable<SubscribeResponse>;

/** What a subscription needs of its client. */
export interface Surroundings {
  open: Open;
  /** Whether the next call has another token, which mends an error. */
  renews: (error: FanfareError) => boolean;
  backoff: BackoffOptions | undefined;
  began: (subscription: Subscription) => void;
  ended: (subscription: Subscription) => void;
}

// How often in a row frames may be missing without a gap before that is an error.
const maxHoles = 5;

// A call that has lasted this long was a good one: waits begin anew after it.
const goodCallMilliseconds = 5000;

/**
 * The events of one stream, in order. Durable frames come each once, across as
 * many calls and servers as it takes; whatever else a subscriber must know comes
 * among them, as an event of its own.
 *
 * It begins with the first call of `next`, and asks the server for no more than a
 * few messages ahead of what has been taken. It ends after the `closed` event, by
 * `break`, {@link close} or the signal, or with a {@link FanfareError} that
 * subscribing again cannot mend.
 *
 * ```ts
 * for await (const event of client.subscribe({ channel: 'chat/messages', scope: 'lobby' })) {
 *   if (event.type === 'frame') {
 *     console.log(String(event.position), Buffer.from(event.payload).toString());
 *   }
 * }
 * ```
 */
export class Subscription implements AsyncIterableIterator<Event> {
  /** The stream's channel. */
  readonly channel: string;
  /** The stream's scope. */
  readonly scope: string;

  readonly #start: SubscribeRequest['start'];
  readonly #signal: AbortSignal | undefined;
  readonly #surroundings: Surroundings;
  readonly #backoff: Backoff;
  readonly #ending = new AbortController();
  readonly #events: AsyncGenerator<Event, undefined, undefined>;

  #begun = false;
  #forgetSignal = () => {};
  #position: Position | undefined;
  // The head of a closed stream of whose next numbering nothing has come yet.
  #awaits = Position.zero;
  /** How long the server asked to wait, by Closing, before it ended the call. */
  #closingIn: number | undefined;
  /** When the call was acknowledged; undefined if it was not yet. */
  #inForceSince: number | undefined;
  /** True from a Subscribed that did not resume to the gap that says why. */
  #owesGap = false;
  #wasInForce = false;
  #sawEphemeral = false;
  #holes = 0;

  /** Use {@link Client.subscribe}. @internal */
  constructor(options: SubscribeOptions, surroundings: Surroundings) {
    this.channel = options.channel;
    this.scope = options.scope ?? '';
    this.#start = startOf(options.start ?? 'oldest');
    if (this.#start.case === 'after') {
      this.#position = positionOf(this.#start.value);
    }
    this.#signal = options.signal;
    this.#surroundings = surroundings;
    this.#backoff = new Backoff(surroundings.backoff);
    this.#events = this.#run();
  }

  /**
   * After everything that `next` has returned: store it once that is dealt with,
   * and go on with `start: { after: position }`. Undefined until the server has
   * said where delivery begins.
   */
  get position(): Position | undefined {
    return this.#position;
  }

  /** The next event; waits for it. */
  next(): Promise<IteratorResult<Event, undefined>> {
    if (!this.#begun) {
      this.#begin();
    }
    return this.#events.next();
  }

  /** Ends the subscription; `for await` calls it on `break`. */
  async return(): Promise<IteratorResult<Event, undefined>> {
    this.#end();
    return this.#events.return(undefined);
  }

  /** Ends the subscription. A `next` that waits returns that there is no more. */
  async close(): Promise<void> {
    await this.return();
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  #begin(): void {
    this.#begun = true;
    this.#surroundings.began(this);
    this.#forgetSignal = onAbort(this.#signal, () => this.#end());
  }

  #end(): void {
    this.#begun = true;
    this.#ending.abort();
    this.#forgetSignal();
    this.#surroundings.ended(this);
  }

  /** Call after call, each after the position that the one before came to. */
  async *#run(): AsyncGenerator<Event, undefined, undefined> {
    const { signal } = this.#ending;
    try {
      while (!signal.aborted) {
        let failure = new FanfareError('UNAVAILABLE', 'the call ended without a reason');
        this.#closingIn = undefined;
        this.#inForceSince = undefined;
        this.#owesGap = false;
        try {
          for await (const response of this.#surroundings.open(this.#request(), signal)) {
            for (const event of this.#eventsOf(response)) {
              yield event;
              if (event.type === 'closed' || signal.aborted) {
                return undefined;
              }
            }
          }
        } catch (thrown) {
          failure = errorOf(thrown);
        }
        if (signal.aborted) {
          return undefined;
        }
        if ((isFinal(failure) && !this.#surroundings.renews(failure)) || this.#holes >= maxHoles) {
          throw failure;
        }
        const retryIn = this.#nextWait(failure);
        yield { type: 'interrupted', error: failure, retryIn };
        await sleep(retryIn, signal);
      }
      return undefined;
    } finally {
      this.#end();
    }
  }

  #nextWait(failure: FanfareError): number {
    if (this.#inForceSince !== undefined && performance.now() - this.#inForceSince > goodCallMilliseconds) {
      this.#backoff.reset();
    }
    return this.#backoff.next(failure.retryIn ?? this.#closingIn);
  }

  /** What a message brings, each made when it is taken: it moves the position. */
  *#eventsOf(response: SubscribeResponse): Generator<Event, void, undefined> {
    for (const wire of response.frames) {
      const frame = this.#take(wire);
      if (frame !== undefined) {
        yield frame;
      }
    }
    yield* this.#notice(response.notice);
  }

  #request(): SubscribeRequest {
    checkText('channel', this.channel);
    checkText('scope', this.scope);
    const after = this.#position;
    return create(SubscribeRequestSchema, {
      channel: this.channel,
      scope: this.scope,
      start: after === undefined ? this.#start : afterPosition(after),
    });
  }

  /** The frame to hand on; undefined if it was handed on before. */
  #take(wire: WireFrame): Frame | undefined {
    const frame = frameOf(wire);
    if (this.#inForceSince === undefined) {
      throw this.#hole('a frame came before Subscribed');
    }
    if (frame.ephemeral) {
      this.#sawEphemeral = true;
    } else {
      const last = this.#position ?? Position.zero;
      if (frame.position.epoch === last.epoch && frame.position.sequence <= last.sequence) {
        return undefined;
      }
      // The epoch may change without a gap; the numbering goes on.
      if (this.#owesGap || frame.position.sequence !== last.sequence + 1n) {
        throw this.#hole(`the frame after ${last} is ${frame.position}, and no gap was told`);
      }
      this.#moveTo(frame.position, frame.position);
      this.#holes = 0;
    }
    this.#backoff.reset();
    return frame;
  }

  *#notice(notice: SubscribeResponse['notice']): Generator<Event, void, undefined> {
    switch (notice.case) {
      case 'subscribed':
        yield* this.#subscribed(subscribedOf(notice.value));
        break;
      case 'caughtUp': {
        const position = positionOf(notice.value.position);
        this.#checkReached(position);
        yield { type: 'caughtUp', position };
        break;
      }
      case 'gap': {
        const gap = gapOf(notice.value);
        if (gap.reason === 'EPHEMERAL_MAYBE_MISSED') {
          this.#sawEphemeral = true;
          yield gap;
          break;
        }
        this.#owesGap = false;
        const waits = this.#stillWaits(gap);
        this.#moveTo(gap.resumeAfter, gap.head);
        if (!waits) {
          yield gap;
        }
        break;
      }
      case 'progress':
        this.#checkReached(positionOf(notice.value.position));
        break;
      case 'status':
        yield { type: 'status', listening: notice.value.listening };
        break;
      case 'closed': {
        const last = positionOf(notice.value.last);
        this.#checkReached(last);
        yield { type: 'closed', last };
        break;
      }
      case 'closing':
        this.#closingIn = notice.value.retryIn && durationMs(notice.value.retryIn);
        break;
      default: // a notice of a newer server
    }
  }

  *#subscribed(subscribed: Subscribed): Generator<Event, void, undefined> {
    const again = this.#wasInForce;
    this.#inForceSince = performance.now();
    this.#wasInForce = true;
    this.#sawEphemeral ||= subscribed.ephemeral;
    // A position of one's own stays until a frame or a gap has moved it: otherwise
    // a gap that a broken connection withheld would go unnoticed.
    if (this.#position === undefined) {
      this.#moveTo(subscribed.resumeAfter, subscribed.head);
    } else if (!subscribed.resumed) {
      this.#owesGap = true;
    }
    yield subscribed;
    if (again && this.#sawEphemeral) {
      yield missedEphemeral(subscribed, this.#position ?? Position.zero);
    }
  }

  /** At 0-0 delivery goes on with the next numbering, and head is that of the last. */
  #moveTo(position: Position, head: Position): void {
    this.#position = position;
    this.#awaits = position.equals(Position.zero) ? head : Position.zero;
  }

  /**
   * Whether a gap tells of no loss: who waits for the next numbering of a closed stream
   * is at 0-0, which the server cannot resume from. As long as it is the same numbering
   * that is closed there is nothing to miss.
   */
  #stillWaits(gap: Gap): boolean {
    const nowhere = Position.zero;
    return (
      (this.#position ?? nowhere).equals(nowhere) &&
      gap.resumeAfter.equals(nowhere) &&
      gap.head.equals(this.#awaits) &&
      !gap.head.equals(nowhere)
    );
  }

  /** Fails where the server believes to have sent frames that did not come. */
  #checkReached(position: Position): void {
    const last = this.#position ?? Position.zero;
    if (position.sequence > last.sequence) {
      throw this.#hole(`the server is at ${position}, but the last frame that came is ${last}`);
    }
  }

  /** Ends the call; the next one begins after the last good position. */
  #hole(message: string): FanfareError {
    this.#holes++;
    return new FanfareError('DATA_LOSS', message);
  }
}

/** Servers tell of what one call missed; between two calls, the client knows. */
function missedEphemeral(subscribed: Subscribed, position: Position): Gap {
  return {
    type: 'gap',
    reason: 'EPHEMERAL_MAYBE_MISSED',
    requested: position,
    oldest: subscribed.oldest,
    head: subscribed.head,
    resumeAfter: position,
  };
}

function startOf(start: Start): SubscribeRequest['start'] {
  if (start === 'oldest') {
    return { case: 'oldest', value: true };
  }
  if (start === 'live') {
    return { case: 'live', value: true };
  }
  if (typeof start === 'object' && 'last' in start) {
    return { case: 'last', value: BigInt(start.last) };
  }
  const after = typeof start.after === 'string' ? Position.parse(start.after) : start.after;
  if (typeof after?.epoch !== 'bigint' || typeof after.sequence !== 'bigint') {
    throw new TypeError("start must be 'oldest', 'live', { after: position } or { last: number }");
  }
  return afterPosition(after);
}

function afterPosition({ epoch, sequence }: Position): SubscribeRequest['start'] {
  return create(SubscribeRequestSchema, { start: { case: 'after', value: { epoch, sequence } } }).start;
}
