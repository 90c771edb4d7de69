// What the page says of its connection: whether it is live, at which replica, and how
// long it was away.
import { note } from './messages.js';
import { byId, demo } from './page.js';
import { showHere } from './replicas.js';

// The demonstration's nginx says by a cookie which replica a window was given, and tells
// windows apart by the path that they subscribe at.
const windowId = crypto.randomUUID().slice(0, 8);

/** Where to subscribe. Elsewhere than in the demonstration it is the page's own origin. */
export const server = demo ? `/window/${windowId}` : undefined;

let replica;
// When the page lost its connection, and to which replica, until it has caught up again.
let away;

function replicaNow() {
  const cookie = `chat_replica_${windowId}`;
  const value = document.cookie.split('; ').find((pair) => pair.startsWith(`${cookie}=`))?.slice(cookie.length + 1);
  if (value) {
    document.cookie = `${cookie}=; Path=/; Max-Age=0; SameSite=Strict`;
  }
  return value ?? replica;
}

function show(state, text) {
  byId('status').dataset.state = state;
  byId('status-text').textContent = text;
}

// That a connection is open says little: while no replica runs, nginx opens each, says
// when to come again, and ends it. Once everything stored before has come, it is true.
export function showCaughtUp() {
  replica = replicaNow();
  show('live', replica ? `live from replica ${replica}` : 'live');
  if (away) {
    const seconds = ((performance.now() - away.since) / 1000).toFixed(1);
    const what = replica && away.from !== replica
      ? `Replica ${away.from} is gone. This page goes on at replica ${replica}`
      : 'The connection was lost. This page goes on';
    note(`${what} after ${seconds} s, and no message is missing.`);
    away = undefined;
  }
  showHere(replica);
}

/** Messages were missed, so what would be said of the time away is not so. */
export function forgetAway() {
  away = undefined;
}

export function showStatus({ state, error }) {
  switch (state) {
    case 'open':
      break; // showCaughtUp
    case 'paused':
      away = undefined;
      show('waiting', 'paused');
      break;
    case 'ended':
      show('ended', `ended: ${error?.message ?? 'reload the page'}`);
      break;
    default:
      if (state === 'waiting' && byId('status').dataset.state === 'live') {
        away ??= { since: performance.now(), from: replica };
      }
      show('waiting', away && replica ? `replica ${replica} is gone, trying another` : 'connecting');
  }
}
