package hub

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/fanfare-io/fanfare/backlog"
)

// page is a stretch of the backlog that subscriptions below a tail's window
// read together.
type page struct {
	stream *stream
	tail   *tail
	// after is the position before the first frame.
	after backlog.Position
	// rest is true for a page that continues a retired tail, which is read for
	// the tail and not for subscriptions.
	rest bool

	// The following are guarded by stream.mu.

	// readers counts the subscriptions that wait for it or use it.
	readers int
	waiters waiters
	// next is the page after this one, read ahead for its readers; see ahead.go.
	// keepers counts the pages whose next this is.
	next    *page
	keepers int
	// begun is true once it is being read, seen is what the stream was like then, and
	// done is true once it has been read or given up.
	begun, done bool
	seen        sight
	// err is backlog.ErrTrimmed, backlog.ErrNumberingGone or errBrokenPage.
	err error

	// content is nil before the page has been read and after it was evicted.
	content atomic.Pointer[[]*entry]

	// Guarded by pageCache.mu.
	element *list.Element
	bytes   int
}

// errBrokenPage: a page did not continue its position. The position is judged
// anew.
var errBrokenPage = errors.New("the page does not follow its position")

// pageLocked returns the page after a position, to be left with leavePageLocked.
// The stream's mutex is held.
func (h *Hub) pageLocked(s *stream, t *tail, after backlog.Position) *page {
	p := t.pages[after.Sequence]
	switch {
	case p == nil, p.done && p.content.Load() == nil, p.readers == 0 && p.begun && p.seen != s.sightLocked(p):
		p = s.addPageLocked(t, after)
		h.pager.push(p)
	case p.readers == 0 && !p.begun:
		h.pager.push(p) // no longer ahead
	}
	p.readers++
	return p
}

func (s *stream) addPageLocked(t *tail, after backlog.Position) *page {
	if t.pages == nil {
		t.pages = make(map[uint64]*page)
	}
	p := &page{stream: s, tail: t, after: after}
	t.pages[after.Sequence] = p
	return p
}

// leavePageLocked drops a page that nobody uses any more, and what was read ahead for
// who did. The stream's mutex is held.
func (h *Hub) leavePageLocked(p *page) {
	p.readers--
	if p.readers > 0 {
		return
	}
	if next := p.next; next != nil {
		p.next = nil
		next.keepers--
		h.dropUnwantedLocked(next)
	}
	h.dropUnwantedLocked(p)
}

func (h *Hub) dropUnwantedLocked(p *page) {
	if !p.wanted() {
		p.forgetLocked()
		h.pages.remove(p)
	}
}

// wanted reports whether somebody uses the page or is about to.
func (p *page) wanted() bool { return p.readers > 0 || p.keepers > 0 }

// forgetLocked keeps others from finding the page.
func (p *page) forgetLocked() {
	if p.tail.pages[p.after.Sequence] == p {
		delete(p.tail.pages, p.after.Sequence)
	}
}

// runPager reads pages, one at a time. Several run.
func (h *Hub) runPager(ctx context.Context) error {
	retry := newRetry()
	for {
		p := h.pager.take(ctx)
		if p == nil {
			return nil
		}
		if err := h.readPage(ctx, p); err != nil {
			h.pageFailed.warn(slog.String("channel", p.stream.name.Channel), slog.String("scope", p.stream.name.Scope), slog.Any("error", err))
			h.repeatPage(p)
			if !pause(ctx, retry.NextBackOff()) {
				return nil
			}
			continue
		}
		retry.Reset()
	}
}

// readPage reads a page. Its error means: try again.
func (h *Hub) readPage(ctx context.Context, p *page) error {
	request, wanted := h.pageRequest(p)
	if !wanted {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, h.cfg.ReadTimeout)
	defer cancel()
	h.counts.pages.Add(1)
	got, err := h.reader.ReadPage(ctx, h.origin.Load(), request)
	switch {
	case errors.Is(err, backlog.ErrTrimmed), errors.Is(err, backlog.ErrNumberingGone):
	case err != nil:
		return fmt.Errorf("page after %s: %w", p.after, err)
	default:
		err = checkPage(p, got.Frames)
	}
	h.finishPage(p, h.entriesOf(got.Frames), err)
	return nil
}

// repeatPage has a page that could not be read be read again, unless nobody waits for
// it.
func (h *Hub) repeatPage(p *page) {
	p.stream.mu.Lock()
	defer p.stream.mu.Unlock()
	if p.rest || p.readers > 0 {
		p.begun = false
		h.pager.push(p)
		return
	}
	p.done = true
	p.forgetLocked()
}

// pageRequest returns the request for a page, unless nobody wants it any more or it is
// being read.
func (h *Hub) pageRequest(p *page) (backlog.PageRequest, bool) {
	s := p.stream
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.rest {
		return h.newPageRequest(p, h.cfg.PageFrames), true
	}
	if p.begun {
		return backlog.PageRequest{}, false
	}
	if !p.wanted() {
		p.forgetLocked()
		return backlog.PageRequest{}, false
	}
	p.begun, p.seen = true, s.sightLocked(p)
	// What follows the base is in the tail.
	frames := min(uint64(h.cfg.PageFrames), max(1, minus(p.tail.base.Sequence, p.after.Sequence)))
	return h.newPageRequest(p, int(frames)), true
}

func (h *Hub) newPageRequest(p *page, frames int) backlog.PageRequest {
	return backlog.PageRequest{
		Stream:    p.stream.name,
		OwnEpoch:  p.tail.own,
		After:     p.after,
		Running:   true,
		MaxFrames: frames,
		MaxBytes:  h.cfg.PageBytes,
	}
}

// checkPage checks that frames continue the page's position. A page for
// subscriptions cannot be empty: the tail has frames after it.
func checkPage(p *page, frames []backlog.Frame) error {
	if len(frames) == 0 && !p.rest {
		return errBrokenPage
	}
	for i, f := range frames {
		if f.Position.Sequence != p.after.Sequence+1+uint64(i) {
			return errBrokenPage
		}
	}
	return nil
}

// finishPage hands a page that was read, or cannot be, to who waits for it.
func (h *Hub) finishPage(p *page, entries []*entry, err error) {
	var hooks hooks
	defer hooks.call()
	s := p.stream
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.rest {
		if err != nil {
			entries = nil
		}
		if s.restLocked(p.tail, entries, &hooks) {
			h.pager.push(&page{stream: s, tail: p.tail, after: p.tail.head, rest: true})
		}
		return
	}
	p.done, p.err = true, err
	if err != nil || !p.wanted() {
		p.forgetLocked()
	} else {
		p.content.Store(&entries)
		h.pages.add(p, entries, p.readers == 0)
	}
	p.waiters.wake(&hooks)
}

// pager queues pages. Streams take turns, so that one with many slow
// subscriptions does not hold up the others.
type pager struct {
	mu     sync.Mutex
	turns  []*stream
	queued map[*stream][]*page
	// ahead are pages that nobody waits for. They are taken when there are no others.
	ahead  []*page
	filled chan struct{}
}

func newPager() *pager {
	return &pager{queued: make(map[*stream][]*page), filled: make(chan struct{}, 1)}
}

func (g *pager) push(p *page) {
	g.mu.Lock()
	if len(g.queued[p.stream]) == 0 {
		g.turns = append(g.turns, p.stream)
	}
	g.queued[p.stream] = append(g.queued[p.stream], p)
	g.mu.Unlock()
	signal(g.filled)
}

// take waits for a page; it returns nil when ctx has ended.
func (g *pager) take(ctx context.Context) *page {
	for {
		if ctx.Err() != nil {
			return nil
		}
		if p := g.poll(); p != nil {
			return p
		}
		select {
		case <-ctx.Done():
			return nil
		case <-g.filled:
		}
	}
}

func (g *pager) poll() *page {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.turns) == 0 {
		return g.pollAheadLocked()
	}
	s := g.turns[0]
	g.turns = g.turns[1:]
	pages := g.queued[s]
	p := pages[0]
	if len(pages) == 1 {
		delete(g.queued, s)
	} else {
		g.queued[s] = pages[1:]
		g.turns = append(g.turns, s)
	}
	if len(g.turns)+len(g.ahead) > 0 {
		// For the other pagers.
		signal(g.filled)
	}
	return p
}

// pageCache bounds the bytes of all pages in use: beyond, the least recently
// used is evicted, and whoever still needs it reads it again. So a stalled
// subscription does not keep its page.
type pageCache struct {
	mu    sync.Mutex
	limit int
	bytes int
	// order has the least recently used page at the front.
	order *list.List
}

func newPageCache(limit int) *pageCache { return &pageCache{limit: limit, order: list.New()} }

// add takes in a page that was just read; it stays even if it alone is beyond
// the limit. One that was read ahead is the first to be evicted.
func (c *pageCache) add(p *page, entries []*entry, ahead bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		p.bytes += e.bytes() + entryOverhead
	}
	c.bytes += p.bytes
	if ahead {
		p.element = c.order.PushFront(p)
	} else {
		p.element = c.order.PushBack(p)
	}
	for c.bytes > c.limit && c.order.Len() > 1 {
		c.removeLocked(c.order.Front().Value.(*page))
	}
}

// use returns a page's entries, none if it was evicted.
func (c *pageCache) use(p *page) []*entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.element == nil {
		return nil
	}
	c.order.MoveToBack(p.element)
	return *p.content.Load()
}

func (c *pageCache) remove(p *page) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(p)
}

func (c *pageCache) removeLocked(p *page) {
	if p.element == nil {
		return
	}
	c.order.Remove(p.element)
	p.element = nil
	c.bytes -= p.bytes
	p.content.Store(nil)
}

func (c *pageCache) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}
