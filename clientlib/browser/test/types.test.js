import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';

import * as fanfare from '../fanfare.js';

test('the types name what the module exports', async () => {
  const types = await readFile(new URL('../fanfare.d.ts', import.meta.url), 'utf8');
  const named = [...types.matchAll(/^export (?:function|class) (\w+)/gm)].map(([, name]) => name);
  assert.deepEqual(named.sort(), Object.keys(fanfare).sort());
});

test('the package exports the module and its types under its name, and packs them', async () => {
  const { name, main, types, exports, files } = JSON.parse(await readFile(new URL('../package.json', import.meta.url), 'utf8'));
  assert.deepEqual(Object.keys(await import(name)), Object.keys(fanfare));
  assert.deepEqual(exports['.'], { types, default: main });
  assert.deepEqual([main, types], files.map((file) => `./${file}`));
});

test('the types name what instances have', async () => {
  const types = await readFile(new URL('../fanfare.d.ts', import.meta.url), 'utf8');
  for (const [name, instance] of Object.entries({
    Position: fanfare.Position.parse('1-2'),
    Frame: new fanfare.Frame({ payload: '', created: 0 }),
    FanfareError: new fanfare.FanfareError(''),
  })) {
    const body = new RegExp(`^export class ${name}\\b[^]*?^}`, 'm').exec(types)[0];
    const named = [...body.matchAll(/^ {2}(?!private|static)(?:readonly )?(\w+)[:(]/gm)].map(([, member]) => member);
    const inherited = name === 'FanfareError' ? ['cause', 'message', 'stack'] : [];
    const got = [...Object.keys(instance), ...Object.getOwnPropertyNames(fanfare[name].prototype)].filter(
      (member) => !['constructor', 'name', ...inherited].includes(member),
    );
    assert.deepEqual(named.sort(), [...new Set(got)].sort(), name);
  }
});
