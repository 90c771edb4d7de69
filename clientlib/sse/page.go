package sse

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/fanfare-io/fanfare/clientlib"
)

const (
	// pageBytes is after how many bytes a page ends; one frame is always taken.
	pageBytes = 64 << 10
	// pageTime is after how long it ends, once it has anything: a browser should not wait for
	// a page to be full when the servers are slow.
	pageTime = 100 * time.Millisecond
)

// page is a part of a stream that the ring does not have, or the answer that it is not
// needed: what a subscription of its own yielded.
type page struct {
	// begins is where the server said that delivery begins.
	begins clientlib.Position
	// entries are durable frames, gaps that move the position, and the stream's close.
	entries []*entry
	// next, if not zero, is the frame that follows, which is in the ring: so are the
	// ephemeral frames before it.
	next clientlib.Position
	// caughtUp is true if the stream had nothing more. ahead is true if it had what the
	// relay has not had yet.
	caughtUp, ahead bool

	// bytes are those of the entries, which budget counts until the last of holders has
	// written them.
	bytes   int
	budget  *budget
	holders atomic.Int32
}

// hold has the page counted until so many have released it.
func (p *page) hold(by *budget, holders int) {
	p.budget = by
	p.holders.Store(int32(holders)) //nolint:gosec // connections
	if holders > 0 {
		by.add(p.bytes)
	}
}

// release is called once by each holder.
func (p *page) release() {
	if p.holders.Add(-1) == 0 {
		p.budget.add(-p.bytes)
	}
}

// pageRead is a page that is being read, or will be, for all who wait for it. The
// relay's mutex guards it.
type pageRead struct {
	waiters map[*cursor]struct{}
	cancel  context.CancelFunc
	begun   bool
	// page or err are there once done is true.
	done bool
	page *page
	err  error
}

func newPageRead() *pageRead { return &pageRead{waiters: map[*cursor]struct{}{}} }

// reads are those of one start: one at a time. Who comes while one has begun waits for
// the next, because a verdict on a position must be younger than the request: another
// server may know more than one did a moment before.
type reads struct{ current, next *pageRead }

// readPage has the page after a start read, and c woken when it is there. False: the
// handler is closed.
func (r *relay) readPage(c *cursor, from start) (*pageRead, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reads == nil {
		r.reads = map[start]*reads{}
	}
	of := r.reads[from]
	switch {
	case of == nil:
		of = &reads{current: newPageRead()}
		if _, ok := r.handler.run(func(ctx context.Context) { r.readPages(ctx, from, of) }); !ok {
			return nil, false
		}
		r.reads[from] = of
		of.current.waiters[c] = struct{}{}
		return of.current, true
	case !of.current.begun:
		of.current.waiters[c] = struct{}{}
		return of.current, true
	case of.next == nil:
		of.next = newPageRead()
	}
	of.next.waiters[c] = struct{}{}
	return of.next, true
}

// leavePage has c not wait any more.
func (r *relay) leavePage(c *cursor, read *pageRead) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if read.done {
		if read.page != nil {
			read.page.release()
		}
		return
	}
	delete(read.waiters, c)
	if len(read.waiters) == 0 && read.cancel != nil {
		read.cancel()
	}
}

// readPages reads one page after the other while somebody waits for one.
func (r *relay) readPages(ctx context.Context, from start, of *reads) {
	for {
		r.readNext(ctx, from, of)
		r.mu.Lock()
		of.current, of.next = of.next, nil
		over := of.current == nil
		if over {
			delete(r.reads, from)
		}
		r.mu.Unlock()
		if over {
			return
		}
	}
}

func (r *relay) readNext(ctx context.Context, from start, of *reads) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.handler.config.SubscribeTimeout, errors.New("the servers did not answer in time"))
	defer cancel()
	r.mu.Lock()
	read := of.current
	read.cancel = cancel
	if len(read.waiters) == 0 {
		cancel()
	}
	r.mu.Unlock()
	p, err := r.takeTurn(ctx, from, read)
	r.mu.Lock()
	read.done, read.page, read.err = true, p, err
	waiters := read.waiters
	read.waiters = nil
	if p != nil {
		p.hold(&r.handler.holding, len(waiters))
	}
	r.mu.Unlock()
	for c := range waiters {
		c.wake()
	}
}

// takeTurn waits until few enough pages are being read, and little enough is held of them.
func (r *relay) takeTurn(ctx context.Context, from start, read *pageRead) (*page, error) {
	h := r.handler
	h.replaysWaiting.Add(1)
	select {
	case h.turns <- struct{}{}:
		h.replaysWaiting.Add(-1)
		defer func() { <-h.turns }()
	case <-ctx.Done():
		h.replaysWaiting.Add(-1)
		return nil, context.Cause(ctx)
	}
	if err := h.awaitRoom(ctx); err != nil {
		return nil, err
	}
	r.mu.Lock()
	read.begun = true
	r.mu.Unlock()
	h.pages.Add(1)
	return r.subscribePage(ctx, from)
}

// subscribePage reads a page by a subscription of its own.
func (r *relay) subscribePage(ctx context.Context, from start) (*page, error) {
	s := r.handler.client.Subscribe(ctx, r.stream, from.upstream(), clientlib.WithReadAhead(pageBytes))
	defer func() { _ = s.Close() }()
	reading := pageReading{relay: r, from: from, page: &page{}}
	patience := ctx
	for {
		e, err := s.Next(patience)
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), reading.page.bytes > 0:
			return reading.page, nil
		default:
			return nil, err
		}
		if reading.take(e) {
			return reading.page, nil
		}
		if reading.page.bytes > 0 && patience == ctx {
			var stop context.CancelFunc
			patience, stop = context.WithTimeout(ctx, pageTime)
			defer stop()
		}
	}
}

// pageReading is how far a page is.
type pageReading struct {
	relay *relay
	from  start
	page  *page
	// awaitsClosed is true if the stream is closed and what is read is of the numbering
	// that ended: Closed follows.
	awaitsClosed bool
}

// take takes in what the subscription yields and reports whether the page is full.
// Ephemeral frames come from the ring.
func (p *pageReading) take(event clientlib.Event) (full bool) {
	r := p.relay
	switch e := event.(type) {
	case *clientlib.Subscribed:
		return p.takeSubscribed(e)
	case *clientlib.Frame:
		if e.Ephemeral {
			return false
		}
		return p.takeFrame(e)
	case *clientlib.Gap:
		if e.Reason != clientlib.EphemeralMaybeMissed {
			p.awaitsClosed = false
			p.add(newNotice(loss, e.ResumeAfter, gapBlock(r.stream, e)))
		}
	case *clientlib.Closed:
		p.add(newNotice(closed, e.Last, closedBlock(r.stream, e.Last)))
		return true
	case *clientlib.CaughtUp:
		p.page.caughtUp = true
		return !p.awaitsClosed
	}
	return false
}

func (p *pageReading) takeFrame(f *clientlib.Frame) (full bool) {
	r := p.relay
	switch where := r.locate(f.Position); {
	case where == inRing:
		p.page.next = f.Position
		return true
	case where == aheadOfRing && !p.awaitsClosed:
		p.page.ahead = true
		return true
	default:
		p.add(newEntry(r.stream, f, f.Position, r.formsWanted()))
		return p.page.bytes >= pageBytes || where == beforeRing
	}
}

func (p *pageReading) takeSubscribed(e *clientlib.Subscribed) (full bool) {
	if p.page.bytes > 0 {
		return true // it has begun anew in the middle
	}
	p.page.begins = e.ResumeAfter
	continues := p.from.kind != fromAfter || e.Resumed
	p.awaitsClosed = p.from.kind == fromAfter && e.Resumed && p.relay.awaitsReopening()
	return continues && !p.awaitsClosed && p.relay.holds(e.ResumeAfter)
}

func (p *pageReading) add(e *entry) {
	p.page.entries = append(p.page.entries, e)
	p.page.bytes += e.size
}

// place is where a durable frame stands.
type place uint8

const (
	// elsewhere: below the ring, or in another numbering.
	elsewhere place = iota
	// beforeRing: right before its oldest entry.
	beforeRing
	inRing
	// aheadOfRing: the relay has not had it. It is left to the relay, because ephemeral
	// frames that were published before it may be on their way there.
	aheadOfRing
)

func (r *relay) locate(p clientlib.Position) place {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if _, ok := r.ring.findFrame(p); ok {
		return inRing
	}
	switch {
	case r.ring.isBefore(p, true):
		return beforeRing
	case p.Sequence > r.position.Sequence:
		return aheadOfRing
	default:
		return elsewhere
	}
}

func (r *relay) formsWanted() [forms]bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.wanted
}

func (r *relay) awaitsReopening() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return !r.closedHead.IsZero()
}
