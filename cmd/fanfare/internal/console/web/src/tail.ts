// The live tail of one stream: what arrives is gathered within bounds, and shown a few
// times a second at most.
import { batch, effect, signal, untracked } from '@preact/signals';
import { token, wantToken } from './api';
import {
  loadFanfare,
  type Frame,
  type SubscribeOptions,
  type Subscription,
  type SubscriptionStatus,
} from './fanfare-module';
import { eventsUrl, type StreamName } from './protocol';

/** How much a tail keeps. What is older is in the stream's backlog. */
const keptItems = 300;
const keptBytes = 8 << 20;
/** How often it is shown anew, in milliseconds. */
const showEvery = 200;
/** How many of the newest frames it begins with. */
const beginsWith = 50;
/** After so long out of sight, in milliseconds, the connection is given back. */
const pauseWhenHidden = 60_000;

interface Kept {
  key: number;
  bytes: number;
}

export interface ShownFrame extends Kept {
  kind: 'frame';
  frame: Frame;
  payload: Uint8Array;
}

export interface Note extends Kept {
  /** A loss is of frames; a fault is of the connection. */
  kind: 'note' | 'loss' | 'fault';
  text: string;
  at: Date;
}

export type Item = ShownFrame | Note;

export class Tail {
  /** What is shown, newest first. */
  readonly shown = signal<readonly Item[]>([]);
  /** How many frames came since it was paused. */
  readonly waiting = signal(0);
  readonly paused = signal(false);
  readonly status = signal<SubscriptionStatus>({ state: 'connecting', listening: true });
  /** How many frames have been shown. */
  readonly arrived = signal(0);

  private items: Item[] = [];
  private bytes = 0;
  private nextKey = 0;
  private frames = 0;
  private timer = 0;
  private subscription: Subscription | undefined;
  private attempt = 0;

  constructor(private readonly name: StreamName) {}

  /** Watches the stream, with each new token anew, until what it returns is called. */
  watch(): () => void {
    const forget = effect(() => {
      void token.value;
      untracked(() => {
        this.leave();
        void this.open(this.frames === 0 ? { last: beginsWith } : { from: 'live' });
      });
    });
    return () => {
      forget();
      this.leave();
      clearTimeout(this.timer);
    };
  }

  pause() {
    this.paused.value = true;
  }

  resume() {
    this.paused.value = false;
    this.show();
  }

  clear() {
    this.items = [];
    this.bytes = 0;
    this.resume();
  }

  private leave() {
    this.attempt++;
    this.subscription?.close();
    this.subscription = undefined;
  }

  private async open(start: Pick<SubscribeOptions, 'last' | 'from'>) {
    const attempt = ++this.attempt;
    try {
      const fanfare = await loadFanfare();
      if (attempt === this.attempt) {
        this.subscription = fanfare.subscribe(eventsUrl(this.name), { ...start, ...this.options() });
      }
    } catch {
      this.note('fault', 'The client for browsers, fanfare.js, cannot be loaded: reload the page.');
    }
  }

  private options(): SubscribeOptions {
    return {
      transport: 'fetch',
      pauseWhenHidden,
      ...(token.value !== '' && { token: async () => token.value }),
      onframe: (frame) => {
        const payload = frame.payload;
        this.frames++;
        // A row costs something beside its bytes.
        this.add({ kind: 'frame', frame, payload, bytes: payload.length + 1000, key: this.nextKey++ });
      },
      ongap: (gap) =>
        gap.reason === 'EPHEMERAL_MAYBE_MISSED'
          ? this.note('loss', 'Ephemeral frames may have been missed here.')
          : this.note('loss', `Frames are missing between ${gap.requested} and ${gap.resumeAfter}: ${gap.reason}.`),
      onclosed: ({ last }) => {
        this.note('note', `The stream was closed after ${last ?? 'its last frame'}. The next numbering is waited for.`);
        // It has ended; another one waits for what comes next.
        this.leave();
        void this.open({ from: 'live' });
      },
      onstatus: (status) => {
        if (status.listening !== this.status.value.listening) {
          this.note(
            'note',
            status.listening
              ? 'The server hears of new frames again.'
              : 'The server does not hear of new frames at the moment.',
          );
        }
        this.status.value = status;
      },
      onerror: (error) => {
        this.note('fault', error.message);
        if (error.status === 401) {
          wantToken();
        }
      },
    };
  }

  private note(kind: Note['kind'], text: string) {
    this.add({ kind, text, at: new Date(), bytes: 1000, key: this.nextKey++ });
  }

  private add(item: Item) {
    this.items.unshift(item);
    this.bytes += item.bytes;
    while (this.items.length > keptItems || (this.bytes > keptBytes && this.items.length > 1)) {
      this.bytes -= this.items.pop()!.bytes;
    }
    if (this.timer === 0) {
      this.timer = window.setTimeout(() => this.show(), showEvery);
    }
  }

  private show() {
    clearTimeout(this.timer);
    this.timer = 0;
    if (this.paused.value) {
      this.waiting.value = this.frames - this.arrived.value;
      return;
    }
    batch(() => {
      this.arrived.value = this.frames;
      this.waiting.value = 0;
      this.shown.value = [...this.items];
    });
  }
}
