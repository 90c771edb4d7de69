// What the console uses of fanfare.js, which the server has for all pages and which is
// therefore not bundled. Its own types are in clientlib/browser/fanfare.d.ts.
import { base } from './api';

export interface Frame {
  position?: string;
  ephemeral: boolean;
  contentType: string;
  eventType: string;
  headers: Record<string, string>;
  created: Date;
  payload: Uint8Array;
}

export interface Gap {
  reason: string;
  requested: string;
  resumeAfter: string;
}

export interface Status {
  state: 'connecting' | 'open' | 'waiting' | 'paused' | 'ended';
  listening: boolean;
  error?: Error;
}

export interface Options {
  last?: number;
  from?: 'live';
  transport: 'fetch';
  token?: () => Promise<string>;
  pauseWhenHidden: number;
  onframe: (frame: Frame) => void;
  ongap: (gap: Gap) => void;
  onclosed: (closed: { last?: string }) => void;
  onstatus: (status: Status) => void;
  onerror: (error: Error & { status?: number }) => void;
}

export interface Subscription {
  close(): void;
}

export interface FanfareModule {
  subscribe(url: string, options: Options): Subscription;
}

let loading: Promise<FanfareModule> | undefined;

/** Loads it, once; after a failure the next call tries again. */
export function loadFanfare(): Promise<FanfareModule> {
  loading ??= (import(new URL('fanfare.js', base).href) as Promise<FanfareModule>).catch((err: unknown) => {
    loading = undefined;
    throw err;
  });
  return loading;
}
