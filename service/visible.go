package service

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/auth"
)

// maxHiddenReads is how many pages of a list may be read in a row of which the caller may
// see nothing.
const maxHiddenReads = 100

// listStreams lists up to size streams after one, those of a channel if that is not empty,
// that the caller may subscribe to. Fewer than size are the last. The error is
// errTooManyHidden if too many that it may not see come in a row.
func (s *Server) listStreams(ctx context.Context, channel string, after backlog.StreamName, size int) ([]backlog.StreamState, error) {
	caller := s.caller(ctx)
	if caller.AllowsAll(auth.Subscribe) {
		return s.store.ListStreams(ctx, channel, after, size)
	}
	var visible []backlog.StreamState
	for hidden := 0; hidden < maxHiddenReads; {
		// Whole pages: most of what is read may not be seen.
		states, err := s.store.ListStreams(ctx, channel, after, backlog.MaxListedStreams)
		if err != nil {
			return nil, err
		}
		before := len(visible)
		for _, state := range states {
			if !caller.Allows(auth.Subscribe, state.Stream.Channel, state.Stream.Scope) {
				continue
			}
			if visible = append(visible, state); len(visible) == size {
				return visible, nil
			}
		}
		if len(states) < backlog.MaxListedStreams {
			return visible, nil
		}
		if len(visible) > before {
			hidden = 0
		}
		hidden++
		after = states[len(states)-1].Stream
	}
	// Not a page that ends here: the token of the next would tell of a stream that the
	// caller may not see.
	return nil, errTooManyHidden
}

var errTooManyHidden error = &failure{
	code:    codes.ResourceExhausted,
	reason:  fanfarev1.ErrorReason_ERROR_REASON_LIMIT_REACHED,
	message: fmt.Sprintf("the token allows none of the next %d streams, which are too many to look through; name a channel", maxHiddenReads*backlog.MaxListedStreams),
}
