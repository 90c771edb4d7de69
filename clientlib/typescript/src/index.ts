/**
 * Publish to and subscribe to Fanfare streams.
 *
 * @packageDocumentation
 */
export type { TokenSource } from './access.js';
export { Client, type ClientOptions } from './client.js';
export { FanfareError, type Code, type ErrorDetails, type Reason } from './errors.js';
export type { CaughtUp, Closed, DurableFrame, EphemeralFrame, Event, Frame, FrameContent, Gap, GapReason, Interrupted, Status, Subscribed } from './events.js';
export { Position } from './position.js';
export type { NewFrame, Published, PublishOptions } from './publish.js';
export type { BackoffOptions } from './retry.js';
export { Subscription, type Start, type SubscribeOptions } from './subscription.js';
