import { Metadata } from '@grpc/grpc-js';

import { FanfareError } from './errors.js';
import { onAbort } from './signals.js';

/**
 * Returns a bearer token for calls. It is asked before each call, one call at a time,
 * so it should keep its token. `refresh` is true if the server refused the token
 * returned last with UNAUTHENTICATED, or if that is a JSON Web Token that expires
 * within ten seconds: then a new one is wanted.
 */
export type TokenSource = (refresh: boolean) => string | Promise<string>;

// How long a token must still be good when a call begins.
const marginSeconds = 10;

/**
 * The tokens of a client. Calls that are all refused at once fetch one new token, not
 * one each.
 */
export class Tokens {
  readonly #source: TokenSource;
  #last: string | undefined;
  /** Ends with the use of the source that came before. */
  #turn: Promise<unknown> = Promise.resolve();

  constructor(source: TokenSource) {
    this.#source = source;
  }

  /** A token that is not the one refused, if one was. Rejects with a FanfareError. */
  get(refused: string | undefined): Promise<string> {
    const token = this.#turn.then(() => this.#next(refused));
    this.#turn = token.catch(() => {});
    return token;
  }

  async #next(refused: string | undefined): Promise<string> {
    if (refused !== undefined && this.#last !== undefined && this.#last !== refused) {
      return this.#last;
    }
    try {
      let token = await this.#source(refused !== undefined);
      if (refused === undefined && expiresSoon(token)) {
        token = await this.#source(true);
      }
      if (typeof token !== 'string') {
        throw new TypeError(`the source returned ${token === null ? 'null' : typeof token}, not a string`);
      }
      this.#last = token;
      return token;
    } catch (cause) {
      throw new FanfareError('UNKNOWN', `get a token: ${cause instanceof Error ? cause.message : String(cause)}`, { cause });
    }
  }
}

/** Whether a token is a JSON Web Token (RFC 7519) whose expiration time is near or past. Verifies nothing. */
export function expiresSoon(token: unknown): boolean {
  const parts = typeof token === 'string' ? token.split('.') : [];
  if (parts.length !== 3) {
    return false;
  }
  try {
    const claims: unknown = JSON.parse(Buffer.from(parts[1]!, 'base64url').toString());
    const expires = (claims as { exp?: unknown } | null)?.exp;
    return typeof expires === 'number' && expires < Date.now() / 1000 + marginSeconds;
  } catch {
    return false; // some other kind of token
  }
}

/** How one thing that calls again and again shows who it is: not at all without tokens. */
export class Access {
  readonly #tokens: Tokens | undefined;
  #used: string | undefined;
  /** The token that the server did not take, until the next one is used. */
  #refused: string | undefined;
  /** True since a token was refused, until the server takes a call. */
  #renewed = false;

  constructor(tokens: Tokens | undefined) {
    this.#tokens = tokens;
  }

  /** What to send with the next call. Rejects with a FanfareError. */
  async metadata(signal: AbortSignal): Promise<Metadata> {
    const metadata = new Metadata();
    if (this.#tokens !== undefined) {
      this.#used = await unlessAborted(this.#tokens.get(this.#refused), signal);
      this.#refused = undefined;
      metadata.set('authorization', `Bearer ${this.#used}`);
    }
    return metadata;
  }

  /** Whether to try once more, with another token, after an error. */
  renews(error: FanfareError): boolean {
    if (error.code !== 'UNAUTHENTICATED' || this.#tokens === undefined || this.#renewed) {
      return false;
    }
    this.#refused = this.#used;
    this.#renewed = true;
    return true;
  }

  /** Takes note that the server took a call. */
  accepted(): void {
    this.#renewed = false;
  }
}

function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const forget = onAbort(signal, () => reject(new FanfareError('CANCELLED', 'the call was cancelled')));
    promise.finally(() => forget()).then(resolve, reject);
  });
}
