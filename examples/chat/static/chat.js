// The chat's page. The server has rendered the room's newest messages and the position
// where they end; from there on the page follows the stream, and misses nothing. This file
// is all that has to do with Fanfare; what it tells goes to the parts of the page:
// messages.js, rooms.js, people.js and connection.js. composer.js sends to the server.
import { Position, subscribe } from '/fanfare.js';
import './composer.js';
import { forgetAway, server, showCaughtUp, showStatus } from './connection.js';
import { add, refill, toEnd } from './messages.js';
import { room } from './page.js';
import { stopTyping, takeActivity, tell } from './people.js';
import { count, rooms } from './rooms.js';

const channel = 'chat/messages';

// This room's stream, and those of the others for what is unread, over one connection.
const scopes = [...rooms.keys()];

// This room's position is that of the last message that the page was made with. From those
// of the others it is only counted. 0-0 is before the first message of a room.
const after = scopes.map((scope) => (scope === room ? document.body : rooms.get(scope)).dataset.position || '0-0');

subscribe({ streams: scopes.map((scope) => ({ channel, scope })) }, {
  server,
  after: after.join(','),

  onframe(frame) {
    const { scope } = frame.stream;
    if (frame.ephemeral) {
      if (scope === room) {
        takeActivity(frame.json());
      }
      return;
    }
    const sequence = Number(Position.parse(frame.position).sequence);
    if (scope === room) {
      const message = frame.json();
      add({ ...message, sequence });
      stopTyping(message.author);
    }
    count(scope, sequence);
  },

  // Who is typing is told again; of messages nothing is missing then.
  ongap({ stream, reason }) {
    if (reason !== 'EPHEMERAL_MAYBE_MISSED' && stream.scope === room) {
      forgetAway();
      refill();
    }
  },

  oncaughtup({ stream }) {
    if (stream.scope === room) {
      showCaughtUp();
      // Whoever lost the connection may have missed who came and went.
      tell('arrived');
    }
  },

  onstatus: showStatus,

  // A page that nobody looks at for so long catches up when it is shown.
  pauseWhenHidden: 5 * 60_000,
});

toEnd();
