package sqlitebacklog

import (
	"context"

	"github.com/fanfare-io/fanfare/backlog"
)

// Sink is what the bus tells; hub.Hub is one.
type Sink interface {
	Listening(l backlog.Listening)
	Lost(err error)
	Announce(announcements []backlog.Announcement)
	Hint()
}

// Bus is the in-process bus of a store.
type Bus struct{}

// Run tells sink what is committed until ctx ends, and returns nil.
func (b *Bus) Run(ctx context.Context, sink Sink) error { return errTODO }

// Ensure waits until Run listens.
func (b *Bus) Ensure(ctx context.Context) (backlog.Listening, error) {
	return backlog.Listening{}, errTODO
}

// Current returns the current listening.
func (b *Bus) Current() backlog.Listening { return backlog.Listening{} }
