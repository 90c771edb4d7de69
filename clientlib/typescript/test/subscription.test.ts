import assert from 'node:assert/strict';
import { test } from 'node:test';

import { FanfareError, type Code } from '../src/errors.js';
import { GapReason } from '../src/gen/fanfare/v1/fanfare_pb.js';
import { Position } from '../src/position.js';
import type { Start } from '../src/subscription.js';
import { all, caughtUp, closed, Fake, frames, gap, notice, progress, subscribed, told } from './fake.js';

const lost = new FanfareError('UNAVAILABLE', 'the connection is lost');

test('a call that ends is followed by one after the last frame', async () => {
  const server = new Fake(
    [subscribed('7-0', '7-2'), frames('7-1', '7-2'), lost],
    [subscribed('7-2', '7-3', true), frames('7-3'), closed('7-3')],
  );
  assert.deepEqual(await all(server.subscribe()), [
    'subscribed after 7-0', '7-1', '7-2', 'interrupted UNAVAILABLE',
    'subscribed after 7-2, resumed', '7-3', 'closed at 7-3',
  ]);
  assert.deepEqual(server.starts, ['oldest true', 'after 7-2']);
});

test('a call that ends before Subscribed is followed by one with the same start', async () => {
  const server = new Fake([lost], [lost], [subscribed('7-4'), closed('7-4')]);
  await all(server.subscribe({ start: { last: 3 } }));
  assert.deepEqual(server.starts, ['last 3', 'last 3', 'last 3']);
});

test('a subscription from live on resumes where the first call began', async () => {
  const server = new Fake([subscribed('7-4'), lost], [subscribed('7-4', '7-5', true), frames('7-5'), closed('7-5')]);
  await all(server.subscribe({ start: 'live' }));
  assert.deepEqual(server.starts, ['live true', 'after 7-4']);
});

// A broken connection must not withhold a gap: were the position that of
// Subscribed, the second call would begin after it, and nobody would be told.
test('a position of its own stays until a frame or a gap has moved it', async () => {
  const server = new Fake(
    [subscribed('9-4'), lost],
    [subscribed('9-4'), gap('7-2', '9-4', GapReason.EPOCH_CHANGED), closed('9-4')],
  );
  const subscription = server.subscribe({ start: { after: '7-2' } });
  assert.equal(String(subscription.position), '7-2');
  assert.deepEqual(await all(subscription), [
    'subscribed after 9-4', 'interrupted UNAVAILABLE', 'subscribed after 9-4', 'gap EPOCH_CHANGED 7-2 9-4', 'closed at 9-4',
  ]);
  assert.deepEqual(server.starts, ['after 7-2', 'after 7-2']);
});

test('the position is that of what has been returned, within a message too', async () => {
  const server = new Fake([subscribed('7-0'), frames('7-1', '7-2', '7-3'), 'wait']);
  const subscription = server.subscribe();
  assert.equal(subscription.position, undefined);
  for (const position of ['7-0', '7-1', '7-2']) {
    await subscription.next();
    assert.equal(String(subscription.position), position);
  }
  await subscription.close();
  assert.equal(String(subscription.position), '7-2');
});

test('positions beyond 2^53 and up to 2^63 keep every bit', async () => {
  const epoch = (1n << 63n) - 1n;
  const server = new Fake(
    [subscribed(`${epoch}-9007199254740991`), frames(`${epoch}-9007199254740992`, `${epoch}-9007199254740993`), lost],
    [subscribed(`${epoch}-9007199254740993`, undefined, true), frames(`${epoch}-9007199254740994`), closed(`${epoch}-9007199254740994`)],
  );
  const got = await all(server.subscribe());
  assert.deepEqual(got.slice(1, 3), [`${epoch}-9007199254740992`, `${epoch}-9007199254740993`]);
  assert.deepEqual(server.starts, ['oldest true', `after ${epoch}-9007199254740993`]);
});

test('another epoch is no loss as long as the numbering goes on', async () => {
  const server = new Fake([subscribed('7-0'), frames('7-1', '8-2', '8-3'), closed('8-3')]);
  assert.deepEqual(await all(server.subscribe()), ['subscribed after 7-0', '7-1', '8-2', '8-3', 'closed at 8-3']);
});

test('a frame that comes again is dropped', async () => {
  const server = new Fake([subscribed('7-0'), frames('7-1', '7-2'), frames('7-2', '7-1', '7-3'), closed('7-3')]);
  assert.deepEqual(await all(server.subscribe()), ['subscribed after 7-0', '7-1', '7-2', '7-3', 'closed at 7-3']);
});

for (const [what, hole] of [
  ['a frame is missing', frames('7-3')],
  ['a frame of another epoch goes back', frames('8-1')],
  ['the replay ends too early', caughtUp('7-2')],
  ['the stream is closed too early', closed('7-2')],
  ['a heartbeat is ahead', progress('7-2')],
  // The epoch changes when the database restarts, and the numbering goes on.
  ['the replay ends too early, in another epoch', caughtUp('8-2')],
  ['the stream is closed too early, in another epoch', closed('8-2')],
] as const) {
  test(`where ${what}, the next call begins after the last good frame`, async () => {
    const server = new Fake(
      [subscribed('7-0'), frames('7-1'), hole],
      [subscribed('7-1', '7-3', true), frames('7-2', '7-3'), closed('7-3')],
    );
    assert.deepEqual(await all(server.subscribe()), [
      'subscribed after 7-0', '7-1', 'interrupted DATA_LOSS', 'subscribed after 7-1, resumed', '7-2', '7-3', 'closed at 7-3',
    ]);
    assert.deepEqual(server.starts, ['oldest true', 'after 7-1']);
  });
}

// The server cannot resume, says so, and the gap that tells why gets lost: frames that
// continue the numbering by chance are those of another one.
test('frames are not handed on while a gap is due', async () => {
  const server = new Fake(
    [subscribed('7-2', '9-4'), frames('9-3')],
    [subscribed('7-2', '9-4'), gap('7-2', '9-0', GapReason.EPOCH_CHANGED), frames('9-1'), closed('9-1')],
  );
  assert.deepEqual(await all(server.subscribe({ start: { after: '7-2' } })), [
    'subscribed after 7-2', 'interrupted DATA_LOSS',
    'subscribed after 7-2', 'gap EPOCH_CHANGED 7-2 9-0', '9-1', 'closed at 9-1',
  ]);
  assert.deepEqual(server.starts, ['after 7-2', 'after 7-2']);
});

test('frames that are missing five times in a row are an error', async () => {
  const hole = [subscribed('7-0', '7-2', true), frames('7-2')];
  const server = new Fake(hole, hole, hole, hole, hole);
  await assert.rejects(all(server.subscribe()), { code: 'DATA_LOSS', message: 'the frame after 7-0 is 7-2, and no gap was told' });
  assert.equal(server.requests.length, 5);
});

test('a frame before Subscribed is not handed on', async () => {
  const server = new Fake([frames('7-1')], [subscribed('7-0'), frames('7-1'), closed('7-1')]);
  assert.deepEqual(await all(server.subscribe()), ['interrupted DATA_LOSS', 'subscribed after 7-0', '7-1', 'closed at 7-1']);
});

test('a gap moves the position, but for ephemeral frames', async () => {
  const server = new Fake(
    [subscribed('7-5'), gap('7-2', '7-5', GapReason.TRIMMED), frames('7-6', 'ephemeral'), gap('7-6', '7-6', GapReason.EPHEMERAL_MAYBE_MISSED), frames('7-7'), closed('7-7')],
  );
  assert.deepEqual(await all(server.subscribe({ start: { after: '7-2' } })), [
    'subscribed after 7-5', 'gap TRIMMED 7-2 7-5', '7-6', 'ephemeral', 'gap EPHEMERAL_MAYBE_MISSED 7-6 7-6', '7-7', 'closed at 7-7',
  ]);
});

// A server tells of ephemeral frames when it has found out, with the head that it knows
// then: durable frames before that are still to come.
test('a gap of ephemeral frames leaves the position where it is', async () => {
  const server = new Fake(
    [subscribed('7-0', '7-3'), frames('7-1'), gap('7-1', '7-3', GapReason.EPHEMERAL_MAYBE_MISSED), frames('7-2', '7-3'), lost],
    [subscribed('7-3', '7-3', true), closed('7-3')],
  );
  assert.deepEqual(await all(server.subscribe()), [
    'subscribed after 7-0', '7-1', 'gap EPHEMERAL_MAYBE_MISSED 7-1 7-3', '7-2', '7-3', 'interrupted UNAVAILABLE',
    // The stream carries some, though none has come.
    'subscribed after 7-3, resumed', 'gap EPHEMERAL_MAYBE_MISSED 7-3 7-3', 'closed at 7-3',
  ]);
});

test('an unknown reason of a gap is unspecified, and moves the position', async () => {
  const server = new Fake([subscribed('7-5'), gap('7-2', '7-5', 99), frames('7-6'), closed('7-6')]);
  assert.deepEqual((await all(server.subscribe({ start: { after: '7-2' } })))[1], 'gap UNSPECIFIED 7-2 7-5');
});

test('who has seen ephemeral frames is told after an interruption that some may be missing', async () => {
  const server = new Fake(
    [subscribed('7-0'), frames('7-1', 'ephemeral'), lost],
    [lost],
    [subscribed('7-1', '7-1', true), lost],
    [subscribed('7-1', '7-1', true), closed('7-1')],
  );
  assert.deepEqual(await all(server.subscribe()), [
    'subscribed after 7-0', '7-1', 'ephemeral', 'interrupted UNAVAILABLE', 'interrupted UNAVAILABLE',
    'subscribed after 7-1, resumed', 'gap EPHEMERAL_MAYBE_MISSED 7-1 7-1', 'interrupted UNAVAILABLE',
    'subscribed after 7-1, resumed', 'gap EPHEMERAL_MAYBE_MISSED 7-1 7-1', 'closed at 7-1',
  ]);
});

test('a heartbeat, and what only a newer server says, is no event', async () => {
  const heartbeat = notice({ case: 'progress', value: {} });
  const server = new Fake([subscribed('7-0'), heartbeat, frames(), notice({ case: 'status', value: { listening: false } }), closed('7-0')]);
  assert.deepEqual(await all(server.subscribe()), ['subscribed after 7-0', 'not listening', 'closed at 7-0']);
});

test('a call that ends without a reason is resumed', async () => {
  const server = new Fake([subscribed('7-0')], [subscribed('7-0', '7-0', true), closed('7-0')]);
  assert.equal((await all(server.subscribe()))[1], 'interrupted UNAVAILABLE');
});

test('what the server asks to wait comes before the next call, by its status or by Closing', async () => {
  const closing = notice({ case: 'closing', value: { retryIn: { seconds: 0n, nanos: 30_000_000 } } });
  const server = new Fake(
    [subscribed('7-0'), new FanfareError('UNAVAILABLE', '', { reason: 'DRAINING', retryIn: 20 })],
    [subscribed('7-0'), closing, lost],
    [subscribed('7-0'), lost],
    [subscribed('7-0'), closed('7-0')],
  );
  const waits: number[] = [];
  const begun = performance.now();
  for await (const event of server.subscribe()) {
    if (event.type === 'interrupted') {
      waits.push(event.retryIn);
    }
  }
  assert.deepEqual(waits, [20, 30, 0]);
  assert.ok(performance.now() - begun >= 45, 'it waits as long as it says'); // timers may be a millisecond early
});

for (const code of ['INVALID_ARGUMENT', 'NOT_FOUND', 'ALREADY_EXISTS', 'PERMISSION_DENIED', 'UNAUTHENTICATED', 'FAILED_PRECONDITION', 'UNIMPLEMENTED'] satisfies Code[]) {
  test(`${code} ends the subscription at once`, async () => {
    const server = new Fake([new FanfareError(code, 'no')]);
    const subscription = server.subscribe();
    await assert.rejects(subscription.next(), { name: 'FanfareError', code });
    assert.deepEqual(await subscription.next(), { done: true, value: undefined });
    assert.equal(server.requests.length, 1);
  });
}

test('a limit ends the subscription only if waiting cannot help', async () => {
  const server = new Fake(
    [new FanfareError('RESOURCE_EXHAUSTED', '', { reason: 'LIMIT_REACHED', retryIn: 1 })],
    [new FanfareError('RESOURCE_EXHAUSTED', '', { reason: 'LIMIT_REACHED' })],
  );
  const subscription = server.subscribe();
  assert.equal(told((await subscription.next()).value!), 'interrupted RESOURCE_EXHAUSTED LIMIT_REACHED');
  await assert.rejects(subscription.next(), { reason: 'LIMIT_REACHED' });
});

// A subscriber that was too slow is well again by itself, and a server says no delay then.
test('what else is exhausted does not end the subscription', async () => {
  for (const reason of ['SLOW_SUBSCRIBER', '']) {
    const server = new Fake(
      [subscribed('7-0'), frames('7-1'), new FanfareError('RESOURCE_EXHAUSTED', '', { reason })],
      [subscribed('7-1', '7-1', true), closed('7-1')],
    );
    assert.deepEqual((await all(server.subscribe())).slice(2), [
      `interrupted RESOURCE_EXHAUSTED ${reason}`.trimEnd(), 'subscribed after 7-1, resumed', 'closed at 7-1',
    ]);
  }
});

test('a refused token ends the subscription only if there is no other', async () => {
  const expired = new FanfareError('UNAUTHENTICATED', '', { reason: 'TOKEN_EXPIRED' });
  const server = new Fake([subscribed('7-0'), expired], [subscribed('7-0', '7-0', true), expired]);
  let tokens = 1;
  server.renews = () => tokens-- > 0;
  const subscription = server.subscribe();
  await subscription.next();
  assert.equal(told((await subscription.next()).value!), 'interrupted UNAUTHENTICATED TOKEN_EXPIRED');
  await subscription.next();
  await assert.rejects(subscription.next(), { reason: 'TOKEN_EXPIRED' });
});

for (const [how, end] of [
  ['close', (subscription: ReturnType<Fake['subscribe']>, _: AbortController) => subscription.close()],
  ['the signal', (_: ReturnType<Fake['subscribe']>, controller: AbortController) => controller.abort()],
] as const) {
  test(`a next that waits ends by ${how}, and so does the call`, async () => {
    const server = new Fake([subscribed('7-0'), 'wait']);
    const controller = new AbortController();
    const subscription = server.subscribe({ signal: controller.signal });
    await subscription.next();
    const waiting = subscription.next();
    await end(subscription, controller);
    assert.deepEqual(await waiting, { done: true, value: undefined });
    assert.ok(server.signals[0]!.aborted);
  });

  test(`the wait before the next call ends by ${how}`, async () => {
    const server = new Fake([new FanfareError('UNAVAILABLE', '', { retryIn: 3_600_000 })]);
    const controller = new AbortController();
    const subscription = server.subscribe({ signal: controller.signal });
    await subscription.next();
    const waiting = subscription.next();
    await end(subscription, controller);
    assert.deepEqual(await waiting, { done: true, value: undefined });
    assert.equal(server.requests.length, 1);
  });

  test(`frames that have come are not handed on after ${how}`, async () => {
    const server = new Fake([subscribed('7-0'), frames('7-1', '7-2'), 'wait']);
    const controller = new AbortController();
    const subscription = server.subscribe({ signal: controller.signal });
    await subscription.next();
    await subscription.next();
    await end(subscription, controller);
    assert.deepEqual(await subscription.next(), { done: true, value: undefined });
    assert.equal(String(subscription.position), '7-1');
  });
}

test('a signal that is aborted already, or a close before the first event, makes no call', async () => {
  const server = new Fake();
  assert.deepEqual(await all(server.subscribe({ signal: AbortSignal.abort() })), []);
  const subscription = server.subscribe();
  await subscription.close();
  assert.deepEqual(await all(subscription), []);
  assert.equal(server.requests.length, 0);
});

test('break ends the call', async () => {
  const server = new Fake([subscribed('7-0'), frames('7-1', '7-2'), 'wait']);
  for await (const event of server.subscribe()) {
    if (event.type === 'frame') {
      break;
    }
  }
  assert.ok(server.signals[0]!.aborted);
});

test('nothing is taken from the server that was not asked for', async () => {
  const server = new Fake([subscribed('7-0'), frames('7-1'), frames('7-2'), frames('7-3'), 'wait']);
  const subscription = server.subscribe();
  await subscription.next();
  await subscription.next();
  assert.equal(server.taken, 2);
  await subscription.close();
});

test('a start that is no position is refused at once', () => {
  assert.throws(() => new Fake().subscribe({ start: { after: '7' } }), SyntaxError);
});

// null and misspelt words ended in an error about a property of the library's own.
test('a start that is none is refused in words', () => {
  for (const start of ['newest', {}, { after: undefined }, { after: null }, new Position(7n, 1n)] as unknown[] as Start[]) {
    assert.throws(() => new Fake().subscribe({ start }), { name: 'TypeError', message: /^start must be 'oldest'/ }, String(start));
  }
});

test('a name that cannot be sent as it is ends the subscription before its call', async () => {
  const server = new Fake();
  await assert.rejects(server.subscribe({ scope: 's\ud800' }).next(), { code: 'INVALID_ARGUMENT', field: 'scope' });
  assert.deepEqual(server.starts, []);
});
