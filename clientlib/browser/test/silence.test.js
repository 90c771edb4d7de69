import assert from 'node:assert/strict';
import { test } from 'node:test';

import { follow, stream, wire } from './world.js';

const fetching = { transport: 'fetch' };

/** The second look at a connection that was silent comes so much later. */
const secondLook = 500;

/** An answer is awaited for two heartbeats as servers send them by default, or longer. */
const leastForAnswer = 30_000;

/** Follows the stream over EventSource, with the server's first heartbeat. */
async function listen(options, interval = 1000, retryIn = undefined) {
  const all = await follow(stream, options);
  const source = all.world.last(1);
  await source.open();
  const beat = () => source.event('fanfare.heartbeat', { interval_ms: interval, retry_in_ms: retryIn }, '7-1');
  await beat();
  assert.deepEqual(all.take(), ['connecting', 'open']);
  return { ...all, source, beat };
}

test('a connection over which not even heartbeats come is given up', async () => {
  const { world, subscription, take } = await follow(stream, { ...fetching, maxSilence: 3000 });
  await world.last(1).open(wire.id('7-1') + wire.heartbeat(1000));
  for (let i = 0; i < 5; i++) {
    await world.pass(2900);
    await world.last(1).send(': heartbeat\n\n');
  }
  await world.pass(2999 + secondLook);
  assert.deepEqual(take(), ['connecting', 'open']);
  await world.pass(1);
  assert.deepEqual(take(), ['waiting']);
  assert.match(subscription.status.error.message, /nothing came for 3500 ms/);
  assert.ok(world.last(1).aborted);
  await world.pass(100);
  assert.equal(world.last(2).headers['Last-Event-ID'], '7-1');
  await world.pass(leastForAnswer + secondLook);
  assert.deepEqual(take(), ['connecting', 'waiting'], 'nor is an answer waited for without end');
  subscription.close();
});

// Symptom: over EventSource a page whose network had forgotten its connection got nothing
// more, and no error. EventSource does not show comments; heartbeats are asked for as events.
test('an EventSource over which not even heartbeats come is given up, and fetch goes on after the last id', async () => {
  const { world, subscription, take, source, beat } = await listen();
  assert.equal(source.url.searchParams.get('heartbeat'), 'event');
  assert.equal(subscription.position, '7-1', 'a heartbeat has the position with it');
  for (let i = 0; i < 5; i++) {
    await world.pass(2900);
    await beat();
  }
  await world.pass(2900);
  await source.event('message', { stream, position: '7-2', payload: 'two' }, '7-2');
  await world.pass(2999 + secondLook);
  assert.deepEqual(take(), ['frame 7-2 two']);
  await world.pass(1);
  assert.deepEqual(take(), ['waiting']);
  assert.match(subscription.status.error.message, /nothing came for 3500 ms/);
  assert.ok(source.aborted);
  await world.pass(100);
  assert.deepEqual([world.last(2).kind, world.last().headers['Last-Event-ID']], ['fetch', '7-2']);
  await world.last().open(wire.id('7-2') + wire.frame('7-3'));
  assert.deepEqual(take(), ['connecting', 'open', 'frame 7-3 payload 7-3']);
  subscription.close();
});

test('a frame that takes long is no silence over fetch', async () => {
  const { world, subscription, take } = await follow(stream, { ...fetching, maxSilence: 3000 });
  await world.last(1).open(wire.id('7-1') + wire.heartbeat(1000));
  const block = wire.frame('7-2', 'x'.repeat(100));
  for (let i = 0; i < block.length; i += 20) {
    await world.pass(2900);
    await world.last(1).send(block.slice(i, i + 20));
  }
  assert.deepEqual(take(), ['connecting', 'open', `frame 7-2 ${'x'.repeat(100)}`]);
  subscription.close();
});

test('an EventSource that gets no answer, also when it comes back, is given up', async () => {
  const first = await follow(stream, { maxSilence: 3000 });
  await first.world.pass(leastForAnswer + secondLook);
  assert.deepEqual(first.take(), ['connecting', 'waiting']);
  first.subscription.close();

  const { world, subscription, take, source } = await listen();
  await world.pass(2900);
  await source.cut();
  await world.pass(leastForAnswer - 1 + secondLook);
  assert.deepEqual(take(), ['waiting'], 'EventSource may come back');
  await world.pass(1);
  assert.deepEqual([take(), source.aborted], [['waiting'], true]);
  await world.pass(100);
  assert.equal(world.last(2).kind, 'fetch');
  subscription.close();
});

test('an EventSource that tries in vain, and says so, is left to it', async () => {
  const { world, subscription, source } = await listen();
  for (let i = 0; i < 10; i++) {
    await world.pass(2900);
    await source.cut();
  }
  world.last(1);
  assert.ok(!source.aborted);
  subscription.close();
});

// Symptom: after heartbeats of a second each attempt was given up after 3.5, and a page on a
// slow line, or whose server was busy, never came back. Cause: an answer was waited for no
// longer than a heartbeat.
test('an answer may take longer than heartbeats', async () => {
  for (const [maxSilence, late, least] of [
    [undefined, leastForAnswer - 1, 3000],
    [10, leastForAnswer - 1, 2000],
    [10, 100, 2000],
  ]) {
    const { world, subscription, take } = await follow(stream, { ...fetching, maxSilence });
    await world.last(1).open(wire.id('7-1') + wire.heartbeat(1000));
    await world.last(1).end();
    await world.pass(100);
    take();
    await world.pass(late);
    await world.last(2).open();
    await world.pass(least + secondLook - 1);
    assert.deepEqual(take(), []);
    await world.pass(1);
    assert.deepEqual(take(), ['waiting'], 'once there is an answer, heartbeats count');
    subscription.close();
  }
});

test('an EventSource that is answered late is not given up before it had time to speak', async () => {
  const { world, subscription } = await follow(stream);
  await world.pass(44_900);
  await world.last(1).open();
  await world.pass(15_000);
  await world.last(1).event('fanfare.heartbeat', { interval_ms: 15_000 }, '7-1');
  assert.equal(subscription.status.state, 'open');
  world.last(1);
  subscription.close();
});

// Symptom: a server told a page to come back in two minutes; it came after 46 seconds, or,
// when it was sent away in order, after 166. Cause: the wait was taken for silence, and
// begun anew after it.
test('an EventSource is left the wait that the server asked for', async () => {
  const ways = {
    cut: async () => {},
    drained: (source) => source.event('fanfare.reconnect', { reason: 'DRAINING', retry_in_ms: 120_000 }, '7-1'),
  };
  for (const [name, end] of Object.entries(ways)) {
    const { world, subscription, take, source } = await listen({}, 1000, name === 'cut' ? 120_000 : 4000);
    await end(source);
    await source.cut();
    await world.pass(120_000 + leastForAnswer - 1 + secondLook);
    assert.deepEqual(take(), ['waiting'], name);
    await world.pass(1);
    assert.deepEqual(take(), ['waiting'], name);
    assert.equal(subscription.status.retryIn, 100, `${name}: it has waited`);
    subscription.close();

    const other = await listen({}, 1000, name === 'cut' ? 120_000 : 4000);
    await end(other.source);
    await other.source.cut();
    await other.world.pass(50_000);
    await other.source.cut(true);
    assert.equal(other.subscription.status.retryIn, 70_100, `${name}: the rest is waited`);
    other.subscription.close();
  }
});

test('an open connection that falls silent is waited after like one that ends', async () => {
  const { world, subscription } = await listen({}, 1000, 4000);
  await world.pass(3000 + secondLook);
  assert.equal(subscription.status.retryIn, 4100);
  subscription.close();
});

test('three heartbeats are waited for, whatever their interval is', async () => {
  for (const [interval, want] of [
    [200, 600],
    [60_000, 180_000],
    [undefined, 45_000],
  ]) {
    const { world, subscription, take } = await follow(stream, fetching);
    await world.last(1).open(wire.id('7-1') + (interval ? wire.heartbeat(interval) : ''));
    take();
    await world.pass(want + secondLook - 1);
    assert.deepEqual(take(), [], String(interval));
    await world.pass(1);
    assert.deepEqual(take(), ['waiting'], String(interval));
    subscription.close();
  }
});

test('until the interval is known two heartbeats as they are by default are waited for', async () => {
  const { world, subscription, take } = await follow(stream, { ...fetching, maxSilence: 10 });
  await world.last(1).open(wire.id('7-1'));
  take();
  await world.pass(leastForAnswer - 1 + secondLook);
  assert.deepEqual(take(), []);
  await world.pass(1);
  assert.deepEqual(take(), ['waiting']);
  subscription.close();
});

test('a page that waits for less than two heartbeats waits for two', async () => {
  const { world, subscription, take } = await listen({ maxSilence: 10 });
  await world.pass(1999 + secondLook);
  assert.deepEqual(take(), []);
  await world.pass(1);
  assert.deepEqual(take(), ['waiting']);
  subscription.close();
});

test('a page can wait for ever', async () => {
  const { world, subscription, source } = await listen({ maxSilence: Infinity });
  await world.pass(600_000);
  assert.ok(!source.aborted);
  assert.equal(world.timers, 0, 'and is not woken up for nothing');
  subscription.close();

  const other = await follow(stream, { token: () => new Promise(() => {}), maxSilence: Infinity });
  await other.world.pass(2 ** 31);
  assert.deepEqual(other.take(), ['connecting']);
  other.subscription.close();
});

test('an interval or a wait that cannot be meant is not taken', async () => {
  for (const said of [0, -1, 'soon', null]) {
    const { world, subscription, source } = await listen({}, said, said);
    await world.pass(44_999 + secondLook);
    assert.ok(!source.aborted, String(said));
    await world.pass(1);
    assert.ok(source.aborted, String(said));
    assert.equal(subscription.status.retryIn, 100, String(said));
    subscription.close();
  }
});

// A page that was frozen, or stood at a breakpoint, has its timers fire first and is handed
// what came meanwhile afterwards.
test('a page that did not run itself does not take that for silence', async () => {
  const { world, subscription, take, source, beat } = await listen();
  world.stop(600_000);
  await world.pass(1);
  await source.event('message', { stream, position: '7-2', payload: 'while it stood' }, '7-2');
  await beat();
  await world.pass(2900);
  assert.deepEqual(take(), ['frame 7-2 while it stood']);
  world.last(1);
  world.stop(600_000);
  await world.pass(1 + secondLook);
  assert.deepEqual(take(), ['waiting'], 'nothing had come');
  subscription.close();
});

// The connection is dead when a laptop wakes, and no clock but one has gone on.
test('after a sleep a connection over which nothing comes is given up at the next look', async () => {
  const { world, subscription, take } = await listen({}, 15_000);
  world.sleep(3600_000);
  await world.pass(15_000 + secondLook);
  assert.deepEqual(take(), ['waiting']);
  subscription.close();

  const other = await listen({}, 15_000);
  other.world.sleep(-3600_000);
  await other.world.pass(45_000 + secondLook);
  assert.deepEqual(other.take(), ['waiting'], 'a clock that was set back does not hide a silence');
  other.subscription.close();
});

test('when the page is shown or the network back, a silent connection is given up without waiting for the next look', async () => {
  for (const come of [(world) => world.show(), (world) => world.fire('online')]) {
    const { world, subscription, take, beat } = await listen({}, 15_000);
    await come(world);
    await world.pass(secondLook);
    assert.deepEqual(take(), [], 'it was not silent');
    world.sleep(60_000);
    await come(world);
    await world.pass(secondLook - 1);
    assert.deepEqual(take(), []);
    await beat();
    await world.pass(1_000);
    assert.deepEqual(take(), [], 'it lives');
    world.sleep(60_000);
    await come(world);
    await world.pass(secondLook);
    assert.deepEqual(take(), ['waiting']);
    subscription.close();
  }
});

// Symptom: a page that was shown after a sleep waited once more for a token that could not
// come any more. Cause: only connections were looked at.
test('when the page is shown or the network back, whoever was asked for a token before a sleep is asked again', async () => {
  for (const come of [(world) => world.show(), (world) => world.fire('online')]) {
    const { world, subscription, take } = await follow(stream, { token: () => new Promise(() => {}) });
    take();
    await world.pass(1000);
    world.sleep(60_000);
    await come(world);
    await world.pass(secondLook - 1);
    assert.deepEqual(take(), []);
    await world.pass(1);
    assert.deepEqual(take(), ['waiting']);
    assert.match(subscription.status.error.message, /no address or token came for 61500 ms/);
    subscription.close();
  }
});
