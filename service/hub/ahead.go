package hub

import "github.com/fanfare-io/fanfare/backlog"

// A subscription that reads pages has the next one read while it takes what is in
// hand, so that the store works while frames are sent. That is done
//
//   - for who takes: it has taken half a page, or used one up;
//   - at most one page ahead of each subscription, shared as all pages are;
//   - when no subscription waits for a page, and there is room for one more.
//
// A page that nobody uses yet is the first to be evicted. Whoever comes to it uses it
// only if the stream is what it was when it was read.

// sight is what decides whether a page may be read, and from which server.
type sight struct {
	// listening is the number of the last one, and away is true after its end: the next
	// server may have lost what was read.
	listening uint64
	away      bool
	// current is true for the tail that grows: another one's numbering is over, and
	// its rows will be deleted.
	current bool
	// trimmed is true if rows after the page's position may be gone.
	trimmed bool
}

func (s *stream) sightLocked(p *page) sight {
	current := p.tail == s.current
	return sight{
		listening: s.hub.listened.Load(),
		away:      s.hub.away.Load(),
		current:   current,
		trimmed:   current && p.after.Sequence < s.state.Floor,
	}
}

// readAheadLocked has the page read that follows p, of which last is the last
// position. The stream's mutex is held.
func (h *Hub) readAheadLocked(p *page, last backlog.Position) {
	t := p.tail
	if p.next != nil || last.Sequence >= t.base.Sequence {
		return
	}
	next := t.pages[last.Sequence]
	if next == nil {
		if !h.pages.hasRoom(h.cfg.PageBytes) {
			return
		}
		next = &page{stream: p.stream, tail: t, after: last}
		if !h.pager.pushAhead(next) {
			return
		}
		t.pages[last.Sequence] = next
	}
	p.next = next
	next.keepers++
}

// maxAhead is how many pages that nobody waits for may be queued: when reads are
// slower than that, reading ahead gains nothing.
const maxAhead = 16

// pushAhead queues a page that nobody waits for. It returns false if others are queued
// for which somebody does.
func (g *pager) pushAhead(p *page) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.turns) > 0 || len(g.ahead) >= maxAhead {
		return false
	}
	g.ahead = append(g.ahead, p)
	signal(g.filled)
	return true
}

// pollAheadLocked returns a page that nobody waits for, nil if there is none.
func (g *pager) pollAheadLocked() *page {
	if len(g.ahead) == 0 {
		return nil
	}
	p := g.ahead[0]
	g.ahead = g.ahead[1:]
	if len(g.ahead) > 0 {
		signal(g.filled)
	}
	return p
}

// hasRoom reports whether so many bytes more are within the limit.
func (c *pageCache) hasRoom(bytes int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes+bytes <= c.limit
}
