// Publishes what is written on standard input, a frame for each line:
//
//   node build/js/example/publish.js 127.0.0.1:7420 lobby
import { createInterface } from 'node:readline';

import { Client, FanfareError } from '@fanfare/client';

const [targets = '127.0.0.1:7420', room = 'lobby'] = process.argv.slice(2);

const client = new Client({ targets: targets.split(',') });
for await (const line of createInterface({ input: process.stdin })) {
  try {
    const { position } = await client.publish({
      channel: 'chat/messages',
      scope: room,
      payload: line,
      contentType: 'text/plain',
    });
    console.log(`published at ${position}`);
  } catch (error) {
    if (!(error instanceof FanfareError)) {
      throw error;
    }
    console.error(`not published: ${error.message} (${error.code} ${error.reason})`);
    process.exitCode = 1;
  }
}
client.close();
