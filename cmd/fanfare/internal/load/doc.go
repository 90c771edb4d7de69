// Package load is the load generator of benchmarks: a gRPC client for Fanfare's
// calls that costs so little that the server is what is measured.
//
// It speaks HTTP/2 itself, without TLS, on the framing of golang.org/x/net/http2.
// A [Conn] has one goroutine that reads and one that writes. What arrives is taken
// apart where it lies in the read buffer: of a frame nothing is decoded but its
// sequence. What is to be sent is collected, so that many calls share a write.
//
// Towards the server the windows are as wide as HTTP/2 allows, and widened again
// long before they are used up; a client library's windows are narrower, and cost
// the server more. A stream can be held instead ([Conn.SubscribeHeld]): it takes its
// first window and then nothing, as a subscriber does that has stopped reading.
//
// Times of arrival are those of the read that brought the bytes.
package load
