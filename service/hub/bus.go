package hub

import (
	"context"

	"github.com/fanfare-io/fanfare/backlog"
)

// Bus tells the hub of committed frames. On PostgreSQL it is the listener; on
// an embedded store it is in process.
type Bus interface {
	// Ensure returns the current listening once it is active, waiting until ctx
	// ends. Announcements of transactions that commit after Ensure returned reach
	// the Sink, or the listening ends and a new one begins.
	Ensure(ctx context.Context) (backlog.Listening, error)

	// Current returns the current listening without waiting; Number is 0 if there
	// is none.
	Current() backlog.Listening
}

// Sink is what a bus calls: the Hub. Its methods, but for Hears, are called by one
// goroutine at a time, in the order of the bus, and do not block on a store or a consumer.
type Sink interface {
	// Listening says that a new listening is active. Announcements of the one
	// before may have been lost.
	Listening(l backlog.Listening)
	// Lost says that the current listening has ended.
	Lost(err error)
	// Hears reports whether a stream is resident: announcements of others may be left
	// out. It may be called by any goroutine, and keeps nothing of the name.
	Hears(stream backlog.StreamName) bool
	// Announce delivers announcements in the order of commit. The hub may keep
	// them and what they refer to.
	Announce(announcements []backlog.Announcement)
	// Hint says that something may have been announced that could not be read or
	// is not authentic, or that bounds of streams were changed: the hub re-reads the
	// states of resident streams.
	Hint()
	// Missed is Hint, and says besides that an announcement may have been lost or
	// could not be read: subscriptions of streams that carry ephemeral frames are
	// told that they may have missed some. Call it for everything unreadable that may
	// have been one, but not more than once a second.
	Missed()
}
