import assert from 'node:assert/strict';
import { test } from 'node:test';

import { follow, stream, wire, World } from './world.js';

const fetching = { transport: 'fetch' };

test('waits before retries grow to a bound, are random, and begin anew once something came', async () => {
  const { world, subscription } = await follow(stream, fetching);
  const waits = [];
  for (let i = 1; i <= 8; i++) {
    await world.last(i).fail();
    waits.push(subscription.status.retryIn);
    await world.pass(subscription.status.retryIn);
  }
  assert.deepEqual(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
  world.chance = 0.5;
  await world.last(9).fail();
  assert.equal(subscription.status.retryIn, 2500);
  await world.pass(2500);
  await world.last(10).open();
  await world.last().end();
  assert.equal(subscription.status.retryIn, 2500, 'a connection over which nothing comes is a failure');
  await world.pass(2500);
  await world.last(11).open(wire.id('7-1'));
  await world.last().end();
  assert.equal(subscription.status.retryIn, 50);
  subscription.close();
});

test('a server says how long to wait', async () => {
  const { world, subscription } = await follow(stream, fetching);
  await world.last(1).open('retry: 4000\n\n' + wire.id('7-1'));
  await world.last().end();
  assert.equal(subscription.status.retryIn, 4100);
  await world.pass(4100);
  await world.last(2).open('retry: 4000\nid: 7-1\n\n' + wire.event('fanfare.reconnect', { reason: 'DRAINING', retry_in_ms: 1500 }));
  await world.last().end();
  assert.equal(subscription.status.retryIn, 1600);
  assert.equal(subscription.status.error.reason, 'DRAINING');
  await world.pass(1600);
  await world.last(3).answer(503, 'busy', { 'Retry-After': '7' });
  assert.equal(subscription.status.retryIn, 7200);
  subscription.close();
});

test('trouble that passes is waited for; what asking again cannot help ends it', async () => {
  for (const status of [408, 425, 429, 500, 502, 503, 504]) {
    const { world, subscription } = await follow(stream, fetching);
    await world.last(1).answer(status, '<html>');
    assert.equal(subscription.status.state, 'waiting', String(status));
    assert.equal(subscription.status.error.status, status);
    subscription.close();
  }
  for (const [status, body, message] of [
    [400, { code: 'invalid_argument', message: 'scope has 256 bytes', reason: 'INVALID_FIELD', field: 'scope' }, 'scope has 256 bytes'],
    [403, 'no', 'the server answered 403'],
    [404, '', 'the server answered 404'],
    [401, { message: 'who are you?' }, 'who are you?'],
  ]) {
    const { world, subscription, told } = await follow(stream, fetching);
    await world.last(1).answer(status, body);
    assert.deepEqual(told.slice(-2), ['ended', `error ${message}`]);
    assert.equal(subscription.status.error.status, status);
    if (status === 400) {
      const { code, reason, field } = subscription.status.error;
      assert.deepEqual([code, reason, field], ['INVALID_ARGUMENT', 'INVALID_FIELD', 'scope']);
    }
    await world.pass(60_000);
    world.last(1);
  }
});

test('an answer that is no event stream, as of a portal in between, is not read as one', async () => {
  const { world, subscription, told } = await follow(stream, fetching);
  await world.last(1).answer(200, wire.frame('7-1'), { 'Content-Type': 'text/html' });
  assert.deepEqual(told, ['connecting', 'waiting']);
  assert.match(subscription.status.error.message, /no event stream but "text\/html"/);
  subscription.close();
});

test('when the network is back, what waits tries at once', async () => {
  const { world, subscription, take } = await follow(stream, fetching);
  await world.last(1).open('retry: 60000\n\n' + wire.id('7-1'));
  await world.last().cut();
  take();
  await world.fire('online');
  assert.equal(world.last(2).headers['Last-Event-ID'], '7-1');
  assert.deepEqual(take(), ['connecting']);
  await world.last().open();
  await world.fire('online');
  world.last(2);
  subscription.close();
});

test('a hidden page keeps its connection by default', async () => {
  const { world, subscription, take } = await follow(stream, fetching);
  await world.last(1).open(wire.id('7-1'));
  take();
  await world.hide();
  await world.pass(40_000);
  await world.last(1).send(wire.frame('7-2'));
  assert.deepEqual(take(), ['frame 7-2 payload 7-2']);
  subscription.close();
});

test('a hidden page can give its connection up after a while, and catches up when it is shown', async () => {
  const { world, subscription, take } = await follow(stream, { ...fetching, pauseWhenHidden: 30_000, maxSilence: Infinity });
  await world.last(1).open(wire.id('7-1'));
  take();
  await world.hide();
  await world.pass(29_000);
  await world.show();
  await world.pass(29_000);
  assert.deepEqual(take(), [], 'it was shown in time');
  await world.hide();
  await world.pass(30_000);
  assert.deepEqual(take(), ['paused']);
  assert.ok(world.last(1).aborted);
  assert.equal(world.timers, 0);
  await world.fire('online');
  world.last(1);
  await world.show();
  assert.equal(world.last(2).headers['Last-Event-ID'], '7-1');
  await world.last().open(wire.frame('7-2'));
  assert.deepEqual(take(), ['connecting', 'open', 'frame 7-2 payload 7-2']);
  subscription.close();
});

test('a page that was paused over EventSource goes on after its position', async () => {
  const { world, subscription } = await follow(stream, { from: 'live' });
  await world.last(1).open();
  await world.last().event('fanfare.caught_up', { stream, position: '7-1' }, '7-1');
  await world.fire('pagehide');
  assert.ok(world.last(1).aborted);
  await world.fire('pageshow');
  assert.deepEqual([world.last(2).kind, world.last().headers['Last-Event-ID']], ['fetch', '7-1']);
  subscription.close();
});

test('a page that is opened hidden connects, and gives up like others', async () => {
  const world = new World();
  world.document.visibilityState = 'hidden';
  const { subscription } = await follow(stream, { ...fetching, pauseWhenHidden: 1000 }, world);
  await world.last(1).open(wire.id('7-1'));
  await world.pass(1000);
  assert.equal(subscription.status.state, 'paused');
  subscription.close();
});

for (const [leaving, coming, target] of [
  ['pagehide', 'pageshow', 'window'],
  ['freeze', 'resume', 'document'],
]) {
  test(`a page holds no connection from ${leaving} to ${coming}`, async () => {
    const { world, subscription, take } = await follow(stream, fetching);
    await world.last(1).open(wire.id('7-1'));
    take();
    await world.fire(leaving, world[target]);
    assert.deepEqual(take(), ['paused']);
    assert.ok(world.last(1).aborted);
    await world.fire(coming, world[target]);
    assert.equal(world.last(2).headers['Last-Event-ID'], '7-1');
    subscription.close();
  });
}

test('EventSource is used where it will do, and comes back by itself', async () => {
  const { world, subscription, take } = await follow(stream, { from: 'live', credentials: 'include' });
  const source = world.last(1);
  assert.deepEqual([source.kind, source.credentials], ['EventSource', 'include']);
  assert.equal(source.url.searchParams.get('from'), 'live');
  await source.open();
  await source.event('fanfare.caught_up', { stream, position: '7-1' }, '7-1');
  await source.event('message', { stream, position: '7-2', payload: 'two' }, '7-2');
  await source.event('message', { stream, payload: 'typing', ephemeral: true }, '7-2');
  await source.cut();
  await world.pass(6_000);
  await source.open();
  await source.event('message', { stream, position: '7-2', payload: 'two' }, '7-2');
  await source.event('message', { stream, position: '7-3', payload: 'three' }, '7-3');
  assert.deepEqual(take(), ['connecting', 'open', 'caught up 7-1', 'frame 7-2 two', 'frame ephemeral typing', 'waiting', 'open', 'frame 7-3 three']);
  world.last(1);
  subscription.close();
  assert.ok(source.aborted);
});

test('why EventSource comes back is told as long as it is true', async () => {
  const { world, subscription } = await follow(stream);
  const source = world.last(1);
  await source.open();
  await source.event('fanfare.reconnect', { reason: 'DRAINING', retry_in_ms: 1 }, '');
  await source.cut();
  assert.equal(subscription.status.error.reason, 'DRAINING');
  await source.open();
  await source.cut();
  assert.deepEqual(subscription.status, { state: 'waiting', listening: true });
  subscription.close();
});

test('without cookies fetch is used, since EventSource cannot leave them out', async () => {
  const { world, subscription } = await follow(stream, { credentials: 'omit' });
  assert.deepEqual([world.last(1).kind, world.last().credentials], ['fetch', 'omit']);
  subscription.close();
});

test('where EventSource gives up for ever, fetch goes on after the last position and says why', async () => {
  const { world, subscription, take } = await follow(stream);
  const source = world.last(1);
  await source.open();
  await source.event('message', { stream, position: '7-2', payload: 'two' }, '7-2');
  await source.cut(true);
  take();
  await world.pass(100);
  assert.equal(world.last(2).kind, 'fetch');
  assert.equal(world.last().headers['Last-Event-ID'], '7-2');
  await world.last().answer(502, 'a proxy without a server');
  await world.pass(200);
  await world.last(3).open(wire.frame('7-3'));
  assert.deepEqual(take(), ['connecting', 'waiting', 'connecting', 'open', 'frame 7-3 payload 7-3']);
  subscription.close();
});

test('where EventSource gives up because of 204, the stream is closed', async () => {
  const { world, take } = await follow(stream, { after: '7-2' });
  assert.equal(world.last(1).url.searchParams.get('after'), '7-2');
  await world.last().cut(true);
  await world.pass(100);
  await world.last(2).answer(204);
  assert.deepEqual(take(), ['connecting', 'waiting', 'connecting', 'closed 7-2', 'ended']);
});

test('a hole over EventSource is resumed over fetch', async () => {
  const { world, subscription, take } = await follow(stream);
  await world.last(1).open();
  await world.last().event('message', { stream, position: '7-2', payload: 'two' }, '7-2');
  await world.last().event('message', { stream, position: '7-4', payload: 'four' }, '7-4');
  assert.deepEqual(take(), ['connecting', 'open', 'frame 7-2 two', 'waiting']);
  assert.ok(world.last().aborted);
  await world.pass(200);
  assert.equal(world.last(2).headers['Last-Event-ID'], '7-2');
  subscription.close();
});

test('a page that comes back does not wait for EventSource', async () => {
  const { world, subscription } = await follow(stream);
  await world.last(1).open();
  await world.last().event('fanfare.caught_up', { stream, position: '7-1' }, '7-1');
  await world.last().cut();
  await world.fire('online');
  assert.ok(world.last(2).kind === 'fetch' && world.requests[0].aborted);
  assert.equal(world.last().headers['Last-Event-ID'], '7-1');
  subscription.close();
});

// Symptom: a page that was hidden, paused, frozen and thawed held a connection, although
// nobody had seen it. Cause: thawing was taken for being shown.
test('a page that is thawed while it is hidden pauses again', async () => {
  const { world, subscription, take } = await follow(stream, { ...fetching, pauseWhenHidden: 1000 });
  await world.hide();
  await world.pass(1000);
  await world.fire('freeze', world.document);
  await world.fire('resume', world.document);
  take();
  await world.pass(1000);
  assert.deepEqual([take(), world.last().aborted, world.timers], [['paused'], true, 0]);
  subscription.close();
});

test('a page that is hidden, left and frozen at once pauses once', async () => {
  const { world, subscription, take } = await follow(stream, { ...fetching, pauseWhenHidden: 0 });
  await world.hide();
  await world.pass(0);
  await world.fire('pagehide');
  await world.fire('freeze', world.document);
  assert.deepEqual(take(), ['connecting', 'paused']);
  subscription.close();
});

// Symptom: while no server was there, a page said every few seconds that it was connected.
// A proxy answers 200 then, with a time and nothing else, so that EventSource comes back.
test('an answer of a proxy in place of a server does not open a subscription', async () => {
  const { world, subscription, take } = await follow(stream);
  const source = world.last(1);
  await source.open();
  await source.cut();
  assert.deepEqual(take(), ['connecting', 'waiting']);
  await source.open();
  assert.deepEqual(take(), []);
  await source.event('fanfare.caught_up', { stream, position: '7-1' }, '7-1');
  assert.deepEqual(take(), ['open', 'caught up 7-1']);
  subscription.close();

  const other = await follow(stream, fetching);
  await other.world.last(1).open('retry: 4000\n\n');
  await other.world.last().end();
  assert.deepEqual(other.take(), ['connecting', 'waiting']);
  await other.world.pass(4100);
  await other.world.last(2).open('retry: 4000\n' + wire.id('7-1'));
  assert.deepEqual(other.take(), ['connecting', 'open'], 'the id of a stream is enough');
  await other.world.last().end();
  await other.world.pass(5_000);
  await other.world.last(3).open(wire.id('7-1') + 'retry: 2000\n' + wire.event('fanfare.reconnect', { reason: 'UNAVAILABLE', retry_in_ms: 2000 }));
  assert.deepEqual(other.take(), ['waiting', 'connecting'], 'a server that has the page come back opens nothing');
  other.subscription.close();
});

test('a wait is told in whole milliseconds', async () => {
  const world = new World();
  world.chance = 1 / 3;
  const { subscription } = await follow(stream, fetching, world);
  await world.last(1).fail();
  assert.equal(subscription.status.retryIn, 33);
  await world.pass(33);
  await world.last(2).answer(503, { message: 'busy', retryIn: 0.0015 });
  assert.equal(subscription.status.error.retryIn, 2);
  subscription.close();
});
