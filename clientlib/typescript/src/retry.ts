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

/** Whether asking again, unchanged, cannot help. */
export function isFinal(error: FanfareError): boolean {
  if (error.code === 'RESOURCE_EXHAUSTED') {
    // Without a delay something must be given up first, or a message is too large.
    return error.retryIn === undefined;
  }
  return finalCodes.has(error.code);
}

/** Whether a publish that failed this way may have been done all the same. */
export function mayBeDone(error: FanfareError): boolean {
  // A server that gives a reason says by it that nothing was stored or announced,
  // with two exceptions. Without a reason it is an error of the way there or back,
  // and UNAVAILABLE does not tell which of the two.
  return error.reason === '' || error.reason === 'OUTCOME_UNKNOWN' || error.reason === 'INTERNAL';
}

/** How waits before retries grow. */
export interface BackoffOptions {
  /** Milliseconds below which the first wait is. Default 100. */
  min?: number;
  /** Milliseconds below which every wait is. Default 5,000. */
  max?: number;
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

// Node fires timers at once that are longer than this.
const longestTimer = 2 ** 31 - 1;

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
export async function withRetries<T>(attempt: Attempt<T>, { repeatable, backoff, timeout, signals }: Retries): Promise<T> {
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
      const final = isFinal(failure) || failure.reason === 'EXPECTATION_FAILED';
      doubtful ||= sent && !final && mayBeDone(failure);
      if (!final && (repeatable || !doubtful)) {
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

/** Whether a refusal says of earlier attempts, too, that they stored nothing. */
function settles(error: FanfareError): boolean {
  return error.reason === 'KEY_CONFLICT' || error.reason === 'EXPECTATION_FAILED';
}

function outcomeUnknown(failure: FanfareError): FanfareError {
  if (failure.reason === 'OUTCOME_UNKNOWN') {
    return failure;
  }
  return new FanfareError('UNKNOWN', `${failure.message}; whether anything was published is unknown`, {
    reason: 'OUTCOME_UNKNOWN',
    cause: failure,
  });
}
