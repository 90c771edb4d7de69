import { once } from 'node:events';
import { connect, createServer, type AddressInfo, type Server as NetServer, type Socket } from 'node:net';
import type { TestContext } from 'node:test';

/** A wire to a server that can be held and cut. */
export class Proxy {
  readonly #listener: NetServer;
  readonly #pairs = new Set<{ near: Socket; far: Socket }>();
  #held = false;
  address = '';
  /** Bytes that came from the server. */
  received = 0;

  private constructor(target: string) {
    const [host, port] = target.split(':') as [string, string];
    this.#listener = createServer((near) => {
      const far = connect(Number(port), host);
      const pair = { near, far };
      this.#pairs.add(pair);
      const end = () => {
        near.destroy();
        far.destroy();
        this.#pairs.delete(pair);
      };
      for (const socket of [near, far]) {
        socket.on('error', end).on('close', end);
      }
      near.pipe(far);
      far.on('data', (chunk: Buffer) => {
        this.received += chunk.length;
        if (!this.#held && !near.write(chunk)) {
          far.pause();
          near.once('drain', () => far.resume());
        }
      });
    });
  }

  static async start(t: TestContext, target: string): Promise<Proxy> {
    const proxy = new Proxy(target);
    proxy.#listener.listen(0, '127.0.0.1');
    await once(proxy.#listener, 'listening');
    proxy.address = `127.0.0.1:${(proxy.#listener.address() as AddressInfo).port}`;
    t.after(() => proxy.close());
    return proxy;
  }

  /** Connections that are open. */
  get open(): number {
    return this.#pairs.size;
  }

  /** From now on nothing of what the server sends arrives. */
  hold(): void {
    this.#held = true;
  }

  /** Cuts all connections; new ones are good again. */
  cut(): void {
    this.#held = false;
    for (const { near, far } of this.#pairs) {
      near.destroy();
      far.destroy();
    }
  }

  /** Cuts all connections, and refuses new ones. */
  close(): void {
    this.cut();
    this.#listener.close();
  }
}
