package hub

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/fanfare-io/fanfare/backlog"
)

// ephemeralLog is what a stream's ephemeral frames were, in the order of commit,
// and where its numberings ended.
type ephemeralLog struct {
	mu       sync.Mutex
	payloads []string
	// ends has, for the last position of each closed numbering, how many there were
	// when it was closed.
	ends map[backlog.Position]int
}

func (m *modelRun) publishEphemeral(s *modelStream, payload string) {
	m.bus.commit(func() []backlog.Announcement {
		s.log.mu.Lock()
		defer s.log.mu.Unlock()
		s.log.payloads = append(s.log.payloads, payload)
		return []backlog.Announcement{m.store.publishEphemeral(s.name, payload)}
	})
}

func (m *modelRun) closeLogged(s *modelStream) {
	m.bus.commit(func() []backlog.Announcement {
		s.log.mu.Lock()
		defer s.log.mu.Unlock()
		a, ok := m.store.close(s.name)
		if !ok {
			return nil
		}
		if s.log.ends == nil {
			s.log.ends = make(map[backlog.Position]int)
		}
		s.log.ends[a.Frame.Position] = len(s.log.payloads)
		return []backlog.Announcement{a}
	})
}

// ephemeralSeen is what of a log one subscription has had.
type ephemeralSeen struct {
	log *ephemeralLog
	// next is the index of the frame that must come next, from began on; before, any
	// may have come that was committed during the subscribe.
	next, began int
	// missed is true if frames before the next one that comes may be missing.
	missed bool
	had    map[int]bool
	taken  int // of the reader's
}

// follow is called when a subscription has begun.
func (l *ephemeralLog) follow() *ephemeralSeen {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &ephemeralSeen{log: l, next: len(l.payloads), began: len(l.payloads), had: make(map[int]bool)}
}

// checkEphemeral checks what a delivery brought: each frame once, in the order of
// commit, none left out without a gap, and all before the end.
func (c *modelClient) checkEphemeral(seen *ephemeralSeen, r *reader, notice Notice) error {
	seen.log.mu.Lock()
	defer seen.log.mu.Unlock()
	for _, payload := range r.ephemeral[seen.taken:] {
		c.ephemeral.Add(1)
		if err := seen.take(payload, c.shuffled); err != nil {
			return err
		}
	}
	seen.taken = len(r.ephemeral)
	switch n := notice.(type) {
	case Gap:
		seen.missed = true
	case Closed:
		if end := seen.log.ends[n.Last]; end > seen.next && !seen.missed && !c.shuffled {
			return fmt.Errorf("closed after %d of %d ephemeral frames", seen.next, end)
		}
	}
	return nil
}

// accounted reads on after the final frame until every ephemeral frame before it
// has come, or the subscription has been told that some may be missing.
func (c *modelClient) accounted(ctx context.Context, seen *ephemeralSeen, r *reader) error {
	for !c.shuffled && !seen.missed && !seen.complete() {
		d, err := r.next(ctx)
		if err != nil {
			return fmt.Errorf("after the final frame with %d of %d ephemeral ones: %w", seen.next, len(seen.log.payloads), err)
		}
		if err := c.checkEphemeral(seen, r, d.Notice); err != nil {
			return err
		}
	}
	return nil
}

func (seen *ephemeralSeen) complete() bool {
	seen.log.mu.Lock()
	defer seen.log.mu.Unlock()
	return seen.next == len(seen.log.payloads)
}

func (seen *ephemeralSeen) take(payload string, shuffled bool) error {
	i, found := slices.BinarySearchFunc(seen.log.payloads, payload, func(a, b string) int { return number(a) - number(b) })
	switch {
	case !found:
		return fmt.Errorf("ephemeral frame %q was never published", payload)
	case seen.had[i]:
		return fmt.Errorf("ephemeral frame %q came twice", payload)
	}
	seen.had[i] = true
	switch {
	case shuffled:
		return nil
	case i < seen.next && i >= seen.began:
		return fmt.Errorf("ephemeral frame %q (%d) came after %d", payload, i, seen.next-1)
	case i < seen.next:
		return nil
	case i > seen.next && !seen.missed:
		return fmt.Errorf("ephemeral frame %q (%d) came, but not %d", payload, i, seen.next)
	}
	seen.next, seen.missed = i+1, false
	return nil
}

func number(payload string) int {
	n, err := strconv.Atoi(payload)
	if err != nil {
		panic(err)
	}
	return n
}

// modelOrder is what one subscription has had, as far as it says which frames of
// either kind may still come.
type modelOrder struct {
	// latest is the payload of the frame that was published last of those that came.
	latest int
	// told is the last payload that had been published when the subscription was told
	// of a gap, until one that was published later has come; -1 if it was not.
	told int
}

// checkOrder checks that no frame comes after one that was published later. A gap
// tells that there may be some, of those published before it came. Where commits
// were lost others stand in the place that an ephemeral frame was to follow.
func (c *modelClient) checkOrder(order *modelOrder, d Delivery) error {
	if _, ok := d.Notice.(Gap); ok {
		order.told, order.latest = int(c.next.Load()), 0
	}
	for _, frame := range d.Frames {
		words := strings.Fields(string(frame))
		payload := words[len(words)-1]
		if payload == "final" {
			continue
		}
		n := number(payload)
		switch {
		case order.told >= 0 && n <= order.told:
			continue
		case n < order.latest && !c.shuffled && c.stream.losses.Load() == 0:
			return fmt.Errorf("frame %d came after %d", n, order.latest)
		}
		order.told, order.latest = -1, n
	}
	return nil
}
