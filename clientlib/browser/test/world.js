import assert from 'node:assert/strict';
import { webcrypto } from 'node:crypto';

import { Subscription } from '../fanfare.js';

// Node.js 18 has it, and not where browsers have it.
globalThis.crypto ??= webcrypto;

/** A browser whose clock, network and page the test moves. */
export class World {
  base = 'https://page.example/app/';
  window = new EventTarget();
  document = Object.assign(new EventTarget(), { visibilityState: 'visible' });
  /** What random() returns: waits are at their bounds. */
  chance = 1;
  time = 1_000_000;
  /** For how long the machine has slept. */
  slept = 0;
  /** The requests, oldest first. */
  requests = [];
  /** What pages threw. */
  reported = [];
  #timers = new Map();
  #ids = 0;

  now = () => this.time;
  date = () => this.time + this.slept;
  random = () => this.chance;
  reportError = (error) => this.reported.push(error);

  setTimeout = (f, milliseconds) => {
    this.#timers.set(++this.#ids, { f, at: this.time + milliseconds });
    return this.#ids;
  };

  clearTimeout = (id) => this.#timers.delete(id);

  fetch = (url, init) =>
    new Promise((resolve, reject) => {
      init.signal.throwIfAborted();
      const request = new Request(url, init, resolve, reject);
      init.signal.addEventListener('abort', () => request.abort());
      this.requests.push(request);
    });

  get EventSource() {
    const world = this;
    return class extends FakeEventSource {
      constructor(url, init) {
        super(url, init);
        world.requests.push(this);
      }
    };
  }

  /** The last request; there are n now, if n is given. */
  last(n) {
    if (n !== undefined) {
      assert.equal(this.requests.length, n, 'requests were made');
    }
    return this.requests.at(-1);
  }

  /** Lets everything happen that waits for nothing. */
  async settle() {
    // Nothing here does I/O: promises are all that is ever waited for.
    await new Promise(setImmediate);
  }

  /** Moves the clock. */
  async pass(milliseconds) {
    const until = this.time + milliseconds;
    for (;;) {
      await this.settle();
      const due = [...this.#timers].filter(([, { at }]) => at <= until).sort(([, a], [, b]) => a.at - b.at)[0];
      if (!due) {
        break;
      }
      const [id, { f, at }] = due;
      this.#timers.delete(id);
      this.time = Math.max(this.time, at);
      f();
    }
    this.time = until;
  }

  /** Time passes while nothing of the page runs: what is due fires late. */
  stop(milliseconds) {
    this.time += milliseconds;
  }

  /** The machine sleeps: timers and the monotonic clock stand still. */
  sleep(milliseconds) {
    this.slept += milliseconds;
  }

  /** Timers that run. */
  get timers() {
    return this.#timers.size;
  }

  async hide() {
    await this.#show('hidden');
  }

  async show() {
    await this.#show('visible');
  }

  async #show(state) {
    this.document.visibilityState = state;
    await this.fire('visibilitychange', this.document);
  }

  async fire(type, target = this.window) {
    target.dispatchEvent(new Event(type));
    await this.settle();
  }
}

/** A request over fetch. */
class Request {
  kind = 'fetch';
  aborted = false;
  #body;

  constructor(url, { method = 'GET', headers = {}, credentials, body }, resolve, reject) {
    Object.assign(this, { url: new URL(url), method, headers, credentials, sent: body, resolve, reject });
  }

  abort() {
    this.aborted = true;
    const error = new DOMException('aborted', 'AbortError');
    this.reject(error);
    try {
      this.#body?.error(error);
    } catch {
      // It has ended.
    }
  }

  /** Answers with an event stream, and its first bytes. */
  async open(text = '', headers = {}) {
    const body = new ReadableStream({ start: (controller) => (this.#body = controller) });
    this.resolve(new Response(body, { headers: { 'Content-Type': 'text/event-stream; charset=utf-8', ...headers } }));
    await this.send(text);
  }

  async send(text) {
    if (text !== '') {
      this.#body.enqueue(new TextEncoder().encode(text));
    }
    await settle();
  }

  async end() {
    this.#body.close();
    await settle();
  }

  async cut() {
    this.#body.error(new TypeError('network error'));
    await settle();
  }

  async answer(status, body = '', headers = {}) {
    this.resolve(new Response(status === 204 ? null : typeof body === 'string' ? body : JSON.stringify(body), { status, headers }));
    await settle();
  }

  async fail() {
    this.reject(new TypeError('Failed to fetch'));
    await settle();
  }
}

/** An EventSource without a network. */
class FakeEventSource extends EventTarget {
  kind = 'EventSource';
  readyState = 0;
  aborted = false;
  headers = {};

  constructor(url, { withCredentials }) {
    super();
    this.url = new URL(url);
    this.credentials = withCredentials ? 'include' : 'same-origin';
  }

  close() {
    this.readyState = 2;
    this.aborted = true;
  }

  async open() {
    this.readyState = 1;
    this.onopen?.(new Event('open'));
    await settle();
  }

  async event(type, data, lastEventId) {
    this.dispatchEvent(Object.assign(new Event(type), { data: JSON.stringify(data), lastEventId }));
    await settle();
  }

  /** The connection is lost; EventSource comes back unless it gives up. */
  async cut(givesUp = false) {
    this.readyState = givesUp ? 2 : 0;
    this.onerror?.(new Event('error'));
    await settle();
  }
}

const settle = () => new Promise(setImmediate);

/** A subscription in a world, and what it told, in order. */
export async function follow(source, options = {}, world = new World()) {
  const told = [];
  const on = (name, value) => ({
    [name]: (event, subscription) => {
      told.push(value(event));
      options[name]?.(event, subscription);
    },
  });
  const subscription = new Subscription(
    source,
    {
      ...options,
      ...on('onframe', (frame) => `frame ${frame.position ?? 'ephemeral'} ${frame.text}`),
      ...on('ongap', ({ reason, resumeAfter }) => `gap ${reason} ${resumeAfter}`),
      ...on('oncaughtup', ({ position }) => `caught up ${position}`),
      ...on('onclosed', ({ last }) => `closed ${last}`),
      ...on('onstatus', ({ state }) => state),
      ...on('onerror', ({ message }) => `error ${message}`),
    },
    world,
  );
  await world.settle();
  return { world, subscription, told, take: () => told.splice(0) };
}

export const stream = { channel: 'chat/messages', scope: 'lobby' };

/** Blocks as a server sends them. */
export const wire = {
  id: (position) => `id: ${position}\n\n`,
  event: (type, body) => `event: ${type}\ndata: ${JSON.stringify({ stream, ...body })}\n\n`,
  frame: (position, payload = `payload ${position}`, more = {}) =>
    `id: ${position}\ndata: ${JSON.stringify({ stream, position, payload, ...more })}\n\n`,
  ephemeral: (payload) => `data: ${JSON.stringify({ stream, payload, ephemeral: true })}\n\n`,
  gap: (reason, requested, resumeAfter, head = resumeAfter) =>
    wire.event('fanfare.gap', { reason, requested, oldest: '1', head, resume_after: resumeAfter }) +
    (reason === 'EPHEMERAL_MAYBE_MISSED' ? '' : wire.id(resumeAfter)),
  heartbeat: (milliseconds) => `event: fanfare.heartbeat\ndata: {"interval_ms":${milliseconds}}\n\n`,
  caughtUp: (position) => wire.event('fanfare.caught_up', { position }),
};
