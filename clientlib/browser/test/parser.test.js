import assert from 'node:assert/strict';
import { test } from 'node:test';

import { EventStreamParser } from '../fanfare.js';

const utf8 = (text) => new TextEncoder().encode(text);

/** What a parser tells of a stream that comes in parts. */
function parse(parts, lastEventId) {
  const told = [];
  const parser = new EventStreamParser(
    {
      event: ({ type, data, lastEventId }) => told.push({ type, data, lastEventId }),
      id: (id) => told.push({ id }),
      retry: (milliseconds) => told.push({ retry: milliseconds }),
    },
    lastEventId,
  );
  parts.forEach((part) => parser.push(part));
  return told;
}

/** All ways to cut bytes into two parts, and the one into single bytes. */
function* cuts(bytes) {
  for (let at = 0; at <= bytes.length; at++) {
    yield [bytes.subarray(0, at), bytes.subarray(at)];
  }
  yield Array.from(bytes, (_, i) => bytes.subarray(i, i + 1));
}

const lines = [
  ': a comment',
  'retry: 2500',
  'id: 7-0',
  '',
  'id: 7-1',
  'event: placed',
  'data: für 3 €, 𝄞',
  'data',
  'data:  two spaces before this',
  '',
  ':',
  'event: ephemeral',
  'data: {"a": 1}',
  '',
  'id',
  'data: after an empty id',
  '',
  'data: never dispatched: the stream ends before the block does',
];

const told = [
  { retry: 2500 },
  { id: '7-0' },
  { type: 'placed', data: 'für 3 €, 𝄞\n\n two spaces before this', lastEventId: '7-1' },
  { type: 'ephemeral', data: '{"a": 1}', lastEventId: '7-1' },
  { type: 'message', data: 'after an empty id', lastEventId: '' },
];

for (const [name, ending] of Object.entries({ LF: '\n', CR: '\r', CRLF: '\r\n' })) {
  for (const [spaces, write] of Object.entries({
    'a space after colons': (line) => line,
    'no space after colons': (line) => line.replace(/^([^:]+:) (?! )/, '$1'),
  })) {
    test(`lines that end in ${name}, with ${spaces}, are the same events wherever they are cut`, () => {
      const bytes = utf8(lines.map((line) => write(line) + ending).join(''));
      for (const parts of cuts(bytes)) {
        assert.deepEqual(parse(parts), told, `cut after ${parts[0].length} bytes`);
      }
    });
  }
}

test('a byte-order mark is dropped where the stream begins, however it is cut, and only there', () => {
  const bytes = utf8('\uFEFFdata: \uFEFFfirst\n\n\uFEFFdata: a field of another name\n\ndata: last\n\n');
  for (const parts of cuts(bytes)) {
    assert.deepEqual(
      parse(parts).filter(({ type }) => type),
      [
        { type: 'message', data: '\uFEFFfirst', lastEventId: '' },
        { type: 'message', data: 'last', lastEventId: '' },
      ],
      `cut after ${parts[0].length} bytes`,
    );
  }
});

test('bytes that are not UTF-8 become U+FFFD and end nothing', () => {
  const bytes = Uint8Array.from([...utf8('data: a'), 0xff, 0xc3, ...utf8('b\n\ndata: c\n\n')]);
  for (const parts of cuts(bytes)) {
    assert.deepEqual(parse(parts).map(({ data }) => data), ['a\uFFFD\uFFFDb', 'c']);
  }
});

test('empty data is an event, no data is none', () => {
  assert.deepEqual(parse([utf8('data:\n\nevent: placed\n\ndata\ndata\n\n')]), [
    { type: 'message', data: '', lastEventId: '' },
    { id: '' },
    { type: 'message', data: '\n', lastEventId: '' },
  ]);
});

test('an event type does not outlive its block', () => {
  const types = parse([utf8('event: placed\n\ndata: 1\n\nevent: placed\ndata: 2\n\ndata: 3\n\n')]).flatMap(({ type }) => type ?? []);
  assert.deepEqual(types, ['message', 'placed', 'message']);
});

test('an id with U+0000, a retry that is no number, and unknown fields are ignored', () => {
  assert.deepEqual(parse([utf8('id: 1\nid: 2\0\nretry: 1e3\nretry: -1\nretry:\nData: x\n data: x\ndata : x\ndata: 3\n\n')]), [
    { type: 'message', data: '3', lastEventId: '1' },
  ]);
});

test('a parser goes on with the id of the connection before', () => {
  assert.deepEqual(parse([utf8('data: 1\n\n')], '5-5'), [{ type: 'message', data: '1', lastEventId: '5-5' }]);
});

/** The standard, for a stream that is there as a whole. */
function reference(text) {
  const told = [];
  let [data, type, id] = [[], '', ''];
  const whole = text.replace(/^\uFEFF/, '').split(/\r\n|\r|\n/);
  whole.pop(); // What has no end is no line.
  for (const line of whole) {
    if (line === '') {
      told.push(data.length ? { type: type || 'message', data: data.join('\n'), lastEventId: id } : { id });
      [data, type] = [[], ''];
      continue;
    }
    const [, field, value = ''] = /^([^:]*)(?:: ?([^]*))?$/.exec(line);
    if (field === 'data') {
      data.push(value);
    } else if (field === 'event') {
      type = value;
    } else if (field === 'id' && !value.includes('\0')) {
      id = value;
    } else if (field === 'retry' && /^[0-9]+$/.test(value)) {
      told.push({ retry: Number(value) });
    }
  }
  return told;
}

test('random streams, cut at random, are the events of the standard', () => {
  let seed = 20260102;
  const random = (n) => {
    // Marsaglia's xorshift.
    seed ^= seed << 13;
    seed ^= seed >>> 17;
    seed ^= seed << 5;
    return (seed >>> 0) % n;
  };
  const pieces = ['data', 'event', 'id', 'retry', ':', ': ', ' ', '\n', '\n', '\r', '\r\n', '\n\n', '12', 'é', '𝄞', '\uFEFF', '\0', '\u2028', '\u0085', 'x'];
  for (let round = 0; round < 3000; round++) {
    const text = Array.from({ length: 1 + random(30) }, () => pieces[random(pieces.length)]).join('');
    const bytes = utf8(text);
    const parts = [];
    for (let from = 0; from < bytes.length; ) {
      const to = from + random(5);
      parts.push(bytes.subarray(from, to));
      from = to;
    }
    assert.deepEqual(parse(parts), reference(text), JSON.stringify(text));
  }
});

test('a line of a megabyte in small parts is one event', () => {
  const line = utf8(`data: ${'x'.repeat(2 ** 20)}\n\n`);
  const parts = [];
  for (let at = 0; at < line.length; at += 64) {
    parts.push(line.subarray(at, at + 64));
  }
  assert.equal(parse(parts)[0].data.length, 2 ** 20);
});
