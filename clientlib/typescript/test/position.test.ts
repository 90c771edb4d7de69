import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Position } from '@fanfare/client';

test('a position is written and read with every bit', () => {
  for (const text of ['0-0', '7-5', '9223372036854775807-9223372036854775807', '9007199254740993-9007199254740995']) {
    const position = Position.parse(text);
    assert.equal(String(position), text);
    assert.equal(JSON.stringify({ position }), `{"position":"${text}"}`);
    assert.ok(position.equals(Position.parse(text)));
  }
  assert.equal(Position.parse('9007199254740993-1').epoch, 9007199254740993n);
  assert.ok(!Position.parse('7-5').equals(Position.parse('7-6')));
  assert.ok(!Position.parse('7-5').equals(Position.parse('8-5')));
  assert.ok(Position.zero.equals(Position.parse('0-0')));
});

test('what is no position is refused', () => {
  for (const text of ['', '7', '7-', '-5', '7-5-3', '07-5', '7-05', '7--5', '-7-5', '+7-5', ' 7-5', '7-5\n', '7.0-5', '0x7-5', '7-5n', '٧-٥', '99999999999999999999-1']) {
    assert.throws(() => Position.parse(text), SyntaxError, JSON.stringify(text));
  }
  assert.throws(() => Position.parse('9223372036854775808-1'), RangeError);
  assert.throws(() => new Position(1n, -1n), RangeError);
});
