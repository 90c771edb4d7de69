// What the server's JSON holds, as far as the console reads it. Numbers of 64 bits are
// strings; fields with their zero value may be absent.
import { at, get, post } from './api';

export interface Position {
  epoch?: string;
  sequence?: string;
}

export interface StreamName {
  channel: string;
  scope: string;
}

export interface Stream {
  channel: string;
  scope?: string;
  head?: Position;
  oldest?: string;
  closed?: boolean;
  subscribers?: number;
  created?: string;
  updated?: string;
  behind?: string;
}

export interface Health {
  status: string;
  since: string;
  reasons: string[];
  draining: boolean;
  channel: { kind: string; listening: boolean; since: string };
  store: { answering: boolean; since: string };
  hub: {
    streams: number;
    subscribers: number;
    tail_bytes: number;
    page_bytes: number;
    frames: number;
    ephemeral: number;
    slow_subscribers: number;
  };
  published: number;
  version?: string;
  instance?: string;
  started: string;
  now: string;
}

export interface NewFrame {
  channel: string;
  scope: string;
  payload: string;
  contentType?: string;
  eventType?: string;
  idempotencyKey?: string;
  headers?: Record<string, string>;
  ephemeral?: boolean;
}

export interface Published {
  position?: Position;
  duplicate?: boolean;
}

export interface Page {
  streams: Stream[];
  next: string;
}

/** How many streams the server gives at most at once. */
export const largestPage = 1000;

export async function listStreams(
  query: { channel?: string; size: number; token?: string },
  signal?: AbortSignal,
): Promise<Page> {
  const answer = await get<{ streams?: Stream[]; nextPageToken?: string }>(
    'v1/list-streams',
    { channel: query.channel, pageSize: query.size, pageToken: query.token },
    signal,
  );
  return { streams: answer.streams ?? [], next: answer.nextPageToken ?? '' };
}

export async function getStream(name: StreamName, signal?: AbortSignal): Promise<Stream> {
  const answer = await get<{ stream: Stream }>('v1/stream', { ...name }, signal);
  return answer.stream;
}

export function publish(frame: NewFrame): Promise<Published> {
  return post<Published>('v1/publish', { frame });
}

/** Closes the numbering that has the epoch, not one that has begun since. */
export function closeStream(name: StreamName, epoch: string): Promise<{ last?: Position; alreadyClosed?: boolean }> {
  return post('v1/close', { ...name, expectedEpoch: epoch });
}

export function eventsUrl(name: StreamName): string {
  return at('v1/streams', { channel: name.channel, scope: name.scope }) + (name.scope === '' ? '&scope=' : '');
}

export function positionText(p: Position | undefined): string {
  return `${p?.epoch ?? '0'}-${p?.sequence ?? '0'}`;
}

export function sequenceOf(p: Position | undefined): bigint {
  return BigInt(p?.sequence ?? 0);
}

/** How many frames a new subscription may replay. */
export function backlogOf(s: Stream): bigint {
  const kept = sequenceOf(s.head) + 1n - BigInt(s.oldest ?? 0);
  return s.closed || kept < 0n ? 0n : kept;
}

/** A stream's key in maps: names hold no control character. */
export function keyOf(s: { channel: string; scope?: string }): string {
  return `${s.channel}\0${s.scope ?? ''}`;
}

export function nameOf(s: { channel: string; scope?: string }): StreamName {
  return { channel: s.channel, scope: s.scope ?? '' };
}
