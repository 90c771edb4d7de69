package backlog

import "fmt"

// KeepContiguous drops the frames before a hole, for stores: their own deletions
// leave none, but a row that somebody else deleted must not look like the next
// one. l's Frames are in order.
func (l *Loaded) KeepContiguous() {
	next := l.State.Head.Sequence
	for i := len(l.Frames) - 1; i >= 0; i-- {
		if l.Frames[i].Position.Sequence != next {
			l.Frames = l.Frames[i+1:]
			l.Before = Position{Sequence: next}
			if len(l.Frames) == 0 {
				l.Before = l.State.Head
			}
			return
		}
		next--
	}
	if l.Before.Sequence < next {
		l.Before = Position{Sequence: next}
		if len(l.Frames) == 0 {
			l.Before = l.State.Head
		}
	}
}

// Judge decides, for stores, whether the frames of a page follow the requested
// position without a break, and ends the page before one that is missing. after
// is the position at the request's sequence as the store knows it, with epoch 0
// if it knows none. Errors: ErrNumberingGone, ErrTrimmed.
func (r *PageRequest) Judge(page *Page, after Position) error {
	err := r.judgeState(&page.State, after)
	if err == nil {
		err = r.cutAtHole(page)
	}
	if err != nil {
		return fmt.Errorf("%w: after %s", err, r.After)
	}
	return nil
}

func (r *PageRequest) judgeState(state *StreamState, after Position) error {
	switch {
	case !state.Exists && r.OwnEpoch == 0 && r.After.IsZero():
		return nil
	case !state.Exists, r.After.Sequence > state.Head.Sequence:
		return ErrNumberingGone
	case r.After.Sequence < state.Floor:
		return ErrTrimmed
	case r.After.IsZero():
		// Before the first frame of the first numbering, or of the one that is named.
		if r.OwnEpoch == 0 && state.EverClosed {
			return ErrNumberingGone
		}
	case after.Epoch != r.After.Epoch:
		return ErrNumberingGone
	}
	if !r.Running && r.After.Sequence < state.Base.Sequence {
		return ErrTrimmed
	}
	return nil
}

// cutAtHole ends a page before a frame that is missing. The store's own
// deletions leave no hole; somebody else's must not look like the next frame.
func (r *PageRequest) cutAtHole(page *Page) error {
	after := r.After.Sequence
	for i := range page.Frames {
		if page.Frames[i].Position.Sequence != after+1+uint64(i) {
			page.Frames = page.Frames[:i]
			break
		}
	}
	if len(page.Frames) == 0 && after < page.State.Head.Sequence {
		return ErrTrimmed
	}
	return nil
}
