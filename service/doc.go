// Package service is the gRPC surface of Fanfare: it validates requests, hands
// publishes to a [backlog.Store], delivers what a [hub.Hub] has for each
// subscriber, turns domain errors into statuses, reports readiness and drains.
//
// # Streaming calls
//
// A streaming call has two goroutines. One sends, and may block for as long as
// the client does not read. The other is the call's handler: it waits, and ends
// the call when the sender is done, when a send has made no progress for the
// write timeout, or when the server drains. A blocked SendMsg is released by
// grpc when the handler returns, so a stalled client never delays a drain; what
// it costs until then is a cursor and one message.
//
// # Encoding
//
// A frame is encoded once, by [EncodeFrame], into the bytes of one element of
// SubscribeResponse.frames. Every subscriber is sent those bytes: a message
// with several frames is their concatenation, which the [Codec] passes through.
//
// # Errors
//
// Domain errors become statuses in one place, failureOf. What a driver said is
// in the log and never in a status.
//
// # Lifecycle
//
// New starts nothing. Run keeps readiness, which the health service and /healthz
// tell, and blocks. Drain ends serving and returns when every goroutine of every
// call has ended, or an error if some have not. The package opens no socket and
// no connection to a store.
package service
