// Package clientlib publishes frames to Fanfare servers and subscribes to streams.
//
// A [Client] works over one gRPC connection, which stays its user's. It is the one place
// that decides what is tried again:
//
//   - A publish, where nothing was stored for certain, or where an idempotency key makes
//     it safe. Durable frames get a key without being asked.
//   - A subscription, always, but for errors that trying again cannot help. It goes on
//     after the last position, on whichever replica the next call reaches.
//
// Between attempts it waits, longer each time, for a random part of a bound, so that
// clients that failed together do not come back together. A server that says how long to
// wait is heard.
//
// # What a subscription promises
//
// Each durable frame of the stream comes once, in order, from the start on, over all calls
// that end in between; or a [Gap] says that frames are missing, and where delivery goes on.
// The library checks that itself: it hands on neither a repetition nor what follows a
// hole. An ephemeral frame comes once if it is published while a call is in force, between
// [Subscribed] and [Interrupted]. Those in between are missed; a Gap with
// [EphemeralMaybeMissed] after the next Subscribed says so of streams that are known to
// carry any.
//
// [Subscription.Position] is the place after everything that Next has returned. Stored
// when a frame has been dealt with, it makes a program that is run again handle each frame
// at least once; stored together with what the frame led to, in one transaction, exactly
// once.
//
// # Goroutines and memory
//
// A subscription has a goroutine and a call, with [WithSession] neither: then one call and
// two goroutines carry all. Each reads ahead at most [WithReadAhead] and one message. A
// [Publisher] has two goroutines and keeps at most its window.
//
// # Telemetry
//
// With [WithTracerProvider] each publish is a span, of kind producer, from the call to the
// answer, retries included. With [WithPropagator] its context travels in the frame's
// headers; [Client.FrameContext] takes it out. [WithMeterProvider] has these instruments:
//
//   - messaging.client.operation.duration, a histogram in seconds, of publishes.
//     error.type is a reason or a code.
//   - messaging.client.consumed.messages, frames that subscriptions received.
//   - fanfare.client.interruptions, ends of calls that something tries to get over, by
//     error.type.
//   - fanfare.client.gaps, by fanfare.gap.reason.
//
// Without these options nothing is told, and nothing that is global to the process is
// used.
package clientlib
