import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { newClient, Server } from './server.js';

const run = promisify(execFile);
const root = fileURLToPath(new URL('../../..', import.meta.url));

function directory(t: TestContext): string {
  const path = mkdtempSync(join(tmpdir(), 'fanfare-client-'));
  t.after(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

for (const [kind, name, load] of [
  ['an ES module', 'user.mjs', "import * as client from '@fanfare/client'; import * as protocol from '@fanfare/client/protocol';"],
  ['CommonJS', 'user.cjs', "const client = require('@fanfare/client'); const protocol = require('@fanfare/client/protocol');"],
] as const) {
  test(`${kind} can use the package, and ends when the client is closed`, async (t) => {
    const server = await Server.start(t);
    const user = directory(t);
    mkdirSync(join(user, 'node_modules/@fanfare'), { recursive: true });
    symlinkSync(root, join(user, 'node_modules/@fanfare/client'));
    writeFileSync(join(user, name), `${load}
      (async () => {
        const c = new client.Client({ targets: ${JSON.stringify(server.address)}, channelOptions: { 'grpc.enable_http_proxy': 0 } });
        const stream = { channel: 'c', scope: 's' };
        const subscription = c.subscribe(stream);
        await subscription.next();
        const { position } = await c.publish(stream);
        c.close();
        console.log(position instanceof client.Position, position.sequence, protocol.fanfareServiceDefinition.publish.path);
      })();
    `);
    const { stdout } = await run(process.execPath, [join(user, name)], { timeout: 20_000 });
    assert.equal(stdout, 'true 1n /fanfare.v1.FanfareService/Publish\n');
  });
}

test('the examples publish, and go on where they were', async (t) => {
  const server = await Server.start(t);
  const file = join(directory(t), 'position.txt');
  const example = (name: string, ...args: string[]) =>
    spawn(process.execPath, [join(root, 'build/js/example', name), server.address, 'lobby', ...args], { stdio: ['pipe', 'pipe', 'inherit'] });

  // The subscriber ended at the first frame of a program that publishes something else.
  await newClient(t, server.address).publish({ channel: 'chat/messages', scope: 'lobby', payload: new Uint8Array([0x7b, 0xff]) });
  const others = ['{\ufffd'];
  for (const words of [['hello', 'how are you?'], ['fine'], ['bye']]) {
    const publisher = example('publish.js');
    publisher.stdin.end(words.map((word) => `${word}\n`).join(''));
    const [code] = await once(publisher, 'exit');
    assert.equal(code, 0);

    const subscriber = example('subscribe.js', file);
    const lines = createInterface({ input: subscriber.stdout });
    const got: string[] = [];
    for await (const line of lines) {
      got.push(line);
      if (got.length === others.length + words.length) {
        break;
      }
    }
    assert.deepEqual(got, [...others.splice(0), ...words]);
    subscriber.kill('SIGTERM');
    assert.deepEqual(await once(subscriber, 'exit'), [0, null]);
  }
});

test('the code of the READMEs is that of the examples', () => {
  const examples = readdirSync(join(root, 'example')).map((name) => readFileSync(join(root, 'example', name), 'utf8'));
  for (const readme of [join(root, 'README.md'), join(root, '..', '..', 'README.md')]) {
    const blocks = [...readFileSync(readme, 'utf8').matchAll(/```ts\n(.*?)```/gs)].map(([, code]) => code!);
    assert.ok(blocks.length > 0, readme);
    for (const code of blocks) {
      assert.ok(examples.some((example) => example.includes(code)), code);
    }
  }
});

test('what is installed comes from the public registry, whoever installs it', () => {
  const lock = readFileSync(join(root, 'package-lock.json'), 'utf8');
  for (const [, address] of lock.matchAll(/"resolved": "([^"]*)"/g)) {
    assert.match(address!, /^https:\/\/registry\.npmjs\.org\//);
  }
});
