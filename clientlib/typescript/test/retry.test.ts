import assert from 'node:assert/strict';
import { test } from 'node:test';

import { FanfareError, type Code } from '../src/errors.js';
import { isRepeatable, newFrameOf } from '../src/publish.js';
import { Backoff, withRetries, type Retries } from '../src/retry.js';

test('waits are anything below a bound that doubles up to a maximum', () => {
  const longest = new Backoff({ min: 100, max: 5000 }, () => 1);
  assert.deepEqual(Array.from({ length: 8 }, () => longest.next()), [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
  longest.reset();
  assert.equal(longest.next(), 100);
  const shortest = new Backoff({}, () => 0);
  assert.deepEqual([shortest.next(), shortest.next()], [0, 0]);
});

test('what a server asks for is added to the wait', () => {
  assert.equal(new Backoff({ min: 100 }, () => 0.5).next(2000), 2050);
});

test('waits of many clients are spread', () => {
  const waits = Array.from({ length: 1000 }, () => new Backoff({ min: 100 }).next());
  assert.ok(waits.every((wait) => wait >= 0 && wait < 100));
  for (let tenth = 0; tenth < 10; tenth++) {
    assert.ok(waits.some((wait) => Math.floor(wait / 10) === tenth), `none within ${tenth * 10} to ${tenth * 10 + 10} ms`);
  }
});

test('a durable frame has a key of its own unless it is given one', () => {
  const [one, other] = [newFrameOf({ channel: 'c' }), newFrameOf({ channel: 'c' })];
  assert.match(one.idempotencyKey, /^[0-9a-f-]{36}$/);
  assert.notEqual(one.idempotencyKey, other.idempotencyKey);
  assert.equal(newFrameOf({ channel: 'c', idempotencyKey: 'order-1' }).idempotencyKey, 'order-1');
  assert.equal(newFrameOf({ channel: 'c', idempotencyKey: '' }).idempotencyKey, '');
  assert.equal(newFrameOf({ channel: 'c', ephemeral: true }).idempotencyKey, '');
});

test('frames are repeatable if all durable ones have keys, and there is one', () => {
  const keyed = newFrameOf({ channel: 'c' });
  const bare = newFrameOf({ channel: 'c', idempotencyKey: '' });
  const ephemeral = newFrameOf({ channel: 'c', ephemeral: true });
  assert.ok(isRepeatable([keyed]));
  assert.ok(isRepeatable([keyed, ephemeral]));
  assert.ok(!isRepeatable([keyed, bare]));
  assert.ok(!isRepeatable([ephemeral]));
});

// A lone surrogate was sent as U+FFFD: a frame went to another stream than was said, or
// had another content.
test('what cannot be sent as it is is refused, and the field is named', () => {
  for (const [frame, field] of [
    [{ channel: 'c\ud800' }, 'frame.channel'],
    [{ channel: 'c', scope: '\udc00' }, 'frame.scope'],
    [{ channel: 'c', payload: 'a\ud800b' }, 'frame.payload'],
    [{ channel: 'c', payload: new ArrayBuffer(1) as unknown as string }, 'frame.payload'],
    [{ channel: 'c', contentType: '\ud800' }, 'frame.content_type'],
    [{ channel: 'c', eventType: '\ud800' }, 'frame.event_type'],
    [{ channel: 'c', idempotencyKey: '\ud800' }, 'frame.idempotency_key'],
    [{ channel: 'c', headers: { '\ud800': '' } }, 'frame.headers'],
    [{ channel: 'c', headers: { a: '\ud800' } }, 'frame.headers["a"]'],
  ] as const) {
    assert.throws(() => newFrameOf(frame), { code: 'INVALID_ARGUMENT', reason: 'INVALID_FIELD', field });
  }
  const whole = newFrameOf({ channel: '\u{1f600}', payload: '\u{1f600}' });
  assert.deepEqual([whole.channel, Buffer.from(whole.payload).toString()], ['\u{1f600}', '\u{1f600}']);
  assert.deepEqual(newFrameOf({ channel: 'c', payload: Buffer.from('ab') }).payload, Buffer.from('ab'));
});

// attempts runs withRetries over failures that come one after another; then it
// succeeds. An undefined failure stands for a connection that could not be made.
async function attempts(failures: FanfareError[], options: Partial<Retries> & { unsent?: boolean } = {}) {
  let made = 0;
  const { unsent, ...retries } = options;
  const outcome = await withRetries(async (_, sent) => {
    const failure = failures[made++];
    if (!unsent) {
      sent();
    }
    if (failure) {
      throw failure;
    }
    return 'published';
  }, { repeatable: true, backoff: new Backoff({ min: 0, max: 0 }), timeout: 10_000, signals: [], ...retries }).catch((error: FanfareError) => error);
  return { made, outcome };
}

function failing(code: Code, reason = '', retryIn?: number): FanfareError {
  return new FanfareError(code, 'no', { reason, retryIn });
}

const lost = failing('UNAVAILABLE');
const notStored = [
  failing('UNAVAILABLE', 'STORE_UNAVAILABLE', 1),
  failing('UNAVAILABLE', 'DRAINING', 1),
  failing('RESOURCE_EXHAUSTED', 'PUBLISH_QUEUE_FULL', 1),
  failing('RESOURCE_EXHAUSTED', 'DISK_FULL', 1),
];
const maybeStored = [lost, failing('UNKNOWN', 'OUTCOME_UNKNOWN', 1), failing('INTERNAL'), failing('INTERNAL', 'INTERNAL'), failing('DEADLINE_EXCEEDED'), failing('CANCELLED')];

test('what is repeatable is attempted again after whatever may pass', async () => {
  for (const failure of [...notStored, ...maybeStored]) {
    assert.deepEqual(await attempts([failure, failure]), { made: 3, outcome: 'published' }, `${failure.code} ${failure.reason}`);
  }
});

test('what is not repeatable is attempted again only if nothing was stored', async () => {
  for (const failure of notStored) {
    assert.deepEqual(await attempts([failure, failure], { repeatable: false }), { made: 3, outcome: 'published' });
  }
  assert.deepEqual(await attempts([lost, lost], { repeatable: false, unsent: true }), { made: 3, outcome: 'published' });
  for (const failure of maybeStored) {
    const { made, outcome } = await attempts([failure], { repeatable: false });
    assert.equal(made, 1);
    assert.ok(outcome instanceof FanfareError);
    assert.deepEqual([outcome.code, outcome.reason], ['UNKNOWN', 'OUTCOME_UNKNOWN']);
  }
});

test('what cannot be mended is an error at once', async () => {
  for (const failure of [
    failing('INVALID_ARGUMENT', 'INVALID_FIELD'), failing('ALREADY_EXISTS', 'KEY_CONFLICT'), failing('ABORTED', 'EXPECTATION_FAILED'),
    failing('FAILED_PRECONDITION', 'PARTLY_DUPLICATE'), failing('PERMISSION_DENIED'), failing('UNAUTHENTICATED'), failing('UNIMPLEMENTED'),
    failing('RESOURCE_EXHAUSTED'), // a message too large for the server
  ]) {
    for (const repeatable of [true, false]) {
      assert.deepEqual(await attempts([failure], { repeatable }), { made: 1, outcome: failure });
    }
  }
});

test('a refusal after an attempt that may have been done leaves the outcome open, unless it tells', async () => {
  const { outcome } = await attempts([lost, failing('UNAUTHENTICATED')]);
  assert.equal((outcome as FanfareError).reason, 'OUTCOME_UNKNOWN');
  for (const told of [failing('ABORTED', 'EXPECTATION_FAILED'), failing('ALREADY_EXISTS', 'KEY_CONFLICT'), failing('FAILED_PRECONDITION', 'PARTLY_DUPLICATE')]) {
    assert.equal((await attempts([lost, told])).outcome, told);
  }
});

test('another token is another attempt, at once', async () => {
  const refused = failing('UNAUTHENTICATED', 'TOKEN_EXPIRED');
  let tokens = 1;
  const renews = (error: FanfareError) => error.code === 'UNAUTHENTICATED' && tokens-- > 0;
  const hour = new Backoff({ min: 3_600_000, max: 3_600_000 }, () => 1);
  assert.deepEqual(await attempts([refused], { renews, repeatable: false, backoff: hour }), { made: 2, outcome: 'published' });
  assert.deepEqual(await attempts([refused, refused], { renews }), { made: 1, outcome: refused });
});

test('a publish is given up after its timeout', async () => {
  const never = Array.from({ length: 1000 }, () => notStored[0]!);
  const waiting = new Backoff({ min: 20, max: 20 }, () => 1);
  assert.equal((await attempts(never, { timeout: 50, backoff: waiting })).outcome, never[0]);
  const { outcome } = await attempts([lost, ...never], { timeout: 50, backoff: waiting });
  assert.equal((outcome as FanfareError).reason, 'OUTCOME_UNKNOWN');
});

test('a publish is given up when a signal is aborted, also before it', async () => {
  const controller = new AbortController();
  const outcome = withRetries((signal) => new Promise((_, reject) => {
    signal.addEventListener('abort', () => reject(failing('CANCELLED')));
    controller.abort();
  }), { repeatable: true, backoff: new Backoff(), timeout: 10_000, signals: [undefined, controller.signal] });
  await assert.rejects(outcome, { code: 'CANCELLED' });

  let aborted = false;
  await assert.rejects(withRetries(async (signal) => {
    aborted = signal.aborted;
    throw failing('CANCELLED');
  }, { repeatable: true, backoff: new Backoff(), timeout: 10_000, signals: [AbortSignal.abort()] }), { code: 'CANCELLED' });
  assert.ok(aborted);
});
