// Publishes a frame and prints what there is and comes, until it is ended:
//
//   node build/js/example/quickstart.js
import { Client } from '@fanfare/client';

const client = new Client({ targets: ['127.0.0.1:7420', '127.0.0.1:7421'] });
await client.publish({ channel: 'chat/messages', scope: 'lobby', payload: 'hello' });
for await (const event of client.subscribe({ channel: 'chat/messages', scope: 'lobby' })) {
  if (event.type === 'frame') console.log(String(event.position), Buffer.from(event.payload).toString());
}
