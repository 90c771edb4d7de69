package sse

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fanfare-io/fanfare/clientlib"
)

// writeBytes is how much a browser must take within the write timeout at least. Parts of
// a batch that are smaller would cost a system call each.
const writeBytes = 16 << 10

// closeTimeout is how long Close waits for browsers that take nothing.
const closeTimeout = time.Second

// Reasons of fanfare.reconnect.
const (
	reasonDraining     = "DRAINING"
	reasonTokenExpired = "TOKEN_EXPIRED"
	reasonLimitReached = "LIMIT_REACHED"
	reasonUnavailable  = "UNAVAILABLE"
)

// conn is one event stream. It belongs to the goroutine that serves the request.
type conn struct {
	handler *Handler
	request asked
	grant   Grant
	writer  http.ResponseWriter
	control *http.ResponseController
	// clears is true if a write deadline must not pass between writes: over HTTP/2 it
	// then ends the stream.
	clears bool
	// woken has a token when there is something to look at.
	woken   chan struct{}
	cursors []*cursor
	// positions are the id: those after everything written. nil before it is known.
	positions []clientlib.Position
	wrote     time.Time
	// heartbeat is the event, and beaten is when the last one was sent. nil: heartbeats are
	// comments.
	heartbeat []byte
	beaten    time.Time
	timer     *time.Timer
	turn      int
	// lends is true while a batch is written that holds something that the budget counts.
	lends bool
	// stuckSince is when the write that is under way began, in Unix nanoseconds, if
	// something is held meanwhile that the budget counts, or may come to be; 0 otherwise.
	// Others read it to find who is stuck.
	stuckSince atomic.Int64
}

func (h *Handler) newConn(w http.ResponseWriter, r *http.Request, a asked, g Grant) *conn {
	return &conn{
		handler: h, request: a, grant: g, writer: w, control: http.NewResponseController(w),
		clears: r.ProtoMajor > 1, woken: make(chan struct{}, 1),
	}
}

// wake may be called by any goroutine, and never blocks.
func (c *conn) wake() {
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// serve answers the request, until the connection ends.
func (c *conn) serve(ctx context.Context) {
	// A server's timeouts are for requests and answers that end.
	_ = c.control.SetReadDeadline(time.Time{})
	c.timer = time.AfterFunc(c.handler.config.Heartbeat, c.wake)
	defer c.timer.Stop()
	defer context.AfterFunc(ctx, c.wake)()
	defer c.leave()
	if !c.begin(ctx) {
		return
	}
	for c.round(ctx) {
		<-c.woken
	}
}

// begin subscribes to all streams and sends the beginning, or answers why not.
func (c *conn) begin(ctx context.Context) bool {
	if err := c.attach(); err != nil {
		c.postpone(reasonOf(err))
		return false
	}
	deadline := time.Now().Add(c.handler.config.SubscribeTimeout)
	late := time.AfterFunc(time.Until(deadline), c.wake)
	defer late.Stop()
	for {
		all, err := c.beginAll()
		switch {
		case ctx.Err() != nil:
			return false
		case err != nil:
			c.refuse(ctx, err)
			return false
		case c.handler.draining():
			c.postpone(reasonDraining)
			return false
		case c.expired():
			c.postpone(reasonTokenExpired)
			return false
		case all:
			return c.open()
		case !time.Now().Before(deadline):
			c.postpone(reasonUnavailable)
			return false
		}
		<-c.woken
	}
}

// attach finds the streams' relays.
func (c *conn) attach() error {
	as := plain
	if c.request.json {
		as = wrapped
	}
	for i, s := range c.request.streams {
		r, err := c.handler.acquire(s)
		if err != nil {
			return err
		}
		cursor := &cursor{relay: r, wake: c.wake, index: i, form: as, start: c.request.starts[i], resumes: c.request.resumes}
		c.cursors = append(c.cursors, cursor)
		r.want(as)
		r.watch(cursor)
	}
	return nil
}

// reasonOf is what a browser is told of an error that passes.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, errHandlerClosed):
		return reasonDraining
	case errors.Is(err, errTooManyRelays):
		return reasonLimitReached
	default:
		return reasonUnavailable
	}
}

func (c *conn) leave() {
	for _, cursor := range c.cursors {
		cursor.leave()
	}
}

func (c *conn) beginAll() (all bool, err error) {
	all = true
	for _, cursor := range c.cursors {
		begun, err := cursor.begin()
		if err != nil {
			return false, err
		}
		all = all && begun
	}
	return all, nil
}

// open sends the beginning. Nothing is sent if there is nothing to come for ever.
func (c *conn) open() bool {
	over := true
	for _, cursor := range c.cursors {
		over = over && cursor.over()
		c.positions = append(c.positions, cursor.position)
	}
	if over {
		c.writer.WriteHeader(http.StatusNoContent)
		return false
	}
	c.header()
	retry := c.handler.retry()
	b := appendRetry(nil, retry)
	b = append(appendID(b, c.positions), '\n')
	if c.request.heartbeats {
		c.heartbeat = heartbeatBlock(c.handler.config.Heartbeat, retry)
		b = append(b, c.heartbeat...)
		c.beaten = time.Now()
	}
	return c.write(b) && c.flush()
}

func (c *conn) header() {
	h := c.writer.Header()
	h.Set("Content-Type", "text/event-stream")
	if !c.clears {
		// It would be of little use to another request, has a write deadline, and the
		// browser should come back through whatever spreads connections.
		h.Set("Connection", "close")
	}
	c.writer.WriteHeader(http.StatusOK)
}

// postpone answers that the browser should come back. The id is sent again, because a
// parser forgets the last one when a connection begins.
func (c *conn) postpone(reason string) {
	c.handler.postponed.Add(1)
	c.header()
	var b []byte
	if c.request.resumes {
		var positions []clientlib.Position
		for _, s := range c.request.starts {
			positions = append(positions, s.position)
		}
		b = append(appendID(b, positions), '\n')
	}
	_ = c.write(appendReconnect(b, reason, c.handler.retry())) && c.flush()
}

// refuse answers an error of a stream.
func (c *conn) refuse(ctx context.Context, err error) {
	var e *clientlib.Error
	if errors.As(err, &e) && e.Reason == clientlib.ReasonInvalidField {
		c.handler.refuse(c.writer, http.StatusBadRequest, problem{Message: e.Message, Reason: e.Reason, Field: e.Field})
		return
	}
	c.handler.log.tell(ctx, slog.LevelWarn, "cannot subscribe for a browser", err)
	c.postpone(reasonOf(err))
}

// round writes what there is, and reports whether the connection goes on.
func (c *conn) round(ctx context.Context) bool {
	b := batches.Get().(*batch)
	defer b.release()
	for {
		switch {
		case ctx.Err() != nil, c.handler.isClosed():
			return false
		case c.handler.draining():
			return c.end(reasonDraining)
		case c.expired():
			return c.end(reasonTokenExpired)
		case !c.beat():
			return false
		}
		over, err := c.collect(b)
		switch {
		case len(b.outs) > 0:
			if !c.writeBatch(b) {
				return false
			}
		case err != nil:
			return c.end(reasonOf(err))
		case over:
			return false
		default:
			c.rest()
			return true
		}
	}
}

// collect fills a batch, which is empty, from another stream first each time.
func (c *conn) collect(b *batch) (over bool, err error) {
	over = true
	c.turn++
	for i := range c.cursors {
		cursor := c.cursors[(i+c.turn)%len(c.cursors)]
		cursor.advance(b)
		over = over && cursor.done
		if cursor.err != nil {
			err = cursor.err
		}
	}
	return over, err
}

// beat sends a heartbeat if one is due.
func (c *conn) beat() bool {
	now := time.Now()
	if now.Before(c.nextBeat()) {
		return true
	}
	b := append(appendID([]byte(":\n"), c.positions), '\n')
	if c.heartbeat != nil {
		b = append(b, c.heartbeat...)
		c.beaten = now
	}
	return c.write(b) && c.flush()
}

// nextBeat is when a heartbeat is due: a comment after silence, for proxies, and an event
// whatever was sent meanwhile, as a page does not see events that it does not listen to.
func (c *conn) nextBeat() time.Time {
	last := c.wrote
	if c.heartbeat != nil {
		last = c.beaten
	}
	return last.Add(c.handler.config.Heartbeat)
}

// rest sets the timer for what is due next.
func (c *conn) rest() {
	next := c.nextBeat()
	if !c.grant.Expires.IsZero() && c.grant.Expires.Before(next) {
		next = c.grant.Expires
	}
	for _, cursor := range c.cursors {
		if cursor.rests && cursor.restsUntil.Before(next) {
			next = cursor.restsUntil
		}
	}
	c.timer.Reset(max(time.Until(next), time.Millisecond))
}

func (c *conn) expired() bool {
	return !c.grant.Expires.IsZero() && !time.Now().Before(c.grant.Expires)
}

// end sends advice to come back. It returns false.
func (c *conn) end(reason string) bool {
	b := append(appendID(nil, c.positions), '\n')
	_ = c.write(appendReconnect(b, reason, c.handler.retry())) && c.flush()
	return false
}

// writeBatch writes events with their ids, and gives back at once what they held: a
// heartbeat may be written before the next batch, and be stuck.
func (c *conn) writeBatch(b *batch) bool {
	c.lends = b.lent != nil || len(b.spent) > 0
	b.text = b.text[:0]
	frames := uint64(0)
	for _, o := range b.outs {
		c.positions[o.stream] = o.after
		switch o.kind {
		case frame:
			b.text = appendID(b.text, c.positions)
			frames++
		case passing:
			frames++
		}
		if len(o.block) > batchBytes { // not copied
			if !c.write(b.text) || !c.write(o.block) {
				return false
			}
			b.text = b.text[:0]
		} else {
			b.text = append(b.text, o.block...)
		}
		switch o.kind {
		case gap:
			b.text = append(appendID(b.text, c.positions), '\n')
			c.handler.gaps.Add(1)
		case missedGap:
			c.handler.gaps.Add(1)
		}
	}
	c.handler.frames.Add(frames)
	if !c.write(b.text) || !c.flush() {
		return false
	}
	b.reset()
	c.lends = false
	return true
}

// write hands bytes to the server, in parts that each have the write timeout. What may be
// written only by flush, which follows, is under way until then.
func (c *conn) write(b []byte) bool {
	holds := c.lends || slices.ContainsFunc(c.cursors, (*cursor).replays)
	for len(b) > 0 {
		part := b[:min(len(b), writeBytes)]
		b = b[len(part):]
		c.wrote = time.Now()
		_ = c.control.SetWriteDeadline(c.wrote.Add(c.handler.config.WriteTimeout))
		if holds {
			c.stuckSince.Store(c.wrote.UnixNano())
		}
		c.hurry()
		if _, err := c.writer.Write(part); err != nil {
			return c.failed(err)
		}
		c.handler.bytes.Add(uint64(len(part)))
	}
	return true
}

// hurry bounds the write that is under way, or begins, if the handler was closed. Close,
// which may come at any moment, calls it, too, after it has closed the handler.
func (c *conn) hurry() {
	if last := c.handler.shut.Load(); last != nil {
		_ = c.control.SetWriteDeadline(*last)
	}
}

func (c *conn) flush() bool {
	if err := c.control.Flush(); err != nil {
		return c.failed(err)
	}
	c.stuckSince.Store(0)
	if c.clears {
		_ = c.control.SetWriteDeadline(time.Time{})
	}
	return true
}

func (c *conn) failed(err error) bool {
	switch {
	case c.handler.isClosed(): // which hurries the writes
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.handler.slow.Add(1)
	case errors.Is(err, http.ErrNotSupported):
		c.handler.log.tell(context.Background(), slog.LevelError, "the server's ResponseWriter has no Flush and unwraps to none, which event streams need", err)
	}
	return false
}

// retry is how long a browser should wait. It differs, so that those that were ended
// together do not come back together.
func (h *Handler) retry() time.Duration {
	return h.config.Retry + rand.N(2*h.config.Retry)
}
