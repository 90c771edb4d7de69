import assert from 'node:assert/strict';
import { getEventListeners } from 'node:events';
import { test } from 'node:test';

import { FanfareError, publish } from '../fanfare.js';
import { World } from './world.js';

const frame = { channel: 'chat/messages', scope: 'lobby', json: { text: 'hello' } };
const stored = { position: { epoch: '9007199254740993', sequence: '9007199254740994' }, duplicate: false };

/** A publish that goes on; what it came to is outcome(). */
async function begin(frame, options, world = new World()) {
  const settled = publish(frame, options, world).then(
    (value) => ({ value }),
    (error) => ({ error }),
  );
  let result;
  settled.then((r) => (result = r));
  await world.settle();
  return { world, outcome: () => result ?? assert.fail('it has not returned'), pending: () => result === undefined };
}

const sent = (request) => JSON.parse(request.sent).frame;

test('a frame is posted as the protocol has it, and its position comes back exact', async () => {
  const { world, outcome } = await begin({ ...frame, eventType: 'said', headers: { by: 'ann' }, expected: { sequence: 9007199254740993n, epoch: 7n } });
  const request = world.last(1);
  assert.deepEqual([request.method, request.url.href, request.headers], ['POST', 'https://page.example/v1/publish', { 'Content-Type': 'application/json' }]);
  const { idempotencyKey, ...rest } = sent(request);
  assert.match(idempotencyKey, /^[0-9a-f]{32}$/);
  assert.deepEqual(rest, {
    channel: 'chat/messages',
    scope: 'lobby',
    payload: btoa('{"text":"hello"}'),
    contentType: 'application/json',
    eventType: 'said',
    headers: { by: 'ann' },
    ephemeral: false,
    expectedSequence: '9007199254740993',
    expectedEpoch: '7',
  });
  await request.answer(200, stored);
  assert.deepEqual(outcome().value, { position: '9007199254740993-9007199254740994', duplicate: false });
  assert.equal(world.timers, 0);
});

test('payloads of every kind are the same bytes', async () => {
  const bytes = Uint8Array.from({ length: 100_000 }, (_, i) => i % 256);
  for (const [payload, want] of [
    [bytes, bytes],
    [bytes.buffer, bytes],
    ['für 3 €\uFEFF', new TextEncoder().encode('für 3 €\uFEFF')],
    [undefined, new Uint8Array()],
  ]) {
    const { world } = await begin({ channel: 'c', payload });
    assert.deepEqual(Buffer.from(sent(world.last(1)).payload, 'base64'), Buffer.from(want));
    await world.last().answer(200, stored);
  }
  for (const wrong of [{ payload: { text: 'hello' } }, { payload: 'a', json: 'a' }]) {
    const { outcome } = await begin({ channel: 'c', ...wrong });
    assert.ok(outcome().error instanceof TypeError);
  }
});

test('a durable frame whose answer was lost is sent again with its key', async () => {
  const { world, outcome, pending } = await begin(frame);
  const key = sent(world.last(1)).idempotencyKey;
  await world.last().fail();
  await world.pass(100);
  await world.last(2).answer(503, { code: 'unavailable', message: 'no store', reason: 'STORE_UNAVAILABLE', retryIn: 1 });
  await world.pass(1199);
  assert.ok(pending());
  await world.pass(1);
  assert.equal(sent(world.last(3)).idempotencyKey, key);
  await world.last().answer(200, { ...stored, duplicate: true });
  assert.equal(outcome().value.duplicate, true);
});

test('without a key only what was not done is tried again', async () => {
  for (const unkeyed of [{ ...frame, ephemeral: true }, { ...frame, idempotencyKey: '' }]) {
    const { world, outcome } = await begin(unkeyed);
    assert.ok(!sent(world.last(1)).idempotencyKey);
    await world.last().answer(503, { code: 'unavailable', message: 'no store', reason: 'STORE_UNAVAILABLE' });
    await world.pass(100);
    await world.last(2).fail();
    assert.ok(outcome().error instanceof FanfareError);
    assert.equal(outcome().error.reason, 'OUTCOME_UNKNOWN');
    assert.match(outcome().error.message, /Failed to fetch; whether anything was published is unknown/);
    world.last(2);
  }
});

test('a refusal is an error at once, with what the server said', async () => {
  for (const [status, body, want] of [
    [409, { code: 'aborted', message: 'the head is 7-3', reason: 'EXPECTATION_FAILED' }, ['ABORTED', 'EXPECTATION_FAILED', '']],
    [400, { code: 'invalid_argument', message: 'channel is empty', reason: 'INVALID_FIELD', field: 'frame.channel' }, ['INVALID_ARGUMENT', 'INVALID_FIELD', 'frame.channel']],
    [429, { code: 'resource_exhausted', message: 'too large', reason: 'LIMIT_REACHED' }, ['RESOURCE_EXHAUSTED', 'LIMIT_REACHED', '']],
    [413, 'a proxy says no', ['UNKNOWN', '', '']],
  ]) {
    const { world, outcome } = await begin(frame);
    await world.last(1).answer(status, body);
    const { code, reason, field } = outcome().error;
    assert.deepEqual([code, reason, field], want);
  }
});

test('of an attempt whose outcome is unknown a later refusal tells only if it is of the key or the expectation', async () => {
  for (const [body, reason] of [
    [{ code: 'aborted', message: 'the head is 7-3', reason: 'EXPECTATION_FAILED' }, 'EXPECTATION_FAILED'],
    [{ code: 'permission_denied', message: 'no more', reason: 'PERMISSION_DENIED' }, 'OUTCOME_UNKNOWN'],
  ]) {
    const { world, outcome } = await begin(frame);
    await world.last(1).fail();
    await world.pass(100);
    await world.last(2).answer(403, body);
    assert.equal(outcome().error.reason, reason);
  }
});

test('a token is asked for anew once when it is refused', async () => {
  const asked = [];
  const { world, outcome } = await begin(frame, {
    token: async ({ refresh }) => {
      asked.push(refresh);
      return `t${asked.length}`;
    },
  });
  await world.last(1).answer(401, { code: 'unauthenticated', message: 'expired', reason: 'TOKEN_EXPIRED' });
  await world.pass(100);
  assert.equal(world.last(2).headers.Authorization, 'Bearer t2');
  await world.last().answer(401, { code: 'unauthenticated', message: 'expired', reason: 'TOKEN_EXPIRED' });
  assert.deepEqual([outcome().error.reason, asked], ['TOKEN_EXPIRED', [false, true]]);
});

test('a new token is asked for after each refusal, and until there is one, not for ever after', async () => {
  const asked = [];
  const { world, outcome } = await begin(frame, {
    token: async ({ refresh }) => {
      asked.push(refresh);
      if (asked.length === 2) {
        throw new Error('the issuer is away');
      }
      return `t${asked.length}`;
    },
  });
  const refusal = { code: 'unauthenticated', message: 'expired', reason: 'TOKEN_EXPIRED' };
  await world.last(1).answer(401, refusal);
  await world.pass(1000);
  await world.last(2).answer(503, { code: 'unavailable', message: 'no store', reason: 'STORE_UNAVAILABLE' });
  await world.pass(1000);
  await world.last(3).answer(401, refusal);
  await world.pass(1000);
  await world.last(4).answer(200, stored);
  assert.ok(outcome().value);
  assert.deepEqual(asked, [false, true, true, false, true]);
});

// Symptom: an issuer that never answered held a publish for ever, whatever its timeout.
test('a token that does not come does not hold it longer than its time', async () => {
  const token = () => new Promise(() => {});
  const late = await begin(frame, { token, timeout: 2000 });
  await late.world.pass(1999);
  assert.ok(late.pending());
  await late.world.pass(1);
  assert.deepEqual([late.outcome().error.code, late.world.requests.length, late.world.timers], ['DEADLINE_EXCEEDED', 0, 0]);

  const aborting = new AbortController();
  const aborted = await begin(frame, { token, signal: aborting.signal });
  aborting.abort();
  await aborted.world.settle();
  assert.deepEqual([aborted.outcome().error.code, aborted.world.requests.length, aborted.world.timers], ['CANCELLED', 0, 0]);
  assert.equal(getEventListeners(aborting.signal, 'abort').length, 0);
});

test('attempts leave nothing behind while others follow', async () => {
  const world = new World();
  const { fetch } = world;
  let signal;
  world.fetch = (url, init) => {
    signal = init.signal;
    return fetch(url, { ...init, signal: new AbortController().signal });
  };
  const { outcome } = await begin(frame, { token: async () => 't' }, world);
  for (let attempt = 1; attempt <= 5; attempt++) {
    await world.last(attempt).answer(503, { code: 'unavailable', message: 'no store', reason: 'STORE_UNAVAILABLE' });
    await world.pass(5000);
  }
  assert.equal(getEventListeners(signal, 'abort').length, 0);
  await world.last(6).answer(200, stored);
  assert.ok(outcome().value);
});

test('an answer that says why nothing was stored leaves nothing in doubt', async () => {
  for (const reason of ['STORE_UNAVAILABLE', 'DRAINING', 'LIMIT_REACHED', 'NOT_READY']) {
    const { world, outcome } = await begin({ ...frame, ephemeral: true }, { timeout: 2000 });
    await world.last(1).answer(503, { code: 'unavailable', message: 'not now', reason, retryIn: 1 });
    await world.pass(1100);
    await world.last(2).answer(503, { code: 'unavailable', message: 'not now', reason, retryIn: 60 });
    await world.pass(900);
    assert.deepEqual([outcome().error.reason, outcome().error.status], [reason, 503]);
  }
});

test('it ends when its time is over or it is aborted, and says what is known', async () => {
  const { world, outcome, pending } = await begin(frame, { timeout: 2000 });
  await world.pass(1999);
  assert.ok(pending());
  await world.pass(1);
  assert.equal(outcome().error.reason, 'OUTCOME_UNKNOWN');
  assert.ok(world.last(1).aborted);
  assert.equal(world.timers, 0);

  const aborting = new AbortController();
  aborting.abort();
  const late = await begin(frame, { signal: aborting.signal });
  assert.deepEqual([late.outcome().error.code, late.world.requests.length], ['CANCELLED', 0]);

  const refusing = await begin(frame, { timeout: 2000 });
  await refusing.world.last(1).answer(503, { code: 'unavailable', message: 'no store', reason: 'STORE_UNAVAILABLE', retryIn: 5 });
  await refusing.world.pass(2000);
  assert.equal(refusing.outcome().error.reason, 'STORE_UNAVAILABLE', 'nothing was stored for certain');
});

// Symptom: where a portal or a login page stood in between and answered with JSON of its
// own, a frame was said to be published.
test('an answer without a position is not taken for one', async () => {
  const { world, outcome, pending } = await begin(frame);
  await world.last(1).answer(200, {});
  assert.ok(pending());
  await world.pass(100);
  await world.last(2).answer(200, stored);
  assert.ok(outcome().value.position);

  const ephemeral = await begin({ ...frame, ephemeral: true });
  await ephemeral.world.last(1).answer(200, {});
  assert.deepEqual(ephemeral.outcome().value, { position: undefined, duplicate: false });
});

test('another server is reached with a prefix and credentials', async () => {
  const { world } = await begin(frame, { server: 'https://edge.example/fanfare', credentials: 'include' });
  assert.deepEqual([world.last(1).url.href, world.last().credentials], ['https://edge.example/fanfare/v1/publish', 'include']);
  await world.last().answer(200, stored);
});
