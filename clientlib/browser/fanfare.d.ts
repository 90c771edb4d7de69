// The types of fanfare.js, whose manual is README.md.

/** One stream: what kind of thing is published, and which one. */
export interface Stream {
  /** 1 to 255 bytes of UTF-8 without control characters. */
  readonly channel: string;
  /** 0 to 255 bytes of UTF-8 without control characters. */
  readonly scope: string;
}

/** A stream to subscribe to. */
export interface StreamName {
  channel: string;
  /** Default: empty. */
  scope?: string;
}

/**
 * What to subscribe to: a stream, several (at most 50, each once) over one connection,
 * the address of either at a server, or a function that gets such an address, signed for
 * a while. The function is called before each connection, and again before the address
 * expires, which its field `expires` says (Unix time in seconds); the streams are the same
 * each time. `refresh` is true if the last address was refused (401), until there is another.
 */
export type Source =
  | StreamName
  | { streams: readonly StreamName[] }
  | string
  | URL
  | { url(why: { refresh: boolean }): string | URL | Promise<string | URL> };

/** How to reach a server. */
export interface ConnectionOptions {
  /**
   * The server's origin, with a prefix if it has one, such as
   * `https://edge.example.com`, and with or without a slash at its end; not for a source
   * that is an address. Default: the page's own origin.
   */
  server?: string;
  /**
   * Gets a token, which is sent in the header Authorization. It is called before each
   * connection, so it should keep what it got; `refresh` is true after the server refused
   * what it returned (401), until it has returned another: a token from memory is no help
   * then. What it throws is taken for trouble that passes, and so is that it does not
   * answer in time (maxSilence; 30 seconds at least): it is called again.
   */
  token?: (why: { refresh: boolean }) => string | Promise<string>;
  /** Whether cookies go to servers of other origins (`include`). Default: `same-origin`. */
  credentials?: 'same-origin' | 'include' | 'omit';
  /** Ends it when aborted. */
  signal?: AbortSignal;
}

/** What a subscription is asked for and whom it tells. At most one of after, last and from. */
export interface SubscribeOptions extends ConnectionOptions {
  /**
   * The position after which to begin, such as one that the page was made with; with
   * several streams those of all in order, joined by commas. null and '' are none.
   */
  after?: string | null;
  /** Begin with the newest so many frames of each stream. */
  last?: number;
  /** Begin with everything that may be replayed (`oldest`, the default) or with what is published from now on. */
  from?: 'oldest' | 'live';

  /** A frame, each durable one once and in order. */
  onframe?: (frame: Frame, subscription: Subscription) => void;
  /** Frames are missing. */
  ongap?: (gap: Gap, subscription: Subscription) => void;
  /** What was stored before has been told. Comes again after each connection. */
  oncaughtup?: (caughtUp: { readonly stream: Stream; readonly position: string }, subscription: Subscription) => void;
  /** A stream was closed, with the last position of its numbering if it is known. */
  onclosed?: (closed: { readonly stream: Stream; readonly last: string | undefined }, subscription: Subscription) => void;
  /** The state has changed, or an attempt to connect has failed. */
  onstatus?: (status: SubscriptionStatus, subscription: Subscription) => void;
  /** The subscription has ended, since trying again cannot help. The last call. */
  onerror?: (error: FanfareError, subscription: Subscription) => void;

  /**
   * Milliseconds after which a page that nobody sees gives its connection up. It gets
   * another one, and what it has missed, when it is shown. Default: never.
   */
  pauseWhenHidden?: number;
  /**
   * Milliseconds after which a connection over which nothing has come, not even a
   * heartbeat, is given up, and another one is made from the position: a network that
   * vanishes says nothing. Above 0; Infinity is never. The server's heartbeats, of whose
   * interval it tells the page, are asked for. Default: three of them, which is 45,000 by
   * the server's default and until it has told; never less than two. An answer, of the
   * server as of `token` and `url`, is waited for as long, and at least 30,000; if
   * EventSource comes back by itself, after the wait that the server has asked for.
   */
  maxSilence?: number;
  /** `fetch` has it used also where EventSource would do. */
  transport?: 'fetch';
}

/** The state of a subscription. */
export interface SubscriptionStatus {
  /**
   * `connecting`; `open`: what is published arrives, told by the first id or event of a
   * stream and not by an answer alone, which may be a proxy's; `waiting` to connect again;
   * `paused` while the page is hidden, frozen or left; `ended` for good.
   */
  readonly state: 'connecting' | 'open' | 'waiting' | 'paused' | 'ended';
  /** False while the server says that it does not hear of new frames: durable ones are late, ephemeral ones may be missed. */
  readonly listening: boolean;
  /** Why it waits or has ended. */
  readonly error?: FanfareError;
  /** In how many whole milliseconds it connects again, unless the page is shown or the network is back before; not if EventSource decides. */
  readonly retryIn?: number;
}

/** Subscribes. Callbacks are called later, never before it has returned. */
export function subscribe(source: Source, options?: SubscribeOptions): Subscription;

/** A subscription, made by {@link subscribe}. */
export class Subscription {
  private constructor();
  /**
   * The position after everything that was handed to the page, the event at hand
   * included: what {@link SubscribeOptions.after} takes. Undefined until it is known.
   */
  readonly position: string | undefined;
  /** What onstatus was told last. */
  readonly status: SubscriptionStatus;
  /** Ends it. Nothing is called any more but onstatus, once; closing again does nothing. */
  close(): void;
}

/** What was published. */
export class Frame {
  private constructor();
  readonly stream: Stream;
  /** Where it stands in its stream; undefined if it is ephemeral. */
  readonly position: string | undefined;
  /** Whether it was not stored: it comes once, to who is there. */
  readonly ephemeral: boolean;
  /** The publisher's content type; empty if it gave none. */
  readonly contentType: string;
  /** The publisher's event type; empty if it gave none. */
  readonly eventType: string;
  /** The publisher's headers. */
  readonly headers: Readonly<Record<string, string>>;
  /** When it was published, by the store's clock. */
  readonly created: Date;
  /** The payload as text; what is not UTF-8 in it becomes U+FFFD. */
  readonly text: string;
  /** The payload, byte by byte as it was published. Made anew each time. */
  readonly payload: Uint8Array;
  /** The payload as JSON. @throws SyntaxError if it is none. */
  json(): any;
}

/** Frames after `requested` are not available. Read the state anew from where it is kept. */
export interface Gap {
  readonly stream: Stream;
  /**
   * `TRIMMED`: the backlog no longer reaches back so far. `EPOCH_CHANGED`: the stream was
   * closed and has begun anew, or the store lost commits. `AHEAD`: the store lost commits.
   * `EPHEMERAL_MAYBE_MISSED`: no durable frame is missing. Take another for a loss.
   */
  readonly reason: 'TRIMMED' | 'EPOCH_CHANGED' | 'AHEAD' | 'EPHEMERAL_MAYBE_MISSED' | (string & {});
  readonly requested: string;
  /** The oldest sequence that can be replayed. */
  readonly oldest: bigint;
  /** The stream's newest position. */
  readonly head: string;
  /** The position from which it goes on. */
  readonly resumeAfter: string;
}

/**
 * A position, taken apart. Its numbers are below 2^63, beyond what a number holds.
 * Positions are compared for equality only: an epoch may change from one frame to the
 * next.
 */
export class Position {
  private constructor();
  readonly epoch: bigint;
  /** The frame's number in its stream, from 1 without holes. */
  readonly sequence: bigint;
  /** EPOCH-SEQUENCE, as everywhere. */
  readonly text: string;
  /** @throws TypeError if the text is no position. */
  static parse(text: string): Position;
  toString(): string;
  toJSON(): string;
}

/** Why something failed. */
export class FanfareError extends Error {
  /** The status of the HTTP answer, or 0 if there was none. */
  readonly status: number;
  /** The canonical code of gRPC, such as `ABORTED`, as far as it is known. */
  readonly code: string;
  /**
   * What a Fanfare server gave as the reason, such as `EXPECTATION_FAILED`; else empty. With
   * the status 401 it is `TOKEN_EXPIRED` if another token will do, and `UNAUTHENTICATED` if
   * somebody must log in.
   */
  readonly reason: string;
  /** The field that is outside its limit, if one is. */
  readonly field: string;
  /** Milliseconds that the server asks to wait before a retry. */
  readonly retryIn: number | undefined;
  /** Whether asking again, unchanged, cannot help. */
  readonly final: boolean;
}

/** A frame to publish. */
export interface NewFrame {
  channel: string;
  /** Default: empty. */
  scope?: string;
  /** At most the server's limit, 1 MiB by default. Default: empty. */
  payload?: string | Uint8Array | ArrayBuffer;
  /** Instead of payload: what is sent as JSON, with the content type application/json by default. */
  json?: unknown;
  contentType?: string;
  /** Not beginning with `fanfare.`. */
  eventType?: string;
  headers?: Record<string, string>;
  /** Only for who is there: not stored, without a position. */
  ephemeral?: boolean;
  /**
   * Makes it safe to send the frame again: it is stored once. Default: a random one for a
   * durable frame; empty is none.
   */
  idempotencyKey?: string;
  /** Publish only if the stream's head is there: its sequence and, if given, its epoch. */
  expected?: { sequence: bigint | number; epoch?: bigint };
}

/** How to publish. */
export interface PublishOptions extends ConnectionOptions {
  /** Milliseconds for everything, retries included. Default: 30,000. */
  timeout?: number;
}

/**
 * Publishes a frame, and returns when it is committed. What failed is tried again where
 * that is safe: with an idempotency key, or where nothing was done for certain.
 *
 * @throws FanfareError With the reason `OUTCOME_UNKNOWN` whether it was published is not
 * known; with any other it was not.
 */
export function publish(
  frame: NewFrame,
  options?: PublishOptions,
): Promise<{
  /** Undefined if the frame is ephemeral. */
  readonly position: string | undefined;
  /** Whether the key was known: the position is the first one's, and nothing was stored. */
  readonly duplicate: boolean;
}>;

/** Reads text/event-stream from chunks that may be cut anywhere. */
export class EventStreamParser {
  constructor(
    on: {
      event(event: { readonly type: string; readonly data: string; readonly lastEventId: string }): void;
      /** A block without data, which is no event and may have moved the last event id. */
      id?(lastEventId: string): void;
      retry?(milliseconds: number): void;
    },
    lastEventId?: string,
  );
  push(bytes: Uint8Array): void;
}
