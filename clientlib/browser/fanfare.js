// Fanfare's client for web pages. README.md beside this file is its manual, fanfare.d.ts
// has its types. It is one file, however long, since that is what pages need: one request
// and not a chain of them, and a copy that cannot lack a part or have one of another
// version. A page imports what is served, or copies it, as it stands here.

/**
 * Subscribes to one stream or several over one connection. What it returns ends with
 * its close(), with options.signal, when all streams are closed, or with onerror.
 * Callbacks are called later, never before it has returned.
 *
 * @param {import('./fanfare.js').Source} source
 * @param {import('./fanfare.js').SubscribeOptions} [options]
 * @returns {Subscription}
 * @throws {TypeError} if a source or an option cannot be meant
 */
export function subscribe(source, options = {}) {
  return new Subscription(source, options);
}

/** What browsers have, for tests to replace. */
const browser = {
  fetch: (...args) => fetch(...args),
  get EventSource() {
    return globalThis.EventSource;
  },
  setTimeout: (...args) => setTimeout(...args),
  clearTimeout: (id) => clearTimeout(id),
  now: () => performance.now(),
  date: () => Date.now(),
  random: () => Math.random(),
  reportError: (error) => (globalThis.reportError ?? console.error)(error),
  get document() {
    return globalThis.document;
  },
  get window() {
    return globalThis;
  },
  get base() {
    return globalThis.document?.baseURI ?? globalThis.location?.href;
  },
};

// Timers that are longer fire at once.
const longestTimer = 2 ** 31 - 1;

// A server says how often it sends heartbeats. Until it has, this is what it does by default.
const defaultHeartbeat = 15_000;

// Without a word for so many heartbeats a connection is given up; and never for fewer than
// the least, whatever a page asks for, as it would be given up over and over.
const [silentHeartbeats, leastHeartbeats] = [3, 2];

// A page that did not run itself, while it was frozen or its machine slept, is given so
// long to be handed what came meanwhile.
const secondLook = 500;

// Bounds of waits before a retry. Each is anything between nothing and a bound that
// doubles, so that pages that lost a server together do not come back together.
const [minBackoff, maxBackoff] = [100, 5_000];

// So often in a row a server may deliver a stream with a hole.
const maxBreaks = 5;

/** A subscription; see {@link subscribe}. */
export class Subscription {
  #world;
  #options;
  #source;
  // Where each stream stands; undefined until an address says which streams.
  #track;
  // Whether a server has said anything. Until then the page was nowhere, and begins.
  #heard = false;
  // The connection at hand; what another one says is not heard.
  #link;
  // The newest attempt to connect, which becomes the link once it has an address and a
  // token; older ones go on no further.
  #attempt;
  // Milliseconds between heartbeats, once a server has told.
  #heartbeat;
  #status = { state: 'connecting', listening: true };
  // Failures in a row, without a word of a stream in between; and those that were holes.
  #failures = 0;
  #breaks = 0;
  // Whether another credential is to be asked for, after a refusal; and whether one was had,
  // and nothing came since.
  #refresh = false;
  #refreshed = false;
  // EventSource knows the last id and comes back with it by itself; a page cannot give
  // it to another one. Where it does not come back, fetch takes over.
  #byFetch;
  #timers = new Map();
  #ending = new AbortController();

  /** For subscribe(); tests give a world of their own. */
  constructor(source, options, world = browser) {
    this.#world = world;
    this.#options = checkOptions(options);
    this.#source = sourceOf(source, options, world.base);
    // EventSource sends no header, comes back to the same address, and always sends
    // cookies to its own origin.
    const { token, transport, credentials } = options;
    this.#byFetch = Boolean(token || this.#source.renewed || transport || credentials === 'omit' || !world.EventSource);
    if (options.signal?.aborted) {
      this.#status = { state: 'ended', listening: true };
      return;
    }
    this.#watchPage();
    queueMicrotask(() => this.#status.state === 'connecting' && !this.#attempt && this.#connect());
  }

  get position() {
    return this.#track ? this.#track.position : this.#source.start.after;
  }

  get status() {
    return this.#status;
  }

  close() {
    this.#finish();
  }

  #watchPage() {
    const { document, window } = this.#world;
    const on = (target, type, f) => target?.addEventListener?.(type, f, { signal: this.#ending.signal });
    on(this.#options.signal, 'abort', () => this.close());
    on(window, 'online', () => this.#hasten());
    if (!document) {
      return; // a worker, whatever its pages do
    }
    const see = () => this.#see(document.visibilityState !== 'hidden');
    // A page in the back/forward cache, or frozen, must not hold a connection. One that is
    // thawed may still be hidden.
    const leave = () => this.#pause();
    const comeBack = () => {
      this.#resume();
      see();
    };
    on(window, 'pagehide', leave);
    on(window, 'pageshow', comeBack);
    on(document, 'freeze', leave);
    on(document, 'resume', comeBack);
    on(document, 'visibilitychange', see);
    see();
  }

  #see(visible) {
    if (visible) {
      this.#clear('hidden');
      this.#resume();
      this.#hasten();
    } else if (this.#options.pauseWhenHidden !== undefined) {
      this.#after('hidden', this.#options.pauseWhenHidden, () => this.#pause());
    }
  }

  #pause() {
    if (!['paused', 'ended'].includes(this.#status.state)) {
      this.#byFetch = true;
      this.#drop();
      this.#tell('paused');
    }
  }

  #resume() {
    if (this.#status.state === 'paused') {
      this.#connect();
    }
  }

  // Somebody looks, or the network is back: what waits tries at once, and what seems to be
  // open is looked at.
  #hasten() {
    if (this.#status.state === 'waiting') {
      this.#byFetch = true;
      this.#drop();
      this.#connect();
    } else {
      [this.#link, this.#attempt].forEach((link) => link && this.#watch(link));
    }
  }

  // By both clocks: one may stand still while a machine sleeps, the other may be set.
  get #clocks() {
    return [this.#world.now(), this.#world.date()];
  }

  // From now on an answer is awaited, of a server or of whoever gives addresses and tokens.
  #await(link) {
    Object.assign(link, { heard: this.#clocks, answered: false });
    this.#watch(link);
  }

  // Something has come. EventSource may have come back by it.
  #hear(link) {
    link.heard = this.#clocks;
    if (!link.answered) {
      Object.assign(link, { answered: true, error: undefined });
      this.#watch(link);
    }
  }

  // For how many milliseconds nothing has come.
  #silence({ heard }) {
    return Math.max(...this.#clocks.map((clock, i) => clock - heard[i]));
  }

  // For how many it is borne. Before there is an answer no heartbeats come, however short
  // their interval is, and EventSource first waits for as long as the server has said.
  #patience({ answered, retryIn = 0 }) {
    const heartbeat = this.#heartbeat ?? defaultHeartbeat;
    const least = leastHeartbeats * (answered ? heartbeat : Math.max(heartbeat, defaultHeartbeat));
    const { maxSilence = silentHeartbeats * heartbeat } = this.#options;
    return Math.max(maxSilence, least) + (answered ? 0 : retryIn);
  }

  // Looks whether something still comes: a network may vanish without a word. Where
  // EventSource has shown nothing only because a large frame takes long, what follows it
  // does better: over fetch each part counts.
  #watch(link, again = false) {
    const silence = this.#silence(link);
    const left = this.#patience(link) - silence;
    if (left <= 0 && again) {
      this.#fail(link, new FanfareError(`${link.close ? 'nothing' : 'no address or token'} came for ${Math.round(silence)} ms`));
    } else if (left < Infinity) {
      // A timer, too, may have stood still, so the next look is never far away.
      const name = this.#renews(link) ? 'renewal' : 'watch';
      this.#after(name, left > 0 ? Math.min(left, defaultHeartbeat) : secondLook, () => this.#watch(link, left <= 0));
    }
  }

  // Whether it is an attempt to have another connection in place of one that is open.
  #renews(link) {
    return this.#link && this.#link !== link;
  }

  // Gets an address and a token, and then a connection with them. A connection that is
  // open stays until then.
  async #connect() {
    const attempt = (this.#attempt = {});
    this.#await(attempt);
    if (!this.#link) {
      this.#tell('connecting');
    }
    try {
      const why = { refresh: this.#refresh };
      const [url, token] = await Promise.all([this.#source.url(why), this.#options.token?.(why)]);
      if (attempt === this.#attempt) {
        this.#refreshed ||= this.#refresh;
        this.#refresh = false;
        this.#open(attempt, url, token);
      }
    } catch (error) {
      if (attempt === this.#attempt) {
        this.#fail(attempt, FanfareError.of(error));
      }
    }
  }

  #fail(link, error) {
    if (this.#renews(link)) {
      this.#attempt = undefined;
      this.#after('renewal', this.#backoff(), () => this.#connect());
    } else {
      this.#retry(error);
    }
  }

  #open(link, url, token) {
    this.#track ??= new Track(streamsOf(url), this.#source.start.after);
    const resumes = this.#heard && this.#track.begun;
    const headers = {};
    if (token !== undefined) {
      headers.Authorization = `Bearer ${token}`;
    }
    if (resumes) {
      headers['Last-Event-ID'] = this.#track.position;
    }
    this.#link?.close();
    this.#link = link;
    const ofLink = (f) => (arg) => this.#link === link && f(arg);
    const connect = this.#byFetch ? openFetch : openEventSource;
    const { close } = connect(
      this.#world,
      withQuery(url, { format: 'json', heartbeat: 'event', ...(resumes ? {} : this.#source.start) }),
      { headers, credentials: this.#options.credentials },
      {
        heard: ofLink(() => this.#hear(link)),
        id: ofLink((lastEventId) => {
          this.#take(() => this.#takeIds(lastEventId));
          if (lastEventId !== '') {
            // The next event may be that the server has the page come back.
            queueMicrotask(ofLink(() => link.error ?? this.#opened(link)));
          }
        }),
        event: ofLink((event) => this.#take(() => this.#takeEvent(event))),
        retry: ofLink((milliseconds) => (link.retryIn = milliseconds)),
        interrupted: ofLink(() => {
          link.opened = false;
          this.#await(link);
          this.#tell('waiting', { error: link.error });
        }),
        gaveUp: ofLink(() => this.#retry(new FanfareError('EventSource has given up'))),
        refused: ofLink((error) => this.#refuse(error)),
        end: ofLink((error) => this.#retry(link.error ?? error)),
      },
    );
    link.close = close;
    this.#await(link);
    this.#renew(url);
  }

  // Connects with another address before the one at hand expires, if another one can be
  // had. By a clock that is wrong it may have expired already; then the server tells.
  #renew(url) {
    const left = Number(queryOf(url).get('expires')) * 1000 - this.#world.date();
    if (this.#source.renewed && left > 0) {
      this.#after('renewal', left * (0.5 + 0.2 * this.#world.random()), () => this.#connect());
    }
  }

  // Takes what the server says; a server that cannot be believed is left.
  #take(f) {
    try {
      f();
    } catch (error) {
      this.#breaks++;
      if (this.#breaks < maxBreaks) {
        this.#retry(FanfareError.of(error));
      } else {
        this.#finish(FanfareError.of(error));
      }
    }
  }

  // Something has come of a stream. An answer alone does not say that one is delivered: it
  // may be a proxy's, which has EventSource come back while no server is there.
  #opened(link) {
    if (!link.opened) {
      link.opened = true;
      this.#tell('open');
    }
  }

  #takeIds(lastEventId) {
    if (lastEventId !== '') {
      this.#heard = true;
      this.#failures = 0;
      this.#refreshed = false;
      this.#track.takeIds(lastEventId);
    }
  }

  #takeEvent({ type, data, lastEventId }) {
    if (type !== 'message' && !controlEvents.includes(type)) {
      return; // the server is newer than the page
    }
    const body = JSON.parse(data);
    if (body.retry_in_ms >= 0) {
      this.#link.retryIn = body.retry_in_ms; // EventSource does not show what retry says
    }
    if (type === 'fanfare.reconnect') {
      this.#link.error = new FanfareError(`the server ends the connection: ${body.reason}`, { reason: body.reason });
      return;
    }
    this.#opened(this.#link);
    if (!this.#link) {
      return; // a callback has closed the subscription, here and below
    }
    if (type === 'fanfare.heartbeat') {
      this.#heartbeat = body.interval_ms > 0 ? body.interval_ms : undefined;
      this.#watch(this.#link);
    } else {
      this.#takeOf(this.#track.find(body.stream), type, body);
    }
    // After a gap the last id is still the one before it.
    if (this.#link && type !== 'fanfare.gap') {
      this.#takeIds(lastEventId);
    }
  }

  // Takes a frame or a notice of a stream.
  #takeOf(stream, type, body) {
    const track = this.#track;
    switch (type) {
      case 'message':
        if (body.ephemeral) {
          this.#call('onframe', new Frame(body));
        } else if (track.takeFrame(stream, body.position)) {
          this.#breaks = 0;
          this.#call('onframe', new Frame(body));
        }
        break;
      case 'fanfare.gap':
        if (track.takeGap(stream, body)) {
          this.#call('ongap', gapOf(body));
        }
        break;
      case 'fanfare.caught_up':
        track.reach(stream, body.position, type);
        this.#call('oncaughtup', { stream: body.stream, position: body.position });
        break;
      case 'fanfare.status':
        this.#tell(this.#status.state, { listening: body.listening });
        break;
      case 'fanfare.closed':
        track.reach(stream, body.last, type);
        this.#closed(stream, body.last);
        break;
    }
  }

  #closed(stream, last) {
    if (!this.#link) {
      return; // a callback has closed the subscription
    }
    if (!stream.closed) {
      stream.closed = true;
      this.#call('onclosed', { stream: { channel: stream.channel, scope: stream.scope }, last });
    }
    if (this.#track.streams.every(({ closed }) => closed)) {
      this.#finish();
    }
  }

  // The server has answered something else than an event stream.
  #refuse(error) {
    const renewable = this.#options.token || this.#source.renewed;
    if (error.status === 204) {
      for (const stream of this.#track.streams) {
        this.#closed(stream, stream.position?.text);
      }
    } else if (error.status === 401 && renewable && !this.#refreshed) {
      this.#refresh = true;
      this.#drop();
      this.#connect();
    } else if (error.final) {
      this.#finish(error);
    } else {
      this.#retry(error);
    }
  }

  #retry(error) {
    // EventSource has waited already, for as long as there was no answer.
    const waited = this.#link?.answered === false ? this.#silence(this.#link) : 0;
    const asked = error.retryIn ?? Math.max(0, (this.#link?.retryIn ?? 0) - waited);
    this.#byFetch = true;
    this.#drop();
    const retryIn = Math.round(asked + this.#backoff());
    this.#after('retry', retryIn, () => this.#connect());
    this.#tell('waiting', { error, retryIn });
  }

  // Milliseconds to wait now: exponential backoff with full jitter, so that pages that
  // lost a server together do not come back together.
  #backoff() {
    const bound = Math.min(maxBackoff, minBackoff * 2 ** Math.max(this.#failures, this.#breaks));
    this.#failures++;
    return this.#world.random() * bound;
  }

  #finish(error) {
    if (this.#status.state === 'ended') {
      return;
    }
    this.#drop();
    this.#clear('hidden');
    this.#ending.abort();
    this.#tell('ended', { error });
    if (error) {
      this.#call('onerror', error);
    }
  }

  // Leaves the connection, or the attempt to have one.
  #drop() {
    this.#link?.close?.();
    this.#link = this.#attempt = undefined;
    ['retry', 'watch', 'renewal'].forEach((name) => this.#clear(name));
  }

  #tell(state, { error, retryIn, listening } = {}) {
    // What a server says of its listener holds for the connection to it.
    listening ??= state === 'open' ? this.#status.listening : true;
    this.#status = { state, listening, ...(error && { error }), ...(retryIn !== undefined && { retryIn }) };
    this.#call('onstatus', this.#status);
  }

  // A callback that throws is reported as an event listener's is, and changes nothing
  // for the subscription.
  #call(name, event) {
    try {
      this.#options[name]?.(event, this);
    } catch (error) {
      this.#world.reportError(error);
    }
  }

  #after(name, milliseconds, f) {
    this.#clear(name);
    this.#timers.set(name, this.#world.setTimeout(f, Math.min(milliseconds, longestTimer)));
  }

  #clear(name) {
    this.#world.clearTimeout(this.#timers.get(name));
    this.#timers.delete(name);
  }
}

const controlEvents = ['fanfare.gap', 'fanfare.caught_up', 'fanfare.status', 'fanfare.closed', 'fanfare.heartbeat', 'fanfare.reconnect'];

// Both ways to connect tell what comes by the same functions, on.

function openEventSource(world, url, { credentials }, on) {
  const source = new world.EventSource(url, { withCredentials: credentials === 'include' });
  source.onopen = on.heard;
  for (const type of ['message', ...controlEvents]) {
    source.addEventListener(type, (event) => {
      on.heard();
      on.event(event);
    });
  }
  source.onerror = () => (source.readyState === 2 ? on.gaveUp() : on.interrupted());
  return { close: () => source.close() };
}

function openFetch(world, url, { headers, credentials = 'same-origin' }, on) {
  const ending = new AbortController();
  const read = async () => {
    const answer = await world.fetch(url, { headers, credentials, cache: 'no-store', signal: ending.signal });
    if (answer.status !== 200) {
      on.refused(await refusalOf(answer));
      return;
    }
    const type = answer.headers.get('Content-Type') ?? '';
    if (!/^text\/event-stream *(;|$)/i.test(type)) {
      on.refused(new FanfareError(`the answer is no event stream but ${JSON.stringify(type)}`, { status: 200 }));
      return;
    }
    on.heard();
    const parser = new EventStreamParser(on);
    const reader = answer.body.getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      on.heard();
      parser.push(part.value);
    }
    on.end(new FanfareError('the server has ended the connection'));
  };
  read().catch((error) => on.end(FanfareError.of(error)));
  return { close: () => ending.abort() };
}

/**
 * Publishes a frame, and returns when it is committed.
 *
 * @param {import('./fanfare.js').NewFrame} frame
 * @param {import('./fanfare.js').PublishOptions} [options]
 * @returns {Promise<{ position: string | undefined, duplicate: boolean }>}
 */
export async function publish(frame, options = {}, world = browser) {
  const { token, signal, timeout = 30_000 } = options;
  const body = newFrame(frame);
  const over = new AbortController();
  const end = () => over.abort();
  const timer = world.setTimeout(end, Math.min(timeout, longestTimer));
  signal?.addEventListener('abort', end, { once: true });
  if (signal?.aborted) {
    end();
  }
  // Whether an attempt may have been done; then only one with the key may follow.
  let doubtful = false;
  let refresh = false;
  try {
    for (let bound = minBackoff; ; bound = Math.min(maxBackoff, 2 * bound)) {
      let failure;
      let sent = false;
      try {
        over.signal.throwIfAborted();
        const credential = token && (await within(over.signal, token({ refresh })));
        sent = true;
        return await post(world, body, credential, options, over.signal);
      } catch (error) {
        failure = FanfareError.of(error);
      }
      const renew = failure.status === 401 && token && !refresh;
      // A server that gives a reason says by it that nothing was stored, with two exceptions.
      doubtful ||= sent && !failure.final && ['', 'OUTCOME_UNKNOWN', 'INTERNAL'].includes(failure.reason);
      const hopeless = failure.final || (doubtful && !body.frame.idempotencyKey);
      if (!renew && !hopeless && !over.signal.aborted) {
        await sleep(world, (failure.retryIn ?? 0) + world.random() * bound, over.signal);
      }
      if (over.signal.aborted || (hopeless && !renew)) {
        throw outcome(failure, doubtful, over.signal.aborted && !signal?.aborted);
      }
      // A token that could not be had is still to be a new one.
      refresh = Boolean(renew || (refresh && !sent));
    }
  } finally {
    world.clearTimeout(timer);
    signal?.removeEventListener('abort', end);
  }
}

// What is known after the last failure. A refusal of the key or the expectation says of
// earlier attempts, too, that they stored nothing.
function outcome(failure, doubtful, late) {
  if (doubtful && !['KEY_CONFLICT', 'EXPECTATION_FAILED', 'OUTCOME_UNKNOWN'].includes(failure.reason)) {
    const message = `${failure.message}; whether anything was published is unknown`;
    return new FanfareError(message, { status: failure.status, code: 'UNKNOWN', reason: 'OUTCOME_UNKNOWN', cause: failure });
  }
  if (failure.cause?.name === 'AbortError') {
    const code = late ? 'DEADLINE_EXCEEDED' : 'CANCELLED';
    return new FanfareError(late ? 'there was no time left' : 'aborted', { code, cause: failure.cause });
  }
  return failure;
}

async function post(world, body, token, { server, credentials = 'same-origin' }, signal) {
  const headers = { 'Content-Type': 'application/json' };
  if (token !== undefined) {
    headers.Authorization = `Bearer ${token}`;
  }
  const url = new URL(at(server, '/v1/publish'), world.base).href;
  const answer = await world.fetch(url, { method: 'POST', headers, credentials, signal, body: JSON.stringify(body) });
  if (answer.status !== 200) {
    throw await refusalOf(answer);
  }
  const { position, duplicate } = await answer.json();
  if (!position && !body.frame.ephemeral) {
    throw new FanfareError('the answer is not that of a Fanfare server: it has no position', { status: 200 });
  }
  return { position: position ? `${position.epoch}-${position.sequence}` : undefined, duplicate: Boolean(duplicate) };
}

function newFrame({ channel, scope = '', payload, json, contentType, eventType, headers, ephemeral = false, idempotencyKey, expected }) {
  if (payload !== undefined && json !== undefined) {
    throw new TypeError('payload and json exclude each other');
  }
  let bytes = payload ?? '';
  if (json !== undefined) {
    bytes = JSON.stringify(json);
    contentType ??= 'application/json';
  }
  if (typeof bytes === 'string') {
    bytes = new TextEncoder().encode(bytes);
  } else if (bytes instanceof ArrayBuffer) {
    bytes = new Uint8Array(bytes);
  } else if (!(bytes instanceof Uint8Array)) {
    throw new TypeError('a payload is a string, a Uint8Array or an ArrayBuffer; give what is to be JSON as json');
  }
  const frame = { channel, scope, payload: base64Of(bytes), contentType, eventType, headers, ephemeral };
  // With a key a frame whose answer was lost can be sent again, and is stored once.
  frame.idempotencyKey = idempotencyKey ?? (ephemeral ? undefined : randomKey());
  if (expected !== undefined) {
    frame.expectedSequence = String(expected.sequence);
    frame.expectedEpoch = expected.epoch === undefined ? undefined : String(expected.epoch);
  }
  return { frame };
}

function randomKey() {
  // Unlike randomUUID, also where a page came over plain HTTP.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

function sleep(world, milliseconds, signal) {
  return new Promise((resolve) => {
    const end = () => {
      world.clearTimeout(timer);
      signal.removeEventListener('abort', end);
      resolve();
    };
    const timer = world.setTimeout(end, Math.min(milliseconds, longestTimer));
    signal.addEventListener('abort', end);
  });
}

// What a promise comes to, unless signal is aborted before, which nobody may have told it.
async function within(signal, promise) {
  let end;
  const aborted = new Promise((_, reject) => {
    end = () => reject(signal.reason);
    signal.addEventListener('abort', end);
  });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener('abort', end);
  }
}

/**
 * Where the streams of a connection stand. Nothing is handed on that does not continue
 * what was before: neither a repetition nor what comes after a hole.
 */
class Track {
  constructor(streams, after) {
    this.streams = streams.map(({ channel, scope }) => ({ channel, scope, position: undefined, awaits: undefined, closed: false }));
    if (after !== undefined) {
      this.takeIds(after);
    }
  }

  /** Whether all positions are known, so that a connection can go on after them. */
  get begun() {
    return this.streams.every(({ position }) => position);
  }

  get position() {
    return this.begun ? this.streams.map(({ position }) => position.text).join(',') : undefined;
  }

  find(name) {
    const stream = this.streams.find(({ channel, scope }) => channel === name.channel && scope === name.scope);
    if (!stream) {
      throw new FanfareError(`an event of a stream that was not asked for: ${name.channel}/${name.scope}`);
    }
    return stream;
  }

  // An id tells where streams stand of which nothing has come yet, and a new epoch for
  // the same sequence, as when a stream has begun. It moves none further: a hole before it
  // would not be seen.
  takeIds(text) {
    const parts = text.split(',').map(Position.parse);
    if (parts.length !== this.streams.length) {
      return;
    }
    this.streams.forEach((stream, i) => {
      if (!stream.position || stream.position.sequence === parts[i].sequence) {
        stream.position = parts[i];
      }
    });
  }

  /** Whether a frame is new. */
  takeFrame(stream, text) {
    const [at, was] = [Position.parse(text), stream.position];
    if (was && at.sequence <= was.sequence && at.epoch === was.epoch) {
      return false;
    }
    // The epoch of contiguous frames may change: the server has restarted.
    if (was && at.sequence !== was.sequence + 1n) {
      throw new FanfareError(`frame ${at.text} came after ${was.text} without a gap`);
    }
    stream.position = at;
    return true;
  }

  /** Whether a gap is to be told. */
  takeGap(stream, { reason, head, resume_after: text }) {
    if (reason === 'EPHEMERAL_MAYBE_MISSED') {
      return true;
    }
    const [was, at] = [stream.position, Position.parse(text)];
    // Who waits for the next numbering of a closed stream stands at 0-0, which a server
    // cannot resume from. While it is the same numbering that is closed, nothing is missing.
    const waits = at.text === '0-0' && was?.text === '0-0' && stream.awaits === head;
    Object.assign(stream, { position: at, awaits: at.text === '0-0' ? head : undefined, closed: false });
    return !waits;
  }

  /** Takes the position of a notice, which must not be ahead of what came. */
  reach(stream, text, notice) {
    const at = Position.parse(text);
    stream.position ??= at;
    if (at.sequence > stream.position.sequence) {
      throw new FanfareError(`${notice} said ${at.text} after ${stream.position.text} without a gap`);
    }
  }
}

/** A place in a stream. Its numbers are below 2^63: bigints, and text on the wire. */
export class Position {
  constructor(epoch, sequence) {
    this.epoch = epoch;
    this.sequence = sequence;
  }

  static parse(text) {
    const parts = /^(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})$/.exec(text);
    if (!parts) {
      throw new TypeError(`${JSON.stringify(text)} is no position: EPOCH-SEQUENCE is needed, both decimal`);
    }
    return new Position(BigInt(parts[1]), BigInt(parts[2]));
  }

  get text() {
    return `${this.epoch}-${this.sequence}`;
  }

  toString() {
    return this.text;
  }

  toJSON() {
    return this.text;
  }
}

/** A frame. */
export class Frame {
  #text;
  #base64;

  constructor(body) {
    this.stream = body.stream;
    this.position = body.position;
    this.ephemeral = Boolean(body.ephemeral);
    this.contentType = body.content_type ?? '';
    this.eventType = body.event_type ?? '';
    this.headers = body.headers ?? {};
    this.created = new Date(body.created);
    this.#text = body.payload;
    this.#base64 = body.payload_base64;
  }

  get text() {
    // A byte-order mark is part of the payload.
    return this.#text ?? new TextDecoder('utf-8', { ignoreBOM: true }).decode(this.payload);
  }

  get payload() {
    return this.#base64 === undefined ? new TextEncoder().encode(this.#text) : bytesOf(this.#base64);
  }

  json() {
    return JSON.parse(this.text);
  }
}

function gapOf({ stream, reason, requested, oldest, head, resume_after: resumeAfter }) {
  return { stream, reason, requested, oldest: BigInt(oldest), head, resumeAfter };
}

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  // Uint8Array.from is some twenty times as slow: a page would stand still for a megabyte.
  for (let i = 0; i < text.length; i++) {
    bytes[i] = text.charCodeAt(i);
  }
  return bytes;
}

function base64Of(bytes) {
  let text = '';
  // fromCharCode takes its bytes as arguments, of which there may not be too many.
  for (let i = 0; i < bytes.length; i += 8192) {
    text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  }
  return btoa(text);
}

// The canonical codes of answers that no Fanfare server gave.
const codes = { 400: 'INVALID_ARGUMENT', 401: 'UNAUTHENTICATED', 403: 'PERMISSION_DENIED', 404: 'UNIMPLEMENTED', 429: 'UNAVAILABLE', 502: 'UNAVAILABLE', 503: 'UNAVAILABLE', 504: 'UNAVAILABLE' };

/** Why something failed. */
export class FanfareError extends Error {
  constructor(message, { status = 0, code = '', reason = '', field = '', retryIn, cause } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    Object.assign(this, { status, code, reason, field, retryIn });
  }

  static of(error) {
    return error instanceof FanfareError ? error : new FanfareError(error?.message ?? String(error), { cause: error });
  }

  /** Whether asking again, unchanged, cannot help. */
  get final() {
    if (this.code === 'RESOURCE_EXHAUSTED' && this.reason !== '') {
      // Without a delay something must be given up first, or a frame is too large.
      return this.retryIn === undefined;
    }
    return (this.status >= 400 && this.status < 500 && ![408, 425, 429].includes(this.status)) || this.status === 501;
  }
}
Object.defineProperty(FanfareError.prototype, 'name', { value: 'FanfareError' });

// What an answer says that is not 200. Servers say why as JSON; a proxy on the way says
// anything.
async function refusalOf(answer) {
  const body = await answer.text().catch(() => '');
  let said = {};
  try {
    said = Object(JSON.parse(body));
  } catch {
    // The status has to do.
  }
  const seconds = said.retryIn ?? Number(answer.headers.get('Retry-After') || NaN);
  return new FanfareError(said.message ?? `the server answered ${answer.status} ${answer.statusText}`.trim(), {
    status: answer.status,
    code: said.code?.toUpperCase() ?? codes[answer.status] ?? 'UNKNOWN',
    reason: said.reason,
    field: said.field,
    retryIn: seconds >= 0 ? Math.round(seconds * 1000) : undefined,
  });
}

function checkOptions(options) {
  const given = Object.keys(startOf(options));
  if (given.length > 1) {
    throw new TypeError(`${given.join(' and ')} exclude each other`);
  }
  if (given[0] === 'after') {
    options.after.split(',').forEach(Position.parse);
  }
  if (options.from !== undefined && !['oldest', 'live'].includes(options.from)) {
    throw new TypeError(`from is ${JSON.stringify(options.from)}; it is 'oldest' or 'live'`);
  }
  if (options.last !== undefined && !(Number.isSafeInteger(options.last) && options.last >= 0)) {
    throw new TypeError(`last is ${options.last}; it is a whole number`);
  }
  for (const [name, values] of [
    ['transport', ['fetch']],
    ['credentials', ['same-origin', 'include', 'omit']],
  ]) {
    if (options[name] !== undefined && !values.includes(options[name])) {
      throw new TypeError(`${name} is ${JSON.stringify(options[name])}; it is one of ${values.join(', ')}`);
    }
  }
  const { pauseWhenHidden = 0, maxSilence = 1 } = options;
  if (!(pauseWhenHidden >= 0)) {
    throw new TypeError(`pauseWhenHidden is ${pauseWhenHidden}; it is a number of milliseconds`);
  }
  if (!(maxSilence > 0)) {
    throw new TypeError(`maxSilence is ${maxSilence}; it is a number of milliseconds above 0`);
  }
  return options;
}

// Where to begin, as far as options say. Storage has null and an attribute '' where there is
// no position yet.
function startOf({ after, last, from }) {
  return Object.fromEntries(Object.entries({ after: after || undefined, last, from }).filter(([, value]) => value !== undefined));
}

// A source is an address, a function that gets one, or the names of streams.
function sourceOf(source, options, base) {
  const start = startOf(options);
  if (typeof source?.url === 'function') {
    return { start, renewed: true, url: async (why) => new URL(await source.url(why), base).href };
  }
  const address = typeof source === 'string' || source instanceof URL ? source : at(options.server, pathOf(source));
  const { href } = new URL(address, base);
  streamsOf(href);
  return { start, renewed: false, url: () => href };
}

// The address of a path at a server, which may have a prefix, with or without a slash after it.
function at(server = '', path) {
  return String(server).replace(/\/$/, '') + path;
}

function pathOf(source) {
  const streams = source?.streams ?? [source];
  const names = streams.map((stream) => {
    if (typeof stream?.channel !== 'string' || typeof (stream.scope ?? '') !== 'string') {
      throw new TypeError('a source is an address, { url: a function }, { channel, scope } or { streams: [{ channel, scope }, …] }');
    }
    return `${encodeURIComponent(stream.channel)}/${encodeURIComponent(stream.scope ?? '')}`;
  });
  return `/v1/streams?${names.map((name) => `stream=${encodeURIComponent(name)}`).join('&')}`;
}

function queryOf(url) {
  return new URL(url).searchParams;
}

function streamsOf(url) {
  const query = queryOf(url);
  const pair = (text) => {
    const [channel, scope = ''] = text.split('/').map(decodeURIComponent);
    return { channel, scope };
  };
  const path = /\/v1\/streams\/([^/]+\/[^/]*)$/.exec(new URL(url).pathname);
  if (path) {
    return [pair(path[1])];
  }
  return query.has('stream') ? query.getAll('stream').map(pair) : [{ channel: query.get('channel') ?? '', scope: query.get('scope') ?? '' }];
}

// Sets fields of a query, and leaves the others byte by byte as they are: somebody may
// have signed them.
function withQuery(url, fields) {
  const [, before, query = '', hash = ''] = /^([^?#]*)(?:\?([^#]*))?(#.*)?$/.exec(url);
  // Only one start is possible.
  const starts = ['after', 'last', 'from'];
  const replaced = new Set([...Object.keys(fields), ...(starts.some((name) => name in fields) ? starts : [])]);
  const kept = query.split('&').filter((pair) => pair !== '' && !replaced.has(pair.split('=')[0]));
  const set = Object.entries(fields).map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
  return `${before}?${[...kept, ...set].join('&')}${hash}`;
}

/**
 * Reads text/event-stream as the WHATWG's HTML standard says ("Interpreting an event
 * stream"), from chunks that may end anywhere: within a character, within CRLF, within
 * a byte-order mark.
 */
export class EventStreamParser {
  // Decodes what is not UTF-8 to U+FFFD, and drops one leading byte-order mark.
  #decoder = new TextDecoder();
  #afterCR = false;
  // The parts of a line whose end has not come. Chunks are not joined before: a line
  // of a megabyte would be copied for each.
  #line = [];
  #data = [];
  #type = '';
  #id;
  #on;

  /**
   * @param {object} on
   * @param {(event: {type: string, data: string, lastEventId: string}) => void} on.event
   *   called for each event
   * @param {(lastEventId: string) => void} [on.id] called for each block without data,
   *   which is no event and may have moved the last event id
   * @param {(milliseconds: number) => void} [on.retry] called for each retry field
   * @param {string} [lastEventId] what a connection before this one has set
   */
  constructor(on, lastEventId = '') {
    this.#on = on;
    this.#id = lastEventId;
  }

  /** @param {Uint8Array} bytes */
  push(bytes) {
    const text = this.#decoder.decode(bytes, { stream: true });
    let from = 0;
    if (this.#afterCR && text !== '') {
      this.#afterCR = false;
      from = text[0] === '\n' ? 1 : 0;
    }
    const ends = /\r\n?|\n/g;
    ends.lastIndex = from;
    for (let end = ends.exec(text); end; end = ends.exec(text)) {
      this.#line.push(text.slice(from, end.index));
      from = ends.lastIndex;
      // Whether a line feed follows is seen in the next chunk; the line ends now.
      this.#afterCR = end[0] === '\r' && from === text.length;
      const line = this.#line.join('');
      this.#line = [];
      this.#take(line);
    }
    if (from < text.length) {
      this.#line.push(text.slice(from));
    }
  }

  #take(line) {
    if (line === '') {
      this.#dispatch();
      return;
    }
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1);
    switch (field) {
      case 'event':
        this.#type = value;
        break;
      case 'data':
        this.#data.push(value);
        break;
      case 'id':
        if (!value.includes('\0')) {
          this.#id = value;
        }
        break;
      case 'retry':
        if (/^[0-9]+$/.test(value)) {
          this.#on.retry?.(Number(value));
        }
        break;
    }
  }

  #dispatch() {
    const [type, data] = [this.#type || 'message', this.#data];
    this.#type = '';
    this.#data = [];
    if (data.length > 0) {
      this.#on.event({ type, data: data.join('\n'), lastEventId: this.#id });
    } else {
      this.#on.id?.(this.#id);
    }
  }
}
