// The replica that the page came from: its health, polled as long as the page is seen,
// and what of it is drawn over time.
import { signal } from '@preact/signals';
import { getHealth, messageOf } from './api';
import { poll, pollEvery } from './poll';
import type { Health } from './protocol';
import { chartWindow, Counter } from './rates';

export const health = signal<Health | undefined>(undefined);
/** Why the last question for it had no answer; empty if it had one. */
export const unreachable = signal('');
/** How far the server's clock is ahead of this machine's, in milliseconds. */
export const clockAhead = signal(0);

export const published = new Counter();
export const heard = new Counter();
export const subscribers: { at: number; value: number }[] = [];

export function serverNow(): number {
  return Date.now() + clockAhead.value;
}

export function watchReplica(): () => void {
  return poll(
    async (aborted) => {
      let now: Health;
      try {
        now = await getHealth<Health>(aborted);
      } catch (err) {
        if (!aborted.aborted) {
          unreachable.value = messageOf(err);
        }
        throw err;
      }
      if (health.value && health.value.started !== now.started) {
        published.readings.length = heard.readings.length = subscribers.length = 0;
      }
      const at = performance.now();
      published.read(BigInt(now.published), at);
      heard.read(BigInt(now.hub.frames), at);
      subscribers.push({ at, value: now.hub.subscribers });
      while (subscribers[0] && subscribers[0].at < at - chartWindow) {
        subscribers.shift();
      }
      unreachable.value = '';
      clockAhead.value = Date.parse(now.now) - Date.now();
      health.value = now;
    },
    pollEvery,
    true,
  );
}
