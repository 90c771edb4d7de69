import { timestampDate } from '@bufbuild/protobuf/wkt';

import type { FanfareError } from './errors.js';
import { GapReason as WireGapReason } from './gen/fanfare/v1/fanfare_pb.js';
import type { Frame as WireFrame, Gap as WireGap, Position as WirePosition, Subscribed as WireSubscribed } from './gen/fanfare/v1/fanfare_pb.js';
import { Position } from './position.js';

/** What durable and ephemeral frames have in common. */
export interface FrameContent {
  readonly type: 'frame';
  /** The published bytes, unchanged. A view of the message that brought them. */
  readonly payload: Uint8Array;
  /** The publisher's content type; empty if it gave none. */
  readonly contentType: string;
  /** The publisher's event type; empty if it gave none. */
  readonly eventType: string;
  /** The publisher's headers. */
  readonly headers: Readonly<Record<string, string>>;
  /** When the frame was numbered or, if it is ephemeral, published, by the store's clock. */
  readonly created: Date;
}

/** A frame that is stored. */
export interface DurableFrame extends FrameContent {
  readonly ephemeral: false;
  /** Where the frame stands in its stream. */
  readonly position: Position;
}

/** A frame that is not stored: no replay has it, and it leaves the position as it is. */
export interface EphemeralFrame extends FrameContent {
  readonly ephemeral: true;
  readonly position: undefined;
}

/** A frame of the stream. */
export type Frame = DurableFrame | EphemeralFrame;

/**
 * The subscription is in force: frames that commit from now on will be delivered.
 * It comes again each time that a call has been resumed.
 */
export interface Subscribed {
  readonly type: 'subscribed';
  /** The stream's newest position; 0-0 if it does not exist. */
  readonly head: Position;
  /** The oldest sequence that a new subscription could replay; head + 1 if there is none. */
  readonly oldest: bigint;
  /** Where delivery begins, unless a gap follows. */
  readonly resumeAfter: Position;
  /** Whether delivery goes on after a position without a gap. */
  readonly resumed: boolean;
  /** Whether the stream has ever carried an ephemeral frame. */
  readonly ephemeral: boolean;
}

/** All frames stored before the subscription began have been delivered. */
export interface CaughtUp {
  readonly type: 'caughtUp';
  /** The last position delivered, or where delivery began. */
  readonly position: Position;
}

/** Why frames are missing; see {@link Gap}. Take `'UNSPECIFIED'`, which newer reasons become, for loss. */
export type GapReason = keyof typeof WireGapReason;

/** Frames after {@link Gap.requested} are not available; delivery goes on after {@link Gap.resumeAfter}. */
export interface Gap {
  readonly type: 'gap';
  /**
   * `TRIMMED`: the backlog no longer reaches back so far. `EPOCH_CHANGED`: the
   * stream was closed and has begun anew, or the store lost commits. `AHEAD`: the
   * store lost commits. `EPHEMERAL_MAYBE_MISSED`: no durable frame is missing.
   */
  readonly reason: GapReason;
  /** The position that could not be resumed from. */
  readonly requested: Position;
  /** The oldest sequence that can be replayed. */
  readonly oldest: bigint;
  /** The stream's newest position. */
  readonly head: Position;
  /** The subscription's new position. */
  readonly resumeAfter: Position;
}

/** The server's listener was lost, or is back. While it is lost, frames wait. */
export interface Status {
  readonly type: 'status';
  readonly listening: boolean;
}

/** The stream was closed. It is the last event. */
export interface Closed {
  readonly type: 'closed';
  /** The last position of the numbering that ended. */
  readonly last: Position;
}

/**
 * The call ended, or could not begin, and is resumed after {@link retryIn}, on
 * another target if there is one. Durable frames are not missed; ephemeral ones
 * are that are published until the next {@link Subscribed}.
 */
export interface Interrupted {
  readonly type: 'interrupted';
  /** Why. */
  readonly error: FanfareError;
  /** Milliseconds until the next attempt. */
  readonly retryIn: number;
}

/** What a subscription brings. `type` tells which. */
export type Event = Frame | Subscribed | CaughtUp | Gap | Status | Closed | Interrupted;

/** The absent position of the protocol is 0-0. */
export function positionOf(wire: WirePosition | undefined): Position {
  return wire === undefined ? Position.zero : new Position(wire.epoch, wire.sequence);
}

export function frameOf(wire: WireFrame): Frame {
  const content = {
    type: 'frame',
    payload: wire.payload,
    contentType: wire.contentType,
    eventType: wire.eventType,
    headers: wire.headers,
    created: wire.created === undefined ? new Date(0) : timestampDate(wire.created),
  } as const;
  return wire.ephemeral
    ? { ...content, ephemeral: true, position: undefined }
    : { ...content, ephemeral: false, position: positionOf(wire.position) };
}

export function subscribedOf(wire: WireSubscribed): Subscribed {
  return {
    type: 'subscribed',
    head: positionOf(wire.head),
    oldest: wire.oldest,
    resumeAfter: positionOf(wire.resumeAfter),
    resumed: wire.resumed,
    ephemeral: wire.ephemeral,
  };
}

export function gapOf(wire: WireGap): Gap {
  return {
    type: 'gap',
    reason: (WireGapReason[wire.reason] ?? 'UNSPECIFIED') as GapReason,
    requested: positionOf(wire.requested),
    oldest: wire.oldest,
    head: positionOf(wire.head),
    resumeAfter: positionOf(wire.resumeAfter),
  };
}
