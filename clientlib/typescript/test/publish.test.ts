import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { create } from '@bufbuild/protobuf';
import { Client, FanfareError, Position } from '@fanfare/client';
import { GetStreamRequestSchema, type GetStreamResponse } from '@fanfare/client/protocol';

import { Proxy } from './proxy.js';
import { call, newClient, Server, until } from './server.js';

/** The sequence of the stream's newest frame. */
async function head(t: TestContext, server: Server): Promise<bigint> {
  try {
    const { stream } = await call<GetStreamResponse>(t, server, 'getStream', create(GetStreamRequestSchema, { channel: 'c', scope: 's' }));
    return stream!.head!.sequence;
  } catch {
    return 0n; // nothing was published to it
  }
}

test('a publish tells the position, and of a known key the first one', async (t) => {
  const client = newClient(t, (await Server.start(t)).address);
  const frame = { channel: 'c', scope: 's', payload: 'hello', idempotencyKey: 'k' };
  const first = await client.publish(frame);
  assert.equal(first.position!.sequence, 1n);
  assert.equal(first.duplicate, false);
  const again = await client.publish(frame);
  assert.ok(again.position!.equals(first.position!));
  assert.equal(again.duplicate, true);
  assert.equal((await client.publish({ ...frame, idempotencyKey: undefined })).position!.sequence, 2n);
  assert.deepEqual(await client.publish({ channel: 'c', scope: 's', ephemeral: true }), { position: undefined, duplicate: false });
});

test('a batch tells of each frame at its place', async (t) => {
  const client = newClient(t, (await Server.start(t)).address);
  const frames = [{ channel: 'c', scope: '1' }, { channel: 'c', scope: '2' }, { channel: 'c', scope: '1' }, { channel: 'c', scope: '1', ephemeral: true }];
  const results = await client.publishBatch(frames);
  assert.deepEqual(results.map(({ position }) => position?.sequence), [1n, 1n, 2n, undefined]);
});

test('an expectation is kept, and the head is told where it is not', async (t) => {
  const client = newClient(t, (await Server.start(t)).address);
  const frame = { channel: 'c', scope: 's' };
  const { position } = await client.publish({ ...frame, expected: { sequence: 0n } });
  await assert.rejects(client.publish({ ...frame, expected: { sequence: 0n } }), {
    code: 'ABORTED', reason: 'EXPECTATION_FAILED', metadata: { head: String(position) },
  });
  await assert.rejects(client.publish({ ...frame, expected: { sequence: 1n, epoch: position!.epoch + 1n } }), { reason: 'EXPECTATION_FAILED' });
  assert.equal((await client.publish({ ...frame, expected: position! })).position!.sequence, 2n);
});

test('a refusal names the field, the reason and the code', async (t) => {
  const client = newClient(t, (await Server.start(t)).address);
  const frame = { channel: 'c', scope: 's' };
  await assert.rejects(client.publishBatch([frame, { ...frame, channel: '' }]), (error: unknown) => {
    assert.ok(error instanceof FanfareError);
    assert.deepEqual([error.name, error.code, error.reason, error.field, error.retryIn],
      ['FanfareError', 'INVALID_ARGUMENT', 'INVALID_FIELD', 'frames[1].channel', undefined]);
    assert.match(error.message, /channel must not be empty/);
    return true;
  });
  await client.publish({ ...frame, payload: 'one', idempotencyKey: 'k' });
  await assert.rejects(client.publish({ ...frame, payload: 'other', idempotencyKey: 'k' }), { code: 'ALREADY_EXISTS', reason: 'KEY_CONFLICT' });
  await assert.rejects(client.publishBatch([{ ...frame, payload: 'one', idempotencyKey: 'k' }, frame]), { code: 'FAILED_PRECONDITION', reason: 'PARTLY_DUPLICATE' });
  await assert.rejects(client.publish({ ...frame, expected: { sequence: 1n << 64n } }), { code: 'INVALID_ARGUMENT' });
  await assert.rejects(client.publish({ ...frame, payload: new Uint8Array(20 << 20) }), { code: 'RESOURCE_EXHAUSTED' });
});

// UNAVAILABLE does not mean that the server did nothing: the request may have
// arrived, and the answer been lost. Clients that retry on it store frames twice.
for (const [what, key, outcome] of [
  ['a frame is stored once although the answer is lost, and the retry tells its position', undefined, 'published'],
  ['without a key a frame whose answer is lost is not sent again, and its outcome is unknown', '', 'unknown'],
] as const) {
  test(what, async (t) => {
    const server = await Server.start(t);
    const proxy = await Proxy.start(t, server.address);
    const client = newClient(t, proxy.address);
    await client.publish({ channel: 'warm', scope: 'up' }); // so that the request is all that is on the way

    proxy.hold();
    const publishing = client.publish({ channel: 'c', scope: 's', idempotencyKey: key });
    publishing.catch(() => {});
    await until('the frame is stored', async () => (await head(t, server)) === 1n);
    proxy.cut();
    if (outcome === 'published') {
      const { position, duplicate } = await publishing;
      assert.equal(position!.sequence, 1n);
      assert.equal(duplicate, true);
    } else {
      await assert.rejects(publishing, { code: 'UNKNOWN', reason: 'OUTCOME_UNKNOWN' });
    }
    const marker = await client.publish({ channel: 'c', scope: 's' });
    assert.equal(marker.position!.sequence, 2n, 'nothing was stored a second time');
  });
}

test('a publish waits for a server that is away, without a key, too, while nothing was sent', async (t) => {
  const server = await Server.start(t);
  const client = newClient(t, server.address);
  await client.publish({ channel: 'c', scope: 's' });
  await server.kill();
  const publishing = [client.publish({ channel: 'c', scope: 's' }), newClient(t, server.address).publish({ channel: 'c', scope: 's', idempotencyKey: '' })];
  await server.start();
  const sequences = (await Promise.all(publishing)).map(({ position }) => position!.sequence);
  assert.deepEqual(sequences.sort(), [2n, 3n]);
});

test('a publish goes on with another target', async (t) => {
  const server = await Server.start(t);
  const proxy = await Proxy.start(t, server.address);
  proxy.close();
  t.mock.method(Math, 'random', () => 0); // clients begin with the first target
  for (const targets of [[proxy.address, server.address], [server.address, proxy.address]]) {
    await newClient(t, targets).publish({ channel: 'c', scope: 's' });
  }
});

test('a publish that no server takes is given up after its timeout, or by its signal', async (t) => {
  const server = await Server.start(t);
  const client = newClient(t, server.address);
  await server.kill();
  await assert.rejects(client.publish({ channel: 'c', scope: 's' }, { timeout: 50 }), { code: 'UNAVAILABLE', message: `no connection to ${server.address}` });
  await assert.rejects(client.publish({ channel: 'c', scope: 's' }, { signal: AbortSignal.timeout(50) }), { code: /UNAVAILABLE|CANCELLED/ });
});

test('a publish over a Unix socket', async (t) => {
  const server = new Server(t);
  server.address = `unix://${server.path('fanfare.sock')}`;
  await server.start();
  const { position } = await newClient(t, `unix://${server.path('fanfare.sock')}`).publish({ channel: 'c', scope: 's' });
  assert.equal(position!.sequence, 1n);
});

test('a client that is closed publishes no more', async (t) => {
  const client = newClient(t, (await Server.start(t)).address);
  client.close();
  await assert.rejects(client.publish({ channel: 'c', scope: 's' }), { code: 'CANCELLED' });
});

test('each client has one connection of its own, which is closed with it', async (t) => {
  const wire = await Proxy.start(t, (await Server.start(t)).address);
  const clients = [newClient(t, wire.address), newClient(t, wire.address)];
  for (const client of [...clients, ...clients]) {
    await client.publish({ channel: 'c', scope: 's' });
  }
  assert.equal(wire.open, 2);
  clients[0]!.close();
  await until('one connection is closed', () => wire.open === 1);
  await clients[1]!.publish({ channel: 'c', scope: 's' });
});

test('a stream is closed, and only the numbering that is expected', async (t) => {
  const client = newClient(t, (await Server.start(t)).address);
  const last = (await client.publish({ channel: 'c', scope: 's' })).position!;
  await assert.rejects(client.closeStream({ channel: 'c', scope: 's', expectedEpoch: last.epoch + 1n }), (error: FanfareError) =>
    error.reason === 'EXPECTATION_FAILED' && error.position!.equals(last));
  assert.ok((await client.closeStream({ channel: 'c', scope: 's', expectedEpoch: last.epoch })).equals(last));
  assert.ok((await client.closeStream({ channel: 'c' })).equals(Position.zero));
  await assert.rejects(client.closeStream({ channel: 'c\ud800' }), { field: 'channel' });
});

// With 0, meant for no limit, a subscription was ended and begun again without end.
test('times that are none are refused', async (t) => {
  const targets = '127.0.0.1:1';
  for (const time of [0, -1, NaN]) {
    for (const name of ['timeout', 'attemptTimeout', 'connectTimeout', 'idleTimeout']) {
      assert.throws(() => new Client({ targets, [name]: time }), { name: 'RangeError', message: `${name} must be above 0 ms, and is ${time}` });
    }
    for (const name of ['min', 'max']) {
      assert.throws(() => new Client({ targets, backoff: { [name]: time } }), { name: 'RangeError' });
    }
    await assert.rejects(newClient(t, targets).publish({ channel: 'c' }, { timeout: time }), { name: 'RangeError' });
  }
});

test('a client without a target is refused', () => {
  assert.throws(() => new Client({ targets: [] }), TypeError);
});
