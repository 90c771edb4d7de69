import { Client, connectivityState, type ChannelCredentials, type ChannelOptions } from '@grpc/grpc-js';

import { FanfareError } from './errors.js';
import { onAbort } from './signals.js';

/** One target, with its own connection. */
export interface Replica {
  readonly target: string;
  readonly client: Client;
}

/**
 * The targets of a client. One of them is used by all calls until it fails, then
 * the next one.
 */
export class Replicas {
  readonly #replicas: readonly Replica[];
  readonly #connectTimeout: number;
  #current: number;

  /** Clients of many processes begin with any of the targets, to be spread over them. */
  constructor(targets: readonly string[], credentials: ChannelCredentials, options: ChannelOptions, connectTimeout: number) {
    this.#replicas = targets.map((target) => ({ target, client: new Client(target, credentials, options) }));
    this.#connectTimeout = connectTimeout;
    this.#current = Math.floor(Math.random() * targets.length);
  }

  /**
   * The replica to call: the first from the current one on that is connected or
   * can be. Rejects with UNAVAILABLE if none can, and with CANCELLED when the
   * signal is aborted.
   */
  async connected(signal: AbortSignal): Promise<Replica> {
    const first = this.#current;
    for (let i = 0; i < this.#replicas.length; i++) {
      const index = (first + i) % this.#replicas.length;
      const replica = this.#replicas[index]!;
      const ready = await connect(replica.client.getChannel(), this.#connectTimeout, signal);
      if (signal.aborted) {
        throw new FanfareError('CANCELLED', 'the call was cancelled');
      }
      if (ready) {
        this.#current = index;
        return replica;
      }
    }
    throw new FanfareError('UNAVAILABLE', `no connection to ${this.#replicas.map(({ target }) => target).join(', ')}`);
  }

  /** Has calls go on with the next target. */
  failed(replica: Replica): void {
    // Of many calls that fail with one connection only the first moves on.
    if (this.#replicas[this.#current] === replica) {
      this.#current = (this.#current + 1) % this.#replicas.length;
    }
  }

  /** Closes the connections; calls under way end CANCELLED or UNAVAILABLE. */
  close(): void {
    for (const { client } of this.#replicas) {
      client.close();
    }
  }
}

/**
 * Whether a channel has a connection, or gets one in time. Without the limit a
 * call to a host that answers nothing would wait for minutes.
 */
async function connect(channel: ReturnType<Client['getChannel']>, timeout: number, signal: AbortSignal): Promise<boolean> {
  const deadline = Date.now() + timeout;
  while (!signal.aborted) {
    const state = channel.getConnectivityState(true);
    if (state === connectivityState.READY) {
      return true;
    }
    if (state === connectivityState.TRANSIENT_FAILURE || state === connectivityState.SHUTDOWN) {
      return false;
    }
    if (!(await changed(channel, state, deadline, signal))) {
      return false;
    }
  }
  return false;
}

/** Waits until a channel's state is another; false at the deadline or the signal. */
function changed(channel: ReturnType<Client['getChannel']>, state: connectivityState, deadline: number, signal: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    const forget = onAbort(signal, () => resolve(false));
    channel.watchConnectivityState(state, deadline, (error) => {
      forget();
      resolve(!error);
    });
  });
}
