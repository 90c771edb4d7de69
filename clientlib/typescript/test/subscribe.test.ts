import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { getEventListeners } from 'node:events';
import { test } from 'node:test';

import { create } from '@bufbuild/protobuf';
import type { Client, Event, Start, Subscription } from '@fanfare/client';
import { CloseStreamRequestSchema, GetStreamRequestSchema, type GetStreamResponse } from '@fanfare/client/protocol';

import { Proxy } from './proxy.js';
import { call, newClient, Server, until } from './server.js';

const stream = { channel: 'c', scope: 's' };

/** Publishes frames whose payloads are their sequences. */
async function publish(client: Client, first: number, last: number): Promise<void> {
  for (let i = first; i <= last; i++) {
    await client.publish({ ...stream, payload: String(i) });
  }
}

/** The next event of a type; what comes before it is left aside. */
async function next<T extends Event['type']>(subscription: Subscription, type: T): Promise<Extract<Event, { type: T }>> {
  for (;;) {
    const { value, done } = await subscription.next();
    assert.ok(!done, `the subscription ended before ${type}`);
    if (value.type === type) {
      return value as Extract<Event, { type: T }>;
    }
  }
}

/** The payloads of the next frames. */
async function payloads(subscription: Subscription, count: number): Promise<string[]> {
  const got: string[] = [];
  while (got.length < count) {
    got.push(Buffer.from((await next(subscription, 'frame')).payload).toString());
  }
  return got;
}

function numbers(first: number, last: number): string[] {
  return Array.from({ length: last - first + 1 }, (_, i) => String(first + i));
}

test('a frame arrives with everything that was published', async (t) => {
  const client = newClient(t, (await Server.start(t)).address);
  const frame = {
    ...stream,
    payload: randomBytes(1 << 20), // the most that a server takes
    contentType: 'application/octet-stream',
    eventType: 'grüße',
    headers: { a: '1', 'ключ': 'значение', ['__proto__']: 'x' },
  };
  const { position } = await client.publish(frame);
  await client.publish({ ...stream, payload: 'ephemeral', ephemeral: true });
  const subscription = client.subscribe(stream);
  const got = await next(subscription, 'frame');
  assert.ok(position!.equals(got.position!));
  assert.ok(frame.payload.equals(got.payload));
  assert.ok(!Buffer.isBuffer(got.payload), 'a plain Uint8Array, whose slice copies');
  assert.equal(got.contentType, frame.contentType);
  assert.equal(got.eventType, frame.eventType);
  assert.deepEqual(Object.entries(got.headers).sort(), Object.entries(frame.headers).sort());
  assert.ok(Math.abs(got.created.getTime() - Date.now()) < 60_000);

  await next(subscription, 'caughtUp');
  await client.publish({ ...stream, payload: 'typing', ephemeral: true });
  const ephemeral = await next(subscription, 'frame');
  assert.deepEqual([ephemeral.ephemeral, ephemeral.position, Buffer.from(ephemeral.payload).toString()], [true, undefined, 'typing']);
  assert.ok(subscription.position!.equals(position!));
});

test('delivery begins where it is asked to', async (t) => {
  const client = newClient(t, (await Server.start(t)).address);
  await publish(client, 1, 4);
  const { position } = await client.publish({ ...stream, payload: '5' });
  await publish(client, 6, 7);
  const begun = async (start: Start | undefined) => {
    const subscription = client.subscribe({ ...stream, ...(start && { start }) });
    const subscribed = await next(subscription, 'subscribed');
    assert.equal(subscribed.head.sequence, 7n);
    assert.equal(subscribed.oldest, 1n);
    return { subscription, subscribed };
  };
  for (const [start, expected] of [
    [undefined, numbers(1, 7)],
    ['oldest', numbers(1, 7)],
    [{ after: position! }, numbers(6, 7)],
    [{ after: String(position) }, numbers(6, 7)],
    [{ last: 2 }, numbers(6, 7)],
    [{ last: 2n }, numbers(6, 7)],
  ] as const) {
    const { subscription, subscribed } = await begun(start);
    assert.equal(subscribed.resumed, typeof start === 'object' && 'after' in start);
    assert.deepEqual(await payloads(subscription, expected.length), expected);
    assert.equal((await next(subscription, 'caughtUp')).position.sequence, 7n);
    await subscription.close();
  }
  const live = await Promise.all([begun('live'), begun({ last: 0 })]);
  await publish(client, 8, 8);
  for (const { subscription } of live) {
    assert.deepEqual(await payloads(subscription, 1), ['8']);
  }
});

test('a frame that is published right after Subscribed arrives', async (t) => {
  const address = (await Server.start(t)).address;
  const [client, publisher] = [newClient(t, address), newClient(t, address)];
  for (let i = 0; i < 50; i++) {
    const scope = String(i);
    const subscription = client.subscribe({ channel: 'c', scope, start: 'live' });
    await next(subscription, 'subscribed');
    await publisher.publish({ channel: 'c', scope, payload: scope });
    assert.deepEqual(await payloads(subscription, 1), [scope]);
    await subscription.close();
  }
});

test('a stream that is closed ends its subscriptions', async (t) => {
  const server = await Server.start(t);
  const client = newClient(t, server.address);
  await publish(client, 1, 2);
  const subscription = client.subscribe(stream);
  await next(subscription, 'caughtUp');
  await call(t, server, 'closeStream', create(CloseStreamRequestSchema, stream));
  const { value } = await subscription.next();
  assert.ok(value?.type === 'closed' && value.last.equals(subscription.position!));
  assert.deepEqual(await subscription.next(), { done: true, value: undefined });
});

test('what was trimmed is told as a gap, and delivery goes on after it', async (t) => {
  const client = newClient(t, (await Server.start(t, '--backlog', '2')).address);
  const { position } = await client.publish({ ...stream, payload: '1' });
  await publish(client, 2, 5);
  // Frames stay for a grace after they were trimmed, for running subscriptions.
  const subscription = client.subscribe({ ...stream, start: { after: position! } });
  const gap = await next(subscription, 'gap');
  assert.equal(gap.reason, 'TRIMMED');
  assert.ok(gap.requested.equals(position!));
  assert.deepEqual([gap.oldest, gap.head.sequence, gap.resumeAfter.sequence], [4n, 5n, 3n]);
  assert.ok(subscription.position!.equals(gap.resumeAfter));
  assert.deepEqual(await payloads(subscription, 2), ['4', '5']);
});

test('a subscription that is refused rejects once', async (t) => {
  const client = newClient(t, (await Server.start(t)).address);
  const subscription = client.subscribe({ channel: '', scope: 's' });
  await assert.rejects(subscription.next(), { code: 'INVALID_ARGUMENT', reason: 'INVALID_FIELD', field: 'channel' });
  assert.deepEqual(await subscription.next(), { done: true, value: undefined });
});

for (const [how, end] of [['killed', 'kill'], ['drained', 'drain']] as const) {
  test(`a subscription goes on where it was after its server was ${how}, each frame once`, async (t) => {
    const server = await Server.start(t);
    const client = newClient(t, server.address);
    const subscription = client.subscribe(stream);
    await publish(client, 1, 20);
    const got = await payloads(subscription, 10);
    for (let round = 1; round <= 3; round++) {
      await server[end]();
      await server.start();
      await publish(client, round * 20 + 1, round * 20 + 20);
      got.push(...(await payloads(subscription, 20)));
    }
    got.push(...(await payloads(subscription, 10)));
    assert.deepEqual(got, numbers(1, 80));
  });
}

test('what ended a call is told, and then that ephemeral frames may be missing', async (t) => {
  const server = await Server.start(t);
  const client = newClient(t, server.address);
  const subscription = client.subscribe(stream);
  await next(subscription, 'caughtUp');
  await client.publish({ ...stream, ephemeral: true });
  await next(subscription, 'frame');
  const drained = server.drain();
  const { error, retryIn } = await next(subscription, 'interrupted');
  assert.deepEqual([error.code, error.reason], ['UNAVAILABLE', 'DRAINING']);
  assert.ok(retryIn >= error.retryIn!, 'the wait is at least what the server asks for');
  await drained;
  await server.start();
  await next(subscription, 'subscribed');
  const { value } = await subscription.next();
  assert.ok(value?.type === 'gap' && value.reason === 'EPHEMERAL_MAYBE_MISSED');
});

test('wires that are cut at any moment cost no frame and repeat none', async (t) => {
  const server = await Server.start(t);
  const wires = await Promise.all([1, 2, 3, 4].map(() => Proxy.start(t, server.address)));
  const [a, b, c, d] = wires.map(({ address }) => address) as [string, string, string, string];
  const [publisher, subscriber] = [newClient(t, [a, b]), newClient(t, [c, d])];
  const subscription = subscriber.subscribe(stream);
  let cuts = 0;
  const cutting = setInterval(() => {
    wires[cuts++ % wires.length]!.cut();
    if (cuts === 60) {
      clearInterval(cutting); // on a slow machine nothing would come between two cuts
    }
  }, 17); // about as long as a few frames take, so that cuts fall everywhere
  t.after(() => clearInterval(cutting));
  const publishing = publish(publisher, 1, 300);
  assert.deepEqual(await payloads(subscription, 300), numbers(1, 300));
  await publishing;
  assert.ok(cuts > 10, `${cuts} cuts`);
  assert.equal(subscription.position!.sequence, 300n);
});

test('a subscription goes on with another target when its own dies', async (t) => {
  const server = await Server.start(t);
  const wires = [await Proxy.start(t, server.address), await Proxy.start(t, server.address)];
  const client = newClient(t, wires.map(({ address }) => address));
  const subscription = client.subscribe(stream);
  await publish(client, 1, 1);
  assert.deepEqual(await payloads(subscription, 1), ['1']);
  const used = wires.find(({ received }) => received > 0)!;
  used.close();
  await publish(client, 2, 2);
  assert.deepEqual(await payloads(subscription, 1), ['2']);
  assert.ok(wires.every(({ received }) => received > 0));
});

test('a subscription to which nothing comes any more goes on with another target', async (t) => {
  const server = await Server.start(t);
  const wires = [await Proxy.start(t, server.address), await Proxy.start(t, server.address)];
  const client = newClient(t, wires.map(({ address }) => address), { idleTimeout: 300 });
  const subscription = client.subscribe(stream);
  await next(subscription, 'caughtUp');
  const publisher = newClient(t, server.address);
  wires.find(({ received }) => received > 0)!.hold();
  await publish(publisher, 1, 1);
  const { error } = await next(subscription, 'interrupted');
  assert.equal(error.message, 'nothing came from the server for 300 ms');
  assert.equal((await subscription.next()).value?.type, 'subscribed', 'the first attempt is at the other target');
  assert.deepEqual(await payloads(subscription, 1), ['1']);
});

test('a call that lasts too long for the server is followed by the next, and no frame is missing', async (t) => {
  const server = await Server.start(t, '--max-stream-age', '1s');
  const client = newClient(t, server.address);
  const subscription = client.subscribe(stream);
  let sequence = 0;
  for (let interruptions = 0; interruptions < 2; ) {
    await publish(client, sequence + 1, sequence + 1);
    for (;;) {
      const { value } = await subscription.next();
      if (value?.type === 'interrupted') {
        assert.equal(value.error.reason, 'MAX_STREAM_AGE');
        interruptions++;
      } else if (value?.type === 'frame') {
        assert.equal(Buffer.from(value.payload).toString(), String(++sequence));
        break;
      }
    }
  }
});

test('who takes nothing gets no more than a little ahead, and holds up nobody', async (t) => {
  const server = await Server.start(t, '--backlog', '5000');
  const wire = await Proxy.start(t, server.address);
  const client = newClient(t, wire.address);
  const publisher = newClient(t, server.address);
  const payload = Buffer.alloc(10_000);
  for (let i = 0; i < 10; i++) {
    await publisher.publishBatch(Array.from({ length: 200 }, () => ({ ...stream, payload })));
  }
  const slow = client.subscribe(stream);
  await next(slow, 'frame');
  // More than is ever on the way for slow would delay what comes after it for all.
  const other = client.subscribe({ channel: 'c', scope: 'other' });
  for (let i = 0; i < 100; i++) {
    await publisher.publish({ channel: 'c', scope: 'other', payload: String(i) });
    assert.deepEqual(await payloads(other, 1), [String(i)]);
  }
  assert.ok(wire.received < 2_000_000, `of 20 MB, ${wire.received} bytes were sent`);
  for (let sequence = 2n; sequence <= 2000n; sequence++) {
    assert.equal((await next(slow, 'frame')).position!.sequence, sequence);
  }
  assert.ok(wire.received > 20_000_000);
});

test('the server is rid of a subscription that has ended, however it did', async (t) => {
  const server = await Server.start(t);
  const client = newClient(t, server.address);
  await publish(client, 1, 3);
  const subscribers = async () => (await call<GetStreamResponse>(t, server, 'getStream', create(GetStreamRequestSchema, stream))).stream!.subscribers;

  const controller = new AbortController();
  const [byClose, bySignal, byBreak] = [client.subscribe(stream), client.subscribe({ ...stream, signal: controller.signal }), client.subscribe(stream)];
  for (const subscription of [byClose, bySignal, byBreak]) {
    await next(subscription, 'caughtUp');
  }
  await until('three subscribers', async () => (await subscribers()) === 3);
  const waiting = [byClose.next(), bySignal.next()];
  await byClose.close();
  controller.abort();
  await publish(client, 4, 4);
  for await (const _ of byBreak) {
    break;
  }
  assert.deepEqual(await Promise.all(waiting), [{ done: true, value: undefined }, { done: true, value: undefined }]);
  await until('no subscriber', async () => (await subscribers()) === 0);

  const byClient = client.subscribe(stream);
  await next(byClient, 'caughtUp');
  const last = byClient.next();
  client.close();
  assert.equal((await last).done, true);
  await until('no subscriber', async () => (await subscribers()) === 0);
  await assert.rejects(client.subscribe(stream).next(), { code: 'FAILED_PRECONDITION', message: 'the client is closed' });
});

// Many subscriptions share a shutdown signal; Node warns of more than ten
// listeners of one target.
test('many subscriptions of one signal cause no warning, and leave no listener', async (t) => {
  const client = newClient(t, (await Server.start(t)).address);
  const warnings: Error[] = [];
  const warn = (warning: Error) => warnings.push(warning);
  process.on('warning', warn);
  t.after(() => process.off('warning', warn));
  const controller = new AbortController();
  const subscriptions = Array.from({ length: 30 }, () => client.subscribe({ ...stream, signal: controller.signal }));
  await Promise.all(subscriptions.map((subscription) => next(subscription, 'caughtUp')));
  await Promise.all(subscriptions.slice(0, 20).map((subscription) => subscription.close()));
  assert.equal(getEventListeners(controller.signal, 'abort').length, 1);
  await Promise.all(subscriptions.slice(20).map((subscription) => subscription.close()));
  assert.equal(getEventListeners(controller.signal, 'abort').length, 0);
  await Promise.all(Array.from({ length: 30 }, () => client.publish(stream, { signal: controller.signal })));
  assert.equal(getEventListeners(controller.signal, 'abort').length, 0);
  await new Promise((resolve) => setImmediate(resolve)); // warnings are told in the next turn
  assert.deepEqual(warnings, []);
});
