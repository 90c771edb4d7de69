// Package pgbacklog is the backlog.Store on PostgreSQL 15 and newer.
//
// The schema holds streams, frames and the functions that publish; applications
// call the same functions in their own transactions. A frame's row, its number
// and its announcement are committed together. The package writes announcements
// and never listens: package listener does.
//
// # Writing
//
// The committer gathers publications while a transaction is in flight and
// publishes them in the next one; see its comment. Atomic batches and closes
// have transactions of their own.
//
// # Reading
//
// A load, like a page, is one statement: state, frames, the server's origin and
// whether it is in recovery come from one snapshot of one server. What comes
// from another server than the listener's is discarded, and the pools reconnect.
// Frames are read by (stream_id, sequence) alone; no reader follows an order of
// rows across streams, because that is not the order of commits.
//
// # Bounds
//
// What a new subscription may replay is computed when it is asked for, exactly.
// Rows stay for the grace beyond that; publishing deletes those of busy streams,
// the janitor of one replica at a time those of the others.
//
// # Lifecycle
//
// [Migrate] brings a schema up to date, over a direct URL. [Open] connects and
// checks, and starts nothing; [Store.Run] owns all goroutines of the store but
// those of the drivers' pools, which [Store.Close] ends.
package pgbacklog
