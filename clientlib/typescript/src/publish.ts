import { randomUUID } from 'node:crypto';

import { create, type MessageInitShape } from '@bufbuild/protobuf';

import { checkText, invalidField } from './errors.js';
import { positionOf } from './events.js';
import { NewFrameSchema, type NewFrame as WireNewFrame, type PublishResponse } from './gen/fanfare/v1/fanfare_pb.js';
import type { Position } from './position.js';

/** A frame to publish. */
export interface NewFrame {
  /** The stream's channel, 1 to 255 bytes. */
  channel: string;
  /** The stream's scope, 0 to 255 bytes. Default: empty. */
  scope?: string | undefined;
  /** Bytes, or text, which is published as UTF-8. Default: empty. */
  payload?: Uint8Array | string | undefined;
  /** By convention a media type. Default: empty. */
  contentType?: string | undefined;
  /** What kind of frame it is, in the application's words. Default: empty. */
  eventType?: string | undefined;
  /** At most 32 entries and 8 KiB. */
  headers?: Readonly<Record<string, string>> | undefined;
  /**
   * Makes retries safe: a server that knows the key answers with the position of
   * the frame that was stored first. Default: a random one for each durable frame.
   * Give one of your own if publishing again must be safe in another process, too;
   * give an empty one, and a frame is published at most once, since it is not
   * retried where it may have been stored.
   */
  idempotencyKey?: string | undefined;
  /**
   * Publish only if the stream's head has this sequence and, if it is given, this
   * epoch. Sequence 0 means that the stream has no frame or is closed.
   */
  expected?: { readonly sequence: bigint; readonly epoch?: bigint | undefined } | undefined;
  /** True: only those who are subscribed get the frame; it is not stored. */
  ephemeral?: boolean | undefined;
}

/** What became of a frame. */
export interface Published {
  /** The frame's position; undefined if it is ephemeral. */
  readonly position: Position | undefined;
  /**
   * True if the idempotency key was known and nothing was stored now: by an earlier
   * publish, or by an attempt of this one whose answer was lost.
   */
  readonly duplicate: boolean;
}

/** Options of a publish. */
export interface PublishOptions {
  /** Gives up when it is aborted; the frame may have been published all the same. */
  signal?: AbortSignal | undefined;
  /** Milliseconds after which to give up. Default: the client's. */
  timeout?: number | undefined;
}

/** @throws FanfareError if something cannot be sent as it is; path is where the frame stands. */
export function newFrameOf(frame: NewFrame, path = 'frame'): WireNewFrame {
  checkText(`${path}.channel`, frame.channel);
  checkText(`${path}.scope`, frame.scope);
  checkText(`${path}.content_type`, frame.contentType);
  checkText(`${path}.event_type`, frame.eventType);
  checkText(`${path}.idempotency_key`, frame.idempotencyKey);
  for (const [name, value] of Object.entries(frame.headers ?? {})) {
    checkText(`${path}.headers`, name);
    checkText(`${path}.headers[${JSON.stringify(name)}]`, value);
  }
  const wire: MessageInitShape<typeof NewFrameSchema> = {
    channel: frame.channel,
    scope: frame.scope ?? '',
    payload: bytesOf(frame.payload ?? new Uint8Array(), `${path}.payload`),
    contentType: frame.contentType ?? '',
    eventType: frame.eventType ?? '',
    headers: { ...frame.headers },
    idempotencyKey: frame.idempotencyKey ?? (frame.ephemeral ? '' : randomUUID()),
    ephemeral: frame.ephemeral ?? false,
  };
  if (frame.expected !== undefined) {
    wire.expectedSequence = frame.expected.sequence;
    if (frame.expected.epoch !== undefined) {
      wire.expectedEpoch = frame.expected.epoch;
    }
  }
  return create(NewFrameSchema, wire);
}

function bytesOf(payload: Uint8Array | string, field: string): Uint8Array {
  if (typeof payload === 'string') {
    checkText(field, payload);
    return new TextEncoder().encode(payload);
  }
  // By its tag: test runners give programs an Uint8Array of their own.
  if (payload[Symbol.toStringTag] !== 'Uint8Array') {
    throw invalidField(field, 'must be a Uint8Array or a string');
  }
  return payload;
}

export function publishedOf(wire: PublishResponse): Published {
  return { position: wire.position && positionOf(wire.position), duplicate: wire.duplicate };
}

/**
 * Whether the frames may be published again, together, if they may have been
 * published already: a server that knows the keys of all durable ones does not
 * announce the ephemeral ones again either.
 */
export function isRepeatable(frames: readonly WireNewFrame[]): boolean {
  const durable = frames.filter(({ ephemeral }) => !ephemeral);
  return durable.length > 0 && durable.every(({ idempotencyKey }) => idempotencyKey !== '');
}
