import assert from 'node:assert/strict';
import { getEventListeners } from 'node:events';
import { test } from 'node:test';

import { Subscription } from '../fanfare.js';
import { follow, stream, wire, World } from './world.js';

const fetching = { transport: 'fetch' };

test('each durable frame is told once and in order, and the position is after it', async () => {
  const { world, subscription, told, take } = await follow(stream, { ...fetching, last: 2 });
  const request = world.last(1);
  assert.equal(request.url.href, 'https://page.example/v1/streams?stream=chat%252Fmessages%2Flobby&format=json&heartbeat=event&last=2');
  assert.deepEqual(request.headers, {});
  assert.equal(subscription.position, undefined);
  await request.open(wire.id('7-1') + wire.frame('7-2', 'two') + wire.frame('7-2', 'two') + wire.ephemeral('typing'));
  assert.equal(subscription.position, '7-2');
  await request.send(wire.frame('7-3', 'three') + wire.caughtUp('7-3'));
  assert.deepEqual(told, ['connecting', 'open', 'frame 7-2 two', 'frame ephemeral typing', 'frame 7-3 three', 'caught up 7-3']);
  take();
  subscription.close();
  assert.deepEqual(take(), ['ended']);
  assert.ok(request.aborted);
  assert.equal(world.timers, 0);
});

test('a connection that ends is followed by one that goes on after the last position', async () => {
  const { world, subscription, take } = await follow(stream, { ...fetching, from: 'live' });
  await world.last(1).open(wire.id('7-41'));
  await world.last().end();
  take();
  await world.pass(100);
  assert.equal(world.last(2).headers['Last-Event-ID'], '7-41');
  assert.equal(world.last().url.searchParams.get('from'), null, 'live again would miss what came meanwhile');
  await world.last().open(wire.id('7-41') + wire.frame('7-42'));
  await world.last().cut();
  await world.pass(100);
  assert.equal(world.last(3).headers['Last-Event-ID'], '7-42');
  assert.deepEqual(take(), ['connecting', 'open', 'frame 7-42 payload 7-42', 'waiting', 'connecting']);
  subscription.close();
});

test('a page begins after the position that it was made with', async () => {
  const { world, subscription } = await follow(stream, { ...fetching, after: '7-9223372036854775806' });
  assert.equal(subscription.position, '7-9223372036854775806');
  assert.equal(world.last(1).url.searchParams.get('after'), '7-9223372036854775806');
  await world.last().fail();
  await world.pass(100);
  assert.equal(world.last(2).url.searchParams.get('after'), '7-9223372036854775806');
  assert.equal(world.last().headers['Last-Event-ID'], undefined, 'a page that was not here has missed no ephemeral frame');
  await world.last().open(wire.frame('7-9223372036854775807'));
  assert.equal(subscription.position, '7-9223372036854775807');
  subscription.close();
});

test('positions beyond 2^53 are exact', async () => {
  const { world, subscription, take } = await follow(stream, { ...fetching, after: '9007199254740993-9007199254740992' });
  await world.last(1).open(wire.frame('9007199254740993-9007199254740993', 'a') + wire.frame('9007199254740993-9007199254740994', 'b'));
  assert.deepEqual(take().slice(2), ['frame 9007199254740993-9007199254740993 a', 'frame 9007199254740993-9007199254740994 b']);
  subscription.close();
});

test('what comes behind a hole is not told, and is asked for again', async () => {
  const { world, subscription, take } = await follow(stream, fetching);
  await world.last(1).open(wire.id('7-0') + wire.frame('7-1') + wire.frame('7-3') + wire.frame('7-4'));
  assert.deepEqual(take(), ['connecting', 'open', 'frame 7-1 payload 7-1', 'waiting']);
  assert.match(subscription.status.error.message, /7-3 came after 7-1 without a gap/);
  await world.pass(subscription.status.retryIn);
  assert.equal(world.last(2).headers['Last-Event-ID'], '7-1');
  await world.last().open(wire.frame('7-2') + wire.frame('7-3'));
  assert.deepEqual(take(), ['connecting', 'open', 'frame 7-2 payload 7-2', 'frame 7-3 payload 7-3']);
  subscription.close();
});

test('a hole before a notice is one, too', async () => {
  for (const notice of [wire.caughtUp('7-5'), wire.event('fanfare.closed', { last: '7-5' })]) {
    const { world, subscription, take } = await follow(stream, fetching);
    await world.last(1).open(wire.id('7-4') + notice);
    assert.deepEqual(take(), ['connecting', 'open', 'waiting']);
    await world.pass(subscription.status.retryIn);
    assert.equal(world.last(2).headers['Last-Event-ID'], '7-4');
    subscription.close();
  }
});

test('a server that delivers the same hole over and over is left for good', async () => {
  const { world, subscription, told } = await follow(stream, { ...fetching, after: '7-1' });
  for (let i = 1; i <= 5; i++) {
    await world.last(i).open(wire.id('7-1') + wire.frame('7-3'));
    await world.pass(5_000);
  }
  assert.equal(subscription.status.state, 'ended');
  assert.match(told.at(-1), /error frame 7-3 came after 7-1/);
});

test('a server that loses its way now and then is not left', async () => {
  const { world, subscription } = await follow(stream, { ...fetching, after: '7-0' });
  for (let i = 1; i <= 8; i++) {
    await world.last(i).open(wire.frame(`7-${i}`) + wire.frame(`7-${i + 2}`));
    await world.pass(5_000);
  }
  assert.deepEqual([subscription.status.state, subscription.position], ['connecting', '7-8']);
  subscription.close();
});

test('another epoch without a gap is no loss: the server has restarted', async () => {
  const { world, subscription, take } = await follow(stream, { ...fetching, after: '7-1' });
  await world.last(1).open(wire.frame('8-2') + wire.frame('8-3'));
  assert.deepEqual(take().slice(2), ['frame 8-2 payload 8-2', 'frame 8-3 payload 8-3']);
  await world.last().send(wire.frame('9-3'));
  assert.equal(subscription.status.state, 'waiting', 'a sequence again in another epoch is no repetition');
  subscription.close();
});

test('a page that came before the first frame goes on in the numbering that has begun since', async () => {
  const { world, subscription } = await follow(stream, fetching);
  await world.last(1).open(wire.id('0-0') + wire.caughtUp('0-0'));
  assert.equal(subscription.position, '0-0');
  await world.last().end();
  await world.pass(100);
  assert.equal(world.last(2).headers['Last-Event-ID'], '0-0');
  await world.last().open(wire.id('7-0') + wire.caughtUp('7-0') + wire.ephemeral('typing'));
  assert.equal(subscription.position, '7-0');
  await world.last().send(wire.frame('7-1'));
  assert.equal(subscription.position, '7-1');
  subscription.close();
});

test('over EventSource, too, a gap moves the position, although the last id is still the one before', async () => {
  const { world, subscription } = await follow(stream);
  const source = world.last(1);
  await source.open();
  await source.event('message', { stream, position: '5-3', payload: '' }, '5-3');
  await source.event('fanfare.gap', { stream, reason: 'EPOCH_CHANGED', requested: '5-3', oldest: '4', head: '7-9', resume_after: '7-3' }, '5-3');
  assert.equal(subscription.position, '7-3');
  await source.event('message', { stream, position: '7-4', payload: '' }, '7-4');
  assert.equal(subscription.position, '7-4');
  subscription.close();
});

test('a gap is told and moves the position', async () => {
  const gaps = [];
  const { world, subscription, take } = await follow(stream, { ...fetching, after: '7-1', ongap: (gap) => gaps.push(gap) });
  await world.last(1).open(wire.id('7-1') + wire.gap('TRIMMED', '7-1', '7-50', '7-90') + wire.frame('7-51'));
  assert.deepEqual(take().slice(2), ['gap TRIMMED 7-50', 'frame 7-51 payload 7-51']);
  assert.deepEqual(gaps, [{ stream, reason: 'TRIMMED', requested: '7-1', oldest: 1n, head: '7-90', resumeAfter: '7-50' }]);
  await world.last().send(wire.gap('EPHEMERAL_MAYBE_MISSED', '7-51', '7-51') + wire.frame('7-52'));
  assert.deepEqual(take(), ['gap EPHEMERAL_MAYBE_MISSED 7-51', 'frame 7-52 payload 7-52']);
  assert.equal(subscription.position, '7-52');
  subscription.close();
});

test('who waits for a closed stream to begin anew is told of the gap once', async () => {
  const { world, subscription, take } = await follow(stream, { ...fetching, after: '7-1' });
  for (let i = 1; i <= 3; i++) {
    await world.last(i).open(wire.id('0-0') + wire.gap('EPOCH_CHANGED', '0-0', '0-0', '7-9'));
    await world.last().end();
    await world.pass(5_000);
  }
  assert.deepEqual(take().filter((line) => line.startsWith('gap')), ['gap EPOCH_CHANGED 0-0']);
  await world.last(4).open(wire.gap('EPOCH_CHANGED', '0-0', '0-0', '8-3'));
  assert.deepEqual(take().slice(-1), ['gap EPOCH_CHANGED 0-0'], 'a whole numbering came and went');
  await world.last().send(wire.frame('9-1'));
  assert.deepEqual(take(), ['frame 9-1 payload 9-1']);
  subscription.close();
});

test('a closed stream ends the subscription for good', async () => {
  const { world, subscription, take } = await follow(stream, { ...fetching, after: '7-1' });
  await world.last(1).open(wire.frame('7-2') + wire.event('fanfare.closed', { last: '7-2' }));
  assert.deepEqual(take(), ['connecting', 'open', 'frame 7-2 payload 7-2', 'closed 7-2', 'ended']);
  assert.equal(subscription.position, '7-2');
  await world.pass(60_000);
  world.last(1);
});

test('204 says that the stream is closed', async () => {
  const { world, take } = await follow(stream, { ...fetching, after: '7-2' });
  await world.last(1).answer(204);
  assert.deepEqual(take(), ['connecting', 'closed 7-2', 'ended']);
  await world.pass(60_000);
  world.last(1);
});

// Symptom: a page that had closed its subscription was told that another stream is closed.
test('after close from onclosed, of no other stream is told that it is closed', async () => {
  const { world, take } = await follow({ streams: [stream, { channel: 'users' }] }, { ...fetching, after: '7-2,8-3', onclosed: (_, self) => self.close() });
  await world.last(1).answer(204);
  assert.deepEqual(take(), ['connecting', 'closed 7-2', 'ended']);
});

// Symptom: a server that is newer than the page, and tells something that the page does not
// know, was taken for a broken one and left for good.
test('a notice that the page does not know is left out', async () => {
  const { world, subscription, take } = await follow(stream, fetching);
  await world.last(1).open(wire.id('7-1') + 'event: fanfare.weather\ndata: sunny\n\n' + wire.event('fanfare.news', {}) + wire.frame('7-2'));
  assert.deepEqual(take(), ['connecting', 'open', 'frame 7-2 payload 7-2']);
  subscription.close();
});

test('of a listener that is lost and back the status tells', async () => {
  const { world, subscription } = await follow(stream, fetching);
  await world.last(1).open(wire.id('7-1') + wire.event('fanfare.status', { listening: false }));
  assert.deepEqual(subscription.status, { state: 'open', listening: false });
  await world.last().send(wire.event('fanfare.status', { listening: true }));
  assert.deepEqual(subscription.status, { state: 'open', listening: true });
  await world.last().send(wire.event('fanfare.status', { listening: false }));
  await world.last().end();
  await world.pass(5_000);
  await world.last(2).open(wire.id('7-1'));
  assert.deepEqual(subscription.status, { state: 'open', listening: true }, 'another connection says it anew');
  subscription.close();
});

test('a callback that throws is reported, and nothing is lost or told twice', async () => {
  const { world, subscription, take } = await follow(stream, {
    ...fetching,
    onframe: ({ position }) => {
      throw new Error(`not ${position}`);
    },
  });
  await world.last(1).open(wire.id('7-0') + wire.frame('7-1') + wire.frame('7-2'));
  assert.deepEqual(world.reported.map(({ message }) => message), ['not 7-1', 'not 7-2']);
  assert.deepEqual(take(), ['connecting', 'open', 'frame 7-1 payload 7-1', 'frame 7-2 payload 7-2']);
  subscription.close();
});

test('after close, also from a callback, nothing is told', async () => {
  const { world, subscription, take } = await follow(stream, { ...fetching, onframe: (_, self) => self.close() });
  await world.last(1).open(wire.id('7-0') + wire.frame('7-1') + wire.frame('7-2'));
  assert.deepEqual(take(), ['connecting', 'open', 'frame 7-1 payload 7-1', 'ended']);
  assert.equal(subscription.position, '7-1');
  subscription.close();
  await world.fire('online');
  await world.fire('pageshow');
  assert.deepEqual(take(), []);
  world.last(1);
});

test('what is closed at once connects to nobody', async () => {
  const world = new World();
  new Subscription(stream, {}, world).close();
  await world.settle();
  world.last(0);
});

test('after the end it listens to nothing and waits for nothing', async () => {
  const aborting = new AbortController();
  const { world, subscription } = await follow(stream, { ...fetching, pauseWhenHidden: 1000, signal: aborting.signal });
  const listeners = () =>
    [
      ...['online', 'pagehide', 'pageshow'].map((type) => [world.window, type]),
      ...['visibilitychange', 'freeze', 'resume'].map((type) => [world.document, type]),
      [aborting.signal, 'abort'],
    ].map(([target, type]) => getEventListeners(target, type).length);
  assert.deepEqual(listeners(), [1, 1, 1, 1, 1, 1, 1]);
  await world.last(1).open(wire.id('7-1'));
  await world.hide();
  subscription.close();
  assert.deepEqual(listeners(), [0, 0, 0, 0, 0, 0, 0]);
  assert.equal(world.timers, 0);
});

test('an AbortSignal ends it', async () => {
  const aborting = new AbortController();
  const { world, take } = await follow(stream, { ...fetching, signal: aborting.signal });
  await world.last(1).open(wire.id('7-0'));
  aborting.abort();
  assert.deepEqual(take(), ['connecting', 'open', 'ended']);
  assert.ok(world.last(1).aborted);
  const late = await follow(stream, { ...fetching, signal: aborting.signal });
  assert.deepEqual([late.take(), late.subscription.status.state, late.world.requests], [[], 'ended', []]);
});

test('payloads are text, bytes and JSON, whatever they were published as', async () => {
  const frames = [];
  const { world, subscription } = await follow(stream, { ...fetching, onframe: (frame) => frames.push(frame) });
  const body = (more) => `data: ${JSON.stringify({ stream, position: `7-${frames.length + 1}`, ...more })}\n\n`;
  await world.last(1).open(wire.id('7-0'));
  await world.last().send(body({ payload: '{"a":\r"\uFEFFä"}', content_type: 'application/json', event_type: 'placed', headers: { by: 'ann' }, created: '2026-01-02T03:04:05.123456Z' }));
  await world.last().send(body({ payload_base64: 'AP/+gA==', created: '2026-01-02T03:04:05Z' }));
  await world.last().send(body({ payload: '', created: '2026-01-02T03:04:05Z' }));
  await world.last().send(body({ payload_base64: '77u//w==' }));
  const [json, binary, empty, marked] = frames;
  assert.deepEqual(json.json(), { a: '\uFEFFä' });
  assert.deepEqual(json.payload, new TextEncoder().encode('{"a":\r"\uFEFFä"}'));
  assert.deepEqual([json.contentType, json.eventType, json.headers, json.stream], ['application/json', 'placed', { by: 'ann' }, stream]);
  assert.equal(json.created.toISOString(), '2026-01-02T03:04:05.123Z');
  assert.deepEqual(binary.payload, Uint8Array.of(0, 255, 254, 128));
  assert.equal(binary.text, '\0\uFFFD\uFFFD\uFFFD');
  assert.equal(marked.text, '\uFEFF\uFFFD');
  assert.deepEqual([empty.text, empty.payload.length, empty.contentType, empty.headers], ['', 0, '', {}]);
  subscription.close();
});

test('several streams are told over one connection, and resumed together', async () => {
  const [a, b] = [{ channel: 'a/b', scope: '' }, { channel: 'c', scope: 'd&e' }];
  const { world, subscription, take } = await follow({ streams: [{ channel: 'a/b' }, b] }, fetching);
  assert.deepEqual(world.last(1).url.searchParams.getAll('stream'), ['a%2Fb/', 'c/d%26e']);
  const frame = (of, position, ids) => `id: ${ids}\ndata: ${JSON.stringify({ stream: of, position, payload: of.channel })}\n\n`;
  await world.last().open(wire.id('1-4,2-0') + frame(b, '2-1', '1-4,2-1') + frame(a, '1-5', '1-5,2-1'));
  assert.equal(subscription.position, '1-5,2-1');
  await world.last().send(wire.event('fanfare.closed', { stream: b, last: '2-1' }));
  assert.deepEqual(take(), ['connecting', 'open', 'frame 2-1 c', 'frame 1-5 a/b', 'closed 2-1']);
  await world.last().end();
  await world.pass(5_000);
  assert.equal(world.last(2).headers['Last-Event-ID'], '1-5,2-1');
  await world.last().open(wire.id('1-5,2-1') + wire.event('fanfare.closed', { stream: b, last: '2-1' }) + frame(a, '1-6', '1-6,2-1'));
  assert.deepEqual(take(), ['waiting', 'connecting', 'open', 'frame 1-6 a/b'], 'of one close it is told once');
  await world.last().send(wire.event('fanfare.closed', { stream: a, last: '1-6' }));
  assert.deepEqual(take(), ['closed 1-6', 'ended']);
});

test('an address is taken as it is, byte by byte, but for what must be set', async () => {
  const world = new World();
  const { subscription } = await follow('/prefix/v1/streams/chat%2Fmessages/lobby?a=%41+b&format=plain&last=3#here', { ...fetching, after: '7-1' }, world);
  assert.equal(world.last(1).url.href, 'https://page.example/prefix/v1/streams/chat%2Fmessages/lobby?a=%41+b&format=json&heartbeat=event&after=7-1#here');
  await world.last().open(wire.frame('7-2'));
  assert.equal(subscription.position, '7-2');
  subscription.close();
});

// Storage has null where a page has kept nothing yet, and an attribute of a page without
// data is empty.
test('no position is one of null and an empty text, too', async () => {
  for (const after of [null, '', undefined]) {
    const { world, subscription } = await follow(stream, { ...fetching, after });
    assert.equal(world.last(1).url.searchParams.has('after'), false);
    assert.equal(subscription.position, undefined);
    await world.last().open(wire.frame('7-1'));
    assert.equal(subscription.position, '7-1');
    subscription.close();
  }
});

test('the address of a server may end in a slash', async () => {
  for (const server of ['https://edge.example/events', 'https://edge.example/events/', new URL('https://edge.example/events/')]) {
    const { world, subscription } = await follow(stream, { server });
    assert.equal(world.last(1).url.pathname, '/events/v1/streams');
    subscription.close();
  }
});

test('what cannot be meant is refused at once', async () => {
  const world = new World();
  for (const [source, options, message] of [
    [{}, {}, /a source is/],
    [undefined, {}, /a source is/],
    [{ streams: [{ scope: 'x' }] }, {}, /a source is/],
    [stream, { after: '7-1', last: 1 }, /after and last exclude each other/],
    [stream, { after: '7' }, /"7" is no position/],
    [stream, { after: '7-01' }, /"7-01" is no position/],
    [stream, { from: 'now' }, /from is "now"/],
    [stream, { last: 1.5 }, /last is 1.5/],
    [stream, { pauseWhenHidden: 'soon' }, /pauseWhenHidden is soon/],
    [stream, { maxSilence: 0 }, /maxSilence is 0; it is a number of milliseconds above 0/],
    [stream, { transport: 'websocket' }, /transport is "websocket"; it is one of fetch/],
    [stream, { credentials: true }, /credentials is true/],
  ]) {
    await assert.rejects(follow(source, options, world), message);
  }
  assert.equal(world.requests.length, 0);
});
