import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Metadata, status } from '@grpc/grpc-js';

import { all, closed, frames, subscribed } from './fake.js';
import { answer, serve, type Subscribing } from './said.js';
import { newClient, until } from './server.js';

function stream(client: ReturnType<typeof newClient>) {
  return client.subscribe({ channel: 'c', scope: 's' });
}

// The server would go on sending to a call that nobody reads.
test('a call is cancelled that is given up because frames are missing', async (t) => {
  const calls: Subscribing[] = [];
  const cancelled: Subscribing[] = [];
  const address = await serve(t, { subscribe(call) {
    call.on('cancelled', () => cancelled.push(call));
    if (calls.push(call) === 1) {
      [subscribed('7-0'), frames('7-2')].forEach((response) => call.write(response));
    } else {
      [subscribed('7-0', '7-1', true), frames('7-1'), closed('7-1')].forEach((response) => call.write(response));
      call.end();
    }
  } });
  assert.deepEqual(await all(stream(newClient(t, address))), ['subscribed after 7-0', 'interrupted DATA_LOSS', 'subscribed after 7-0, resumed', '7-1', 'closed at 7-1']);
  await until('the first call is cancelled', () => cancelled.includes(calls[0]!));
});

test('an error whose details are not those of a Fanfare server is told by its code', async (t) => {
  const details: Buffer[] = [
    Buffer.from('no google.rpc.Status'),
    // ErrorInfo{reason: "OTHER", domain: "x"}, of somebody else
    Buffer.concat([Buffer.from([0x1a, 54, 0x0a, 40]), Buffer.from('type.googleapis.com/google.rpc.ErrorInfo'), Buffer.from([0x12, 10, 0x0a, 5]), Buffer.from('OTHER'), Buffer.from([0x12, 1]), Buffer.from('x')]),
  ];
  const address = await serve(t, { subscribe(call) {
    const metadata = new Metadata();
    metadata.set('grpc-status-details-bin', details.shift()!);
    call.emit('error', { code: status.PERMISSION_DENIED, details: 'no', metadata });
  } });
  const client = newClient(t, address);
  for (let i = 0; i < 2; i++) {
    await assert.rejects(stream(client).next(), { code: 'PERMISSION_DENIED', reason: '', message: 'no' });
  }
});

// Behind a connection that lost an answer without a word a publish waited for all of its
// time, though the frame had a key and another server could have been asked.
test('an attempt of a publish that gets no answer is followed by another', async (t) => {
  let silent = 0;
  const silence = await serve(t, { publish: () => silent++ });
  const server = await serve(t, { publish: answer });
  t.mock.method(Math, 'random', () => 0); // clients begin with the first target
  const client = newClient(t, [silence, server], { attemptTimeout: 500 });
  assert.equal((await client.publish({ channel: 'c' })).position!.sequence, 1n);
  assert.ok(silent > 0);
});

// Without a key it may have been done, which another attempt would not find out.
test('an attempt without a key that gets no answer is not followed by another', async (t) => {
  const given = new AbortController();
  let silent = 0;
  const silence = await serve(t, { publish: () => {
    silent++;
    setTimeout(() => given.abort(), 300); // another attempt would have been answered
  } });
  const server = await serve(t, { publish: answer });
  t.mock.method(Math, 'random', () => 0); // clients begin with the first target
  const client = newClient(t, [silence, server], { attemptTimeout: 100 });
  await assert.rejects(client.publish({ channel: 'c', idempotencyKey: '' }, { signal: given.signal }), { reason: 'OUTCOME_UNKNOWN' });
  assert.equal(silent, 1);
});

test('an attempt without a key has all of the time', async (t) => {
  const server = await serve(t, { publish: (call, done) => setTimeout(answer, 300, call, done) });
  const client = newClient(t, server, { attemptTimeout: 100 });
  assert.equal((await client.publish({ channel: 'c', idempotencyKey: '' })).position!.sequence, 1n);
});

// Node fires a timer at once whose time it cannot hold: each call was ended in its first
// millisecond.
test('a subscription may wait for ever', async (t) => {
  const calls: Subscribing[] = [];
  const address = await serve(t, { subscribe(call) {
    call.write(subscribed('7-0'));
    if (calls.push(call) === 1) {
      setTimeout(() => call.write(closed('7-0')), 300);
    }
  } });
  assert.deepEqual(await all(stream(newClient(t, address, { idleTimeout: Infinity }))), ['subscribed after 7-0', 'closed at 7-0']);
  assert.equal(calls.length, 1);
});

// What a process did not read while it was busy was taken for silence of the server.
test('a process that was busy for longer than a server may be silent reads what came meanwhile', async (t) => {
  const calls: Subscribing[] = [];
  const address = await serve(t, { subscribe(call) {
    calls.push(call);
    call.write(subscribed('7-0'));
  } });
  const subscription = stream(newClient(t, address, { idleTimeout: 300 }));
  await subscription.next();
  const next = subscription.next();
  calls[0]!.write(frames('7-1'));
  const end = performance.now() + 400;
  while (performance.now() < end); // busy
  assert.equal((await next).value?.type, 'frame');
  assert.equal(calls.length, 1);
  await subscription.close();
});
