import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { FanfareError, type Event, type Subscription } from '@fanfare/client';
import { Metadata, status } from '@grpc/grpc-js';

import { expiresSoon } from '../src/access.js';
import { frames, subscribed, told } from './fake.js';
import { answer, serve, type Publishing, type Subscribing } from './said.js';
import { newClient } from './server.js';

/** A google.rpc.Status with an ErrorInfo. */
function details(reason: string): Buffer {
  const field = (number: number, value: string | Buffer) => Buffer.concat([Buffer.from([(number << 3) | 2, value.length]), Buffer.from(value)]);
  const info = Buffer.concat([field(1, reason), field(2, 'fanfare.dev')]);
  return field(3, Buffer.concat([field(1, 'type.googleapis.com/google.rpc.ErrorInfo'), field(2, info)]));
}

function unauthenticated(reason: string) {
  const metadata = new Metadata();
  metadata.set('grpc-status-details-bin', details(reason));
  return { code: status.UNAUTHENTICATED, details: 'no', metadata };
}

/** A server that takes one token, until it expires: then its calls end, and the next one is good. */
class Guarded {
  good = 'token 1';
  readonly seen: unknown[] = [];
  readonly #calls: Subscribing[] = [];

  start(t: TestContext): Promise<string> {
    return serve(t, {
      publish: (call, done) => (this.#takes(call) ? answer(call, done) : done(unauthenticated('UNAUTHENTICATED'))),
      subscribe: (call) => this.#subscribe(call),
    });
  }

  expire(): void {
    this.good = 'token 2';
    this.#calls.splice(0).forEach((call) => call.emit('error', unauthenticated('TOKEN_EXPIRED')));
  }

  #takes(call: Publishing | Subscribing): boolean {
    const [token] = call.metadata.get('authorization');
    this.seen.push(token);
    return token === `Bearer ${this.good}`;
  }

  #subscribe(call: Subscribing): void {
    if (!this.#takes(call)) {
      call.emit('error', unauthenticated('UNAUTHENTICATED'));
      return;
    }
    this.#calls.push(call);
    const { case: kind, value } = call.request.start;
    const after = kind === 'after' ? value.sequence : 0n;
    call.write(subscribed(`7-${after}`, undefined, kind === 'after'));
    call.write(frames(`7-${after + 1n}`));
  }
}

/** A source of tokens that come one after the other: the next one when that is asked for. */
function source(...tokens: string[]) {
  const asked: boolean[] = [];
  const token = async (refresh: boolean): Promise<string> => {
    asked.push(refresh);
    if (refresh) {
      tokens.shift();
    }
    if (tokens[0] === undefined) {
      throw new Error('there are no more tokens');
    }
    return tokens[0];
  };
  return { asked, token };
}

async function next(subscription: Subscription, type: Event['type']): Promise<string> {
  for (;;) {
    const { value, done } = await subscription.next();
    assert.ok(!done);
    if (value.type === type) {
      return told(value);
    }
  }
}

const frame = { channel: 'c' };

test('a token is sent with each call, and none without a source', async (t) => {
  const server = new Guarded();
  const address = await server.start(t);
  const client = newClient(t, address, { token: () => 'token 1' });
  await client.publish(frame);
  await next(client.subscribe(frame), 'frame');
  assert.deepEqual(server.seen, ['Bearer token 1', 'Bearer token 1']);
  await assert.rejects(newClient(t, address).publish(frame), { code: 'UNAUTHENTICATED', reason: 'UNAUTHENTICATED' });
  assert.equal(server.seen.at(-1), undefined);
});

test('another token is asked for once if one is refused', async (t) => {
  const server = new Guarded();
  const { asked, token } = source('old', 'token 1');
  const client = newClient(t, await server.start(t), { token });
  await client.publish(frame);
  assert.deepEqual(asked, [false, true]);
  assert.deepEqual(server.seen, ['Bearer old', 'Bearer token 1']);
  await client.publish(frame);
  assert.deepEqual(asked, [false, true, false]);
});

test('a second token that is refused is final', async (t) => {
  const address = await new Guarded().start(t);
  for (const call of [
    (client: ReturnType<typeof newClient>) => client.publish(frame),
    (client: ReturnType<typeof newClient>) => next(client.subscribe(frame), 'frame'),
  ]) {
    const { asked, token } = source('old', 'older', 'token 1');
    await assert.rejects(call(newClient(t, address, { token })), { code: 'UNAUTHENTICATED' });
    assert.deepEqual(asked, [false, true]);
  }
});

// Otherwise each would have a token of its own made, whenever one expires.
test('one token is fetched for subscriptions that expire together', async (t) => {
  const server = new Guarded();
  const { asked, token } = source('token 1', 'token 2', 'token 3');
  const client = newClient(t, await server.start(t), { token });
  const subscriptions = Array.from({ length: 5 }, (_, i) => client.subscribe({ channel: 'c', scope: String(i) }));
  const all = (type: Event['type']) => Promise.all(subscriptions.map((subscription) => next(subscription, type)));
  assert.deepEqual(await all('frame'), Array(5).fill('7-1'));
  server.expire();
  assert.deepEqual(await all('interrupted'), Array(5).fill('interrupted UNAUTHENTICATED TOKEN_EXPIRED'));
  assert.deepEqual(await all('frame'), Array(5).fill('7-2'));
  assert.deepEqual(asked, [false, false, false, false, false, true]);
  assert.deepEqual(server.seen.slice(5), Array(5).fill('Bearer token 2'));
});

test('a source that fails ends a publish, and has a subscription try again', async (t) => {
  const address = await new Guarded().start(t);
  await assert.rejects(newClient(t, address, { token: source().token }).publish(frame), (error: unknown) => {
    assert.ok(error instanceof FanfareError);
    assert.deepEqual([error.code, error.reason, error.message], ['UNKNOWN', '', 'get a token: there are no more tokens']);
    return true;
  });
  await assert.rejects(newClient(t, address, { token: (() => undefined) as never }).publish(frame), /the source returned undefined, not a string/);
  let away = true;
  const client = newClient(t, address, {
    token: () => {
      if (away) {
        away = false;
        throw new Error('the issuer is away');
      }
      return 'token 1';
    },
  });
  const subscription = client.subscribe(frame);
  assert.equal(await next(subscription, 'interrupted'), 'interrupted UNKNOWN');
  assert.equal(await next(subscription, 'frame'), '7-1');
});

test('a source that never returns holds nobody up who gives up', async (t) => {
  const client = newClient(t, await new Guarded().start(t), { token: () => new Promise<string>(() => {}) });
  await assert.rejects(client.publish(frame, { timeout: 20 }), { code: 'CANCELLED' });
  const subscription = client.subscribe(frame);
  const waiting = subscription.next();
  client.close();
  assert.deepEqual(await waiting, { done: true, value: undefined });
});

test('a token that expires soon is not sent', async (t) => {
  const jwt = (expires: number) => `e30.${Buffer.from(JSON.stringify({ exp: expires })).toString('base64url')}.c2ln`;
  const now = Date.now() / 1000;
  const server = new Guarded();
  server.good = jwt(now + 3600);
  const { asked, token } = source(jwt(now + 5), server.good);
  await newClient(t, await server.start(t), { token }).publish(frame);
  assert.deepEqual(asked, [false, true]);
  assert.equal(server.seen.length, 1);
  for (const other of ['', 'a', 'a.b.c', 'e30.bnVsbA.c', 'e30.e30.c', 7, jwt(now + 60)]) {
    assert.ok(!expiresSoon(other), String(other));
  }
  assert.ok(expiresSoon(jwt(0)));
});
