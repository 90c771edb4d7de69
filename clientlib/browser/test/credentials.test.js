import assert from 'node:assert/strict';
import { test } from 'node:test';

import { follow, stream, wire, World } from './world.js';

const fetching = { transport: 'fetch' };

/** For so long an address or a token is waited for at least, the second look included. */
const patience = 30_500;

test('a token goes with each connection, and is asked for anew once when it is refused', async () => {
  const asked = [];
  let tokens = 0;
  const token = async ({ refresh }) => {
    asked.push(refresh);
    return `token-${refresh ? ++tokens : tokens}`;
  };
  const { world, subscription, told } = await follow(stream, { token });
  assert.deepEqual([world.last(1).kind, world.last().headers.Authorization], ['fetch', 'Bearer token-0']);
  await world.last().open(wire.id('7-1'));
  await world.last().send(wire.event('fanfare.reconnect', { reason: 'TOKEN_EXPIRED', retry_in_ms: 0 }));
  await world.last().end();
  await world.pass(100);
  await world.last(2).answer(401);
  assert.equal(world.last(3).headers.Authorization, 'Bearer token-1', 'at once');
  assert.equal(world.last().headers['Last-Event-ID'], '7-1');
  await world.last().open(wire.frame('7-2'));
  await world.last().end();
  await world.pass(100);
  await world.last(4).answer(401);
  await world.last(5).answer(401, { message: 'no more' });
  assert.deepEqual(asked, [false, false, true, false, true]);
  assert.deepEqual(told.slice(-2), ['ended', 'error no more']);
  await world.pass(60_000);
  world.last(5);
  assert.equal(subscription.status.error.status, 401);
});

// Symptom: a page whose token had expired while its network was bad ended for good. Cause:
// the new token could not be had, and the next time the old one was asked for.
test('a token that was refused is asked for anew until there is another', async () => {
  const asked = [];
  const trouble = [() => Promise.reject(new Error('the login server is away')), () => new Promise(() => {}), () => new Promise(() => {})];
  const token = ({ refresh }) => {
    asked.push(refresh);
    return refresh && trouble.length > 0 ? trouble.shift()() : `token-${refresh}`;
  };
  const { world, subscription } = await follow(stream, { token, maxSilence: 3000 });
  await world.last(1).answer(401);
  assert.equal(subscription.status.error.message, 'the login server is away');
  await world.pass(100);
  await world.pass(patience);
  assert.match(subscription.status.error.message, /no address or token came/);
  await world.pass(200);
  await world.fire('pagehide');
  await world.fire('pageshow');
  assert.deepEqual(asked, [false, true, true, true, true]);
  assert.equal(world.last(2).headers.Authorization, 'Bearer token-true');
  await world.last().answer(401, { message: 'no more' });
  assert.equal(subscription.status.state, 'ended');
});

test('a token that cannot be had now is asked for again later', async () => {
  let calls = 0;
  const token = async () => {
    if (++calls < 3) {
      throw new Error('the login server is away');
    }
    return 'good';
  };
  const { world, subscription } = await follow(stream, { token });
  assert.equal(subscription.status.error.message, 'the login server is away');
  assert.equal(world.requests.length, 0);
  await world.pass(100);
  await world.pass(200);
  assert.equal(world.last(1).headers.Authorization, 'Bearer good');
  subscription.close();
});

test('a token that never comes is asked for again', async () => {
  const answers = [];
  const { world, subscription, take } = await follow(stream, { token: () => new Promise((f) => answers.push(f)), maxSilence: 3000 });
  await world.pass(patience - 1);
  assert.deepEqual(take(), ['connecting'], 'a login may take longer than a silence');
  await world.pass(1);
  assert.deepEqual(take(), ['waiting']);
  assert.match(subscription.status.error.message, /no address or token came for 30500 ms/);
  await world.pass(100);
  assert.equal(answers.length, 2);
  answers[0]('late');
  await world.settle();
  assert.equal(world.requests.length, 0);
  answers[1]('good');
  await world.settle();
  assert.equal(world.last(1).headers.Authorization, 'Bearer good');
  subscription.close();
});

test('a token that comes after the end is not used', async () => {
  let resolve;
  const { world, subscription } = await follow(stream, { token: () => new Promise((f) => (resolve = f)) });
  subscription.close();
  resolve('late');
  await world.settle();
  assert.equal(world.requests.length, 0);
});

test('a signed address is renewed before it expires, while the old connection still delivers', async () => {
  const world = new World();
  world.chance = 0;
  const asked = [];
  let answer = [];
  const url = ({ refresh }) => {
    asked.push(refresh);
    return new Promise((resolve, reject) => (answer = [resolve, reject]));
  };
  const sign = (seconds) => `/v1/streams?stream=${encodeURIComponent('chat%2Fmessages/lobby')}&expires=${world.time / 1000 + seconds}&signature=s${asked.length}`;
  const { subscription, take } = await follow({ url }, { maxSilence: Infinity }, world);
  assert.equal(world.requests.length, 0);
  answer[0](sign(100));
  await world.settle();
  assert.equal(world.last(1).url.searchParams.get('signature'), 's1');
  await world.last().open(wire.id('7-1'));
  take();

  await world.pass(49_000);
  assert.equal(asked.length, 1);
  await world.pass(1_000);
  assert.equal(asked.length, 2);
  await world.last(1).send(wire.frame('7-2'));
  assert.deepEqual(take(), ['frame 7-2 payload 7-2']);
  answer[1](new Error('cannot be had now'));
  await world.settle();
  await world.pass(0);
  assert.equal(asked.length, 3, 'it is asked for again');
  assert.deepEqual(take(), [], 'and the connection is still open');
  answer[0](sign(100));
  await world.settle();
  assert.ok(world.requests[0].aborted);
  assert.equal(world.last(2).url.searchParams.get('signature'), 's3');
  assert.equal(world.last().headers['Last-Event-ID'], '7-2');
  await world.last().open(wire.frame('7-3'));
  assert.deepEqual(take(), ['open', 'frame 7-3 payload 7-3']);

  await world.last().end();
  await world.pass(0);
  answer[0](sign(-1));
  await world.settle();
  await world.last(3).answer(401);
  assert.deepEqual(asked, [false, false, false, false, true], 'an address that is refused is renewed once');
  answer[0](sign(-1));
  await world.settle();
  await world.last(4).answer(401);
  assert.equal(subscription.status.state, 'ended');
});

// Symptom: a page whose renewal was never answered asked for no other address, and lost its
// connection when the one at hand expired.
test('a renewal that is never answered is asked for again, while the old connection still delivers', async () => {
  const world = new World();
  world.chance = 0;
  const answers = [];
  const { subscription, take } = await follow({ url: () => new Promise((resolve) => answers.push(resolve)) }, { maxSilence: 3000 }, world);
  const sign = (n) => answers[n](`/v1/streams?stream=${encodeURIComponent('chat%2Fmessages/lobby')}&expires=${world.time / 1000 + 100}&signature=s${n}`);
  sign(0);
  await world.settle();
  await world.last(1).open(wire.id('7-1') + wire.heartbeat(60_000));
  take();
  await world.pass(50_000);
  assert.equal(answers.length, 2);
  await world.last(1).send(wire.heartbeat(60_000));
  await world.pass(119_999);
  assert.equal(answers.length, 2);
  await world.last(1).send(wire.frame('7-2'));
  world.chance = 1;
  await world.pass(1 + patience - 30_000);
  await world.fire('online');
  await world.pass(100);
  assert.equal(answers.length, 3);
  world.chance = 0;
  assert.deepEqual(take(), ['frame 7-2 payload 7-2'], 'and nothing else is told');
  sign(1);
  await world.settle();
  world.last(1);
  sign(2);
  await world.settle();
  assert.equal(world.last(2).url.searchParams.get('signature'), 's2');
  await world.last().open(wire.frame('7-3'));
  await world.pass(49_000);
  assert.deepEqual([take(), answers.length], [['open', 'frame 7-3 payload 7-3'], 3]);
  subscription.close();
  assert.equal(world.timers, 0);
});

test('a page can tell whether to log in or to get another token', async () => {
  for (const reason of ['UNAUTHENTICATED', 'TOKEN_EXPIRED']) {
    const { world, subscription } = await follow(stream, fetching);
    await world.last(1).answer(401, { code: 'unauthenticated', message: 'no', reason });
    assert.equal(subscription.status.error.reason, reason);
  }
});
