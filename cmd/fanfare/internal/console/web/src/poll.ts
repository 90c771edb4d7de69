// What is shown is asked for again and again, and nothing else is: not while the page
// is hidden, and not for what has left the screen.
import { effect, untracked } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import { token, tokenWanted } from './api';

/** How long after an answer the next question goes, in milliseconds. */
export const pollEvery = 2000;

/**
 * Asks until it is stopped. It pauses while nobody sees the page and, unless it is for
 * anybody, while the server waits for a token.
 */
export function poll(ask: (signal: AbortSignal) => Promise<void>, every = pollEvery, forAnybody = false): () => void {
  let running: AbortController | undefined;
  let timer = 0;

  const once = async () => {
    const controller = new AbortController();
    running = controller;
    try {
      await ask(controller.signal);
    } catch {
      // Whoever asks shows its errors.
    }
    if (!controller.signal.aborted) {
      timer = window.setTimeout(once, every);
    }
  };
  const stop = () => {
    window.clearTimeout(timer);
    running?.abort();
    running = undefined;
  };
  const changed = () => {
    stop();
    if (!document.hidden && (forAnybody || tokenWanted.value === '')) {
      void once();
    }
  };
  document.addEventListener('visibilitychange', changed);
  // Runs at once, and with each of the two.
  const forget = effect(() => {
    void token.value;
    void tokenWanted.value;
    untracked(changed);
  });
  return () => {
    document.removeEventListener('visibilitychange', changed);
    forget();
    stop();
  };
}

/** Polls while a component is shown, anew when something of deps changes. */
export function usePoll(ask: (signal: AbortSignal) => Promise<void>, deps: readonly unknown[], every = pollEvery) {
  const latest = useRef(ask);
  latest.current = ask;
  useEffect(() => poll((signal) => latest.current(signal), every), [...deps, every]);
}
