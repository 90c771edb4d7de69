import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { TestContext } from 'node:test';

import { Client, type ClientOptions } from '@fanfare/client';
import { fanfareServiceDefinition } from '@fanfare/client/protocol';
import { credentials, makeGenericClientConstructor } from '@grpc/grpc-js';

const patience = 20_000;

// A test that waits for an event that never comes would wait for ever.
setTimeout(() => {
  console.error('the tests of this file have not come to their end in 3 minutes');
  process.exit(1);
}, 180_000).unref();

/** A server on the embedded store, and its data, which outlives its processes. */
export class Server {
  readonly #directory = mkdtempSync(join(tmpdir(), 'fanfare-client-'));
  #child: ChildProcess | undefined;
  /** Where it serves, since it was started last. */
  address = '127.0.0.1:0';

  /** A server that ends with the test, at the latest. */
  constructor(t: TestContext) {
    t.after(() => this.#remove());
  }

  static async start(t: TestContext, ...flags: string[]): Promise<Server> {
    const server = new Server(t);
    await server.start(...flags);
    return server;
  }

  /** A path in the server's directory, for a socket. */
  path(name: string): string {
    return join(this.#directory, name);
  }

  /** Starts a process on the data, at the address of the last one. */
  async start(...flags: string[]): Promise<void> {
    const program = process.env.FANFARE_BIN;
    if (!program) {
      throw new Error('FANFARE_BIN does not name the program fanfare; clientlib/typescript/test.sh builds it');
    }
    const child = spawn(program, [
      'serve', '--data-dir', this.#directory, '--grpc', this.address, '--http', 'off', '--drain-delay', '0', '--color', 'never', ...flags,
    ], { stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, FANFARE_BIN: undefined } }); // it is no flag of the server
    this.#child = child;
    let output = '';
    this.address = await new Promise<string>((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`the server is not ready: ${output}`)), patience);
      child.once('exit', () => {
        clearTimeout(timer);
        reject(new Error(`the server ended: ${output}`));
      });
      for (const stream of [child.stdout, child.stderr]) {
        createInterface({ input: stream }).on('line', (line) => {
          output += `${line}\n`;
          const serving = /^serving on ([^;]+);/.exec(line);
          if (serving) {
            clearTimeout(timer);
            resolve(serving[1]!);
          }
        });
      }
    });
  }

  /** Ends the process at once. */
  kill(): Promise<void> {
    return this.#signal('SIGKILL');
  }

  /** Has the process tell its subscribers where to resume, and end. */
  drain(): Promise<void> {
    return this.#signal('SIGTERM');
  }

  async #signal(signal: NodeJS.Signals): Promise<void> {
    const child = this.#child;
    if (child && child.exitCode === null && child.signalCode === null) {
      const exited = once(child, 'exit');
      child.kill(signal);
      await exited;
    }
  }

  async #remove(): Promise<void> {
    await this.kill();
    rmSync(this.#directory, { recursive: true, force: true });
  }
}

/** A client that is closed with the test. Its waits are short. */
export function newClient(t: TestContext, targets: string | string[], options: Partial<ClientOptions> = {}): Client {
  const client = new Client({
    targets,
    backoff: { min: 10, max: 200 },
    ...options,
    channelOptions: { 'grpc.enable_http_proxy': 0, 'grpc.max_reconnect_backoff_ms': 200, ...options.channelOptions },
  });
  t.after(() => client.close());
  return client;
}

const Stub = makeGenericClientConstructor(fanfareServiceDefinition, 'FanfareService');

/** Makes a call that Client does not have. */
export function call<T>(t: TestContext, server: Server, method: string, request: unknown): Promise<T> {
  const stub = new Stub(server.address, credentials.createInsecure(), { 'grpc.enable_http_proxy': 0 });
  t.after(() => stub.close());
  return new Promise((resolve, reject) => {
    (stub[method] as Function).call(stub, request, (error: Error | null, response: T) => (error ? reject(error) : resolve(response)));
  });
}

/** Asks until the answer is yes. */
export async function until(what: string, isSo: () => boolean | Promise<boolean>): Promise<void> {
  const end = Date.now() + patience;
  while (!(await isSo())) {
    if (Date.now() > end) {
      throw new Error(`it did not come to this in time: ${what}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
