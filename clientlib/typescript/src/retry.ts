import { errorOf, FanfareError, type Code } from './errors.js';
import { onAbort } from './signals.js';

const finalCodes: ReadonlySet<Code> = new Set([
  'INVALID_ARGUMENT',
  'NOT_FOUND',
  'ALREADY_EXISTS',
  'PERMISSION_DENIED',
  'UNAUTHENTICATED',
  'FAILED_PRECONDITION',
  'UNIMPLEMENTED',
]);

/** Whether subscribing again cannot help. */
export function isFinal(error: FanfareError): boolean {
  // Of what is exhausted only a limit stays so, until something is given up: a slow
  // subscriber, or a server with too much to do, is well again by itself.
  return finalCodes.has(error.code) || (error.reason === 'LIMIT_REACHED' && error.retryIn === undefined);
}

const ambiguousCodes: ReadonlySet<Code> = new Set(['UNKNOWN', 'DEADLINE_EXCEEDED', 'CANCELLED', 'INTERNAL']);

/** Whether a publish that was sent and failed this way may have been done all the same. */
function mayBeDone(error: FanfareError): boolean {
  // UNAVAILABLE with a reason is a server's, and says that nothing was stored. Without
  // one it is an error of the way there or back, and does not tell which of the two.
  return ambiguousCodes.has(error.code) || (error.code === 'UNAVAILABLE' && error.reason === '');
}

/** Whether a publish that failed this way was certainly not done, and another attempt may help. */
function isNotDone(error: FanfareError, sent: boolean): boolean {
  if (error.code === 'RESOURCE_EXHAUSTED') {
    return error.retryIn !== undefined; // else, for one, a frame is too large
  }
  return error.code === 'UNAVAILABLE' && (error.reason !== '' || !sent);
}

/** How waits before retries grow. */
export interface BackoffOptions {
  /** Milliseconds below which the first wait is. Default 100. */
  min?: number | undefined;
  /** Milliseconds below which every wait is. Default 5,000. */
  max?: number | undefined;
}

/**
 * Exponential backoff with full jitter: each wait is anything between nothing and
 * a bound that doubles, so that clients that lost a server together do not come
 * back together.
 */
export class Backoff {
  readonly #min: number;
  readonly #max: number;
  readonly #random: () => number;
  #attempts = 0;

  constructor(options: BackoffOptions = {}, random: () => number = Math.random) {
    this.#min = options.min ?? 100;
    this.#max = options.max ?? 5000;
    this.#random = random;
  }

  /** Milliseconds to wait now; retryIn, which a server has asked for, is added. */
  next(retryIn = 0): number {
    const bound = Math.min(this.#max, this.#min * 2 ** this.#attempts++);
    return retryIn + this.#random() * bound;
  }

  /** Begins anew. */
  reset(): void {
    this.#attempts = 0;
  }
}

/** Node fires timers at once that are longer than this. */
export const longestTimer = 2 ** 31 - 1;

/** Waits, or until the signal is aborted. It never rejects. */
export function sleep(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(() => {
      forget();
      resolve();
    }, Math.min(milliseconds, longestTimer));
    const forget = onAbort(signal, () => {
      clearTimeout(timer);
      resolve();
    });
  });
}

/** One attempt of a call. sent is called before anything leaves this process. */
export type Attempt<T> = (signal: AbortSignal, sent: () => void) => Promise<T>;

/** How to retry; see {@link withRetries}. */
export interface Retries {
  /** Whether what may have been done may be attempted again. */
  repeatable: boolean;
  /** Whether an error is mended by another token. Default: none is. */
  renews?: (error: FanfareError) => boolean;
  backoff: Backoff;
  /** Milliseconds for everything. */
  timeout: number;
  /** Any of them ends it. */
  signals: readonly (AbortSignal | undefined)[];
}

/**
 * Attempts a publish until it succeeds, cannot succeed, or time is over. An
 * attempt that may have been done is followed by another one only if it is
 * repeatable. Otherwise it is UNKNOWN with the reason OUTCOME_UNKNOWN, and never
 * UNAVAILABLE, which callers take for nothing done.
 */
export async function withRetries<T>(attempt: Attempt<T>, { repeatable, renews, backoff, timeout, signals }: Retries): Promise<T> {
  const over = new AbortController();
  const end = () => over.abort();
  const timer = setTimeout(end, Math.min(timeout, longestTimer));
  const forgets = signals.map((signal) => onAbort(signal, end));
  let doubtful = false;
  try {
    for (;;) {
      let sent = false;
      let failure: FanfareError;
      try {
        return await attempt(over.signal, () => (sent = true));
      } catch (thrown) {
        failure = errorOf(thrown);
      }
      if (renews?.(failure) && !over.signal.aborted) {
        continue;
      }
      const doubt = sent && mayBeDone(failure);
      doubtful ||= doubt;
      if (doubt ? repeatable : isNotDone(failure, sent)) {
        await sleep(backoff.next(failure.retryIn), over.signal);
        if (!over.signal.aborted) {
          continue;
        }
      }
      throw doubtful && !settles(failure) ? outcomeUnknown(failure) : failure;
    }
  } finally {
    clearTimeout(timer);
    forgets.forEach((forget) => forget());
  }
}

// A server that refuses so has looked for the key.
const settlingCodes: ReadonlySet<Code> = new Set(['INVALID_ARGUMENT', 'ALREADY_EXISTS', 'ABORTED', 'FAILED_PRECONDITION']);

/** Whether a refusal says of earlier attempts, too, that they stored nothing. */
function settles(error: FanfareError): boolean {
  return settlingCodes.has(error.code);
}

function outcomeUnknown(failure: FanfareError): FanfareError {
  if (failure.reason === 'OUTCOME_UNKNOWN') {
    return failure;
  }
  return new FanfareError('UNKNOWN', `${failure.message}; whether it was done all the same is unknown`, {
    reason: 'OUTCOME_UNKNOWN',
    cause: failure,
  });
}
