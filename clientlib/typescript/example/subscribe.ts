// Prints the frames of a room, and goes on with the next start where it was, also
// if it was killed: the position of what was dealt with is kept in a file.
//
//   node build/js/example/subscribe.js 127.0.0.1:7420 lobby position.txt
import { readFile, writeFile } from 'node:fs/promises';

import { Client, type Start } from '@fanfare/client';

const [targets = '127.0.0.1:7420', room = 'lobby', file = 'position.txt'] = process.argv.slice(2);

const ending = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => ending.abort());
}

const stored = await readFile(file, 'utf8').catch(() => '');
const start: Start = stored === '' ? 'oldest' : { after: stored };

const client = new Client({ targets: targets.split(',') });
const subscription = client.subscribe({ channel: 'chat/messages', scope: room, start, signal: ending.signal });
for await (const event of subscription) {
  switch (event.type) {
    case 'frame':
      console.log(Buffer.from(event.payload).toString()); // whatever others publish, this does not fail
      await writeFile(file, String(subscription.position)); // after the frame was dealt with
      break;
    case 'gap':
      console.error(`frames after ${event.requested} are missing (${event.reason}): going on after ${event.resumeAfter}`);
      break;
    case 'interrupted':
      console.error(`${event.error.message}; again in ${Math.round(event.retryIn)} ms`);
      break;
    case 'closed':
      console.error('the room was closed');
      break;
  }
}
client.close();
