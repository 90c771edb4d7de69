// Node warns of a leak where one signal has more than ten listeners, which a
// hundred subscriptions of one client do not have: each signal gets one listener,
// which calls everybody.
const callbacks = new WeakMap<AbortSignal, Map<symbol, () => void>>();
const listeners = new WeakMap<AbortSignal, () => void>();

/**
 * Calls callback when the signal is aborted, at once if it is already. Returns what
 * forgets it again.
 */
export function onAbort(signal: AbortSignal | undefined, callback: () => void): () => void {
  if (signal === undefined) {
    return () => {};
  }
  if (signal.aborted) {
    callback();
    return () => {};
  }
  const key = Symbol();
  callbacksOf(signal).set(key, callback);
  return () => forget(signal, key);
}

function callbacksOf(signal: AbortSignal): Map<symbol, () => void> {
  let waiting = callbacks.get(signal);
  if (waiting === undefined) {
    waiting = new Map();
    const all = waiting;
    const listener = () => [...all.values()].forEach((callback) => callback());
    callbacks.set(signal, waiting);
    listeners.set(signal, listener);
    signal.addEventListener('abort', listener, { once: true });
  }
  return waiting;
}

function forget(signal: AbortSignal, key: symbol): void {
  const waiting = callbacks.get(signal);
  waiting?.delete(key);
  if (waiting?.size === 0) {
    signal.removeEventListener('abort', listeners.get(signal)!);
    callbacks.delete(signal);
    listeners.delete(signal);
  }
}
