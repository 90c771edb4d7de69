import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import type { SubscribeRequest, SubscribeResponse } from '@fanfare/client/protocol';
import { fanfareServiceDefinition } from '@fanfare/client/protocol';
import { Metadata, Server, ServerCredentials, status, type ServerWritableStream } from '@grpc/grpc-js';

import { all, closed, frames, subscribed } from './fake.js';
import { newClient, until } from './server.js';

type Subscribing = ServerWritableStream<SubscribeRequest, SubscribeResponse>;

/** A server that says what no Fanfare server would. */
async function serve(t: TestContext, subscribe: (call: Subscribing) => void): Promise<string> {
  const server = new Server();
  server.addService(fanfareServiceDefinition, { subscribe });
  t.after(() => server.forceShutdown());
  return new Promise((resolve, reject) => {
    server.bindAsync('127.0.0.1:0', ServerCredentials.createInsecure(), (error, port) =>
      error ? reject(error) : resolve(`127.0.0.1:${port}`));
  });
}

function stream(client: ReturnType<typeof newClient>) {
  return client.subscribe({ channel: 'c', scope: 's' });
}

// The server would go on sending to a call that nobody reads.
test('a call is cancelled that is given up because frames are missing', async (t) => {
  const calls: Subscribing[] = [];
  const cancelled: Subscribing[] = [];
  const address = await serve(t, (call) => {
    call.on('cancelled', () => cancelled.push(call));
    if (calls.push(call) === 1) {
      [subscribed('7-0'), frames('7-2')].forEach((response) => call.write(response));
    } else {
      [subscribed('7-0'), frames('7-1'), closed('7-1')].forEach((response) => call.write(response));
      call.end();
    }
  });
  assert.deepEqual(await all(stream(newClient(t, address))), ['subscribed after 7-0', 'interrupted DATA_LOSS', 'subscribed after 7-0', '7-1', 'closed at 7-1']);
  await until('the first call is cancelled', () => cancelled.includes(calls[0]!));
});

test('an error whose details are not those of a Fanfare server is told by its code', async (t) => {
  const details: Buffer[] = [
    Buffer.from('no google.rpc.Status'),
    // ErrorInfo{reason: "OTHER", domain: "x"}, of somebody else
    Buffer.concat([Buffer.from([0x1a, 54, 0x0a, 40]), Buffer.from('type.googleapis.com/google.rpc.ErrorInfo'), Buffer.from([0x12, 10, 0x0a, 5]), Buffer.from('OTHER'), Buffer.from([0x12, 1]), Buffer.from('x')]),
  ];
  const address = await serve(t, (call) => {
    const metadata = new Metadata();
    metadata.set('grpc-status-details-bin', details.shift()!);
    call.emit('error', { code: status.PERMISSION_DENIED, details: 'no', metadata });
  });
  const client = newClient(t, address);
  for (let i = 0; i < 2; i++) {
    await assert.rejects(stream(client).next(), { code: 'PERMISSION_DENIED', reason: '', message: 'no' });
  }
});
