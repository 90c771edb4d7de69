package service

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/auth"
)

const (
	// maxListReads is how many pages one list may read of which the caller may not see
	// everything.
	maxListReads = 100
	// maxLooking is how many lists may do so at a time: each reads up to 100,000
	// streams.
	maxLooking = 4
)

// listStreams lists up to size streams after one, those of a channel if that is not empty,
// that the caller may subscribe to. Fewer than size are the last, unless more is true: then
// too many that it may not see came among them and after them. The error is
// errTooManyHidden if none was found for that. Lists wait for each other.
func (s *Server) listStreams(ctx context.Context, channel string, after backlog.StreamName, size int) (visible []backlog.StreamState, more bool, err error) {
	caller := s.caller(ctx)
	if caller.AllowsAll(auth.Subscribe) {
		visible, err = s.store.ListStreams(ctx, channel, after, size)
		return visible, false, err
	}
	if err := s.looking.Acquire(ctx, 1); err != nil {
		return nil, false, err
	}
	defer s.looking.Release(1)
	for range maxListReads {
		// Whole pages: most of what is read may not be seen.
		states, err := s.store.ListStreams(ctx, channel, after, backlog.MaxListedStreams)
		if err != nil {
			return nil, false, err
		}
		for _, state := range states {
			if !caller.Allows(auth.Subscribe, state.Stream.Channel, state.Stream.Scope) {
				continue
			}
			if visible = append(visible, state); len(visible) == size {
				return visible, false, nil
			}
		}
		if len(states) < backlog.MaxListedStreams {
			return visible, false, nil
		}
		after = states[len(states)-1].Stream
	}
	if len(visible) == 0 {
		// Not an empty page: the token of the next would tell of a stream that the caller
		// may not see.
		return nil, false, errTooManyHidden
	}
	return visible, true, nil
}

var errTooManyHidden error = &failure{
	code:    codes.ResourceExhausted,
	reason:  fanfarev1.ErrorReason_ERROR_REASON_LIMIT_REACHED,
	message: fmt.Sprintf("the token allows none of the next %d streams, which are too many to look through; name a channel", maxListReads*backlog.MaxListedStreams),
}
