package service

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
)

// maxUntakenCalls is how many ended calls of one connection may have something
// that their client does not take. Each keeps what grpc accepts for a call, 64 KiB
// and one message, and takes a place among MaxSubscriptions. Above it the siblings
// that do read are ended, too: with the connection, since HTTP/2 has no other way.
const maxUntakenCalls = 100

// connection is a client's connection. Its calls find it by connectionOf.
type connection struct {
	net.Conn
	gone chan struct{} // closed with it
	once sync.Once
	// taken changes when the transport has written all of a call's that was in flight, or
	// never will.
	taken atomic.Uint64
	// untaken counts ended calls whose last words are still to be written.
	untaken atomic.Int64
	// pages are the places of unary calls that are answered with a page.
	pages  *semaphore.Weighted
	outbox outbox
}

func newConnection(conn net.Conn) *connection {
	return &connection{Conn: conn, gone: make(chan struct{}), pages: semaphore.NewWeighted(maxUntakenPages)}
}

func (c *connection) Close() error {
	c.once.Do(func() { close(c.gone) })
	return c.Conn.Close()
}

// connectionCredentials have the calls of a connection know it.
type connectionCredentials struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (c connectionCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	known := newConnection(conn)
	return known, connectionInfo{info, known}, nil
}

// Clone implements credentials.TransportCredentials.
func (c connectionCredentials) Clone() credentials.TransportCredentials {
	return connectionCredentials{c.TransportCredentials.Clone()}
}

type connectionInfo struct {
	credentials.AuthInfo
	connection *connection
}

// connectionOf returns the connection of a call. One that did not come over a
// network has one of its own, which nobody can close.
func connectionOf(ctx context.Context) *connection {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(connectionInfo); ok {
			return info.connection
		}
	}
	return newConnection(noConn{})
}

type noConn struct{ net.Conn }

func (noConn) Close() error { return nil }

// inFlight tells its landing what becomes of what a call hands to grpc. It is a
// buffer without bytes at the end of each message, since grpc frees a message's
// buffers when it has written them, or never will.
//
// There is one exception: grpc may forget a message without freeing it if the client
// cancels the call at the moment it is handed over. So when a call has ended, nobody
// but grpc keeps the buffer.
type inFlight struct {
	mem.SliceBuffer
	*landing
}

// landing counts what a call has handed to grpc and the transport has not written
// yet.
type landing struct {
	connection *connection
	references atomic.Int64
	// landed is called when references come to 0. It must not block.
	landed atomic.Pointer[func()]
}

// newInFlight has landed called when nothing is in flight any more, if it is not nil.
func newInFlight(c *connection, landed func()) *inFlight {
	f := &inFlight{landing: &landing{connection: c}}
	if landed != nil {
		f.landed.Store(&landed)
	}
	return f
}

// Ref implements mem.Buffer.
func (f *inFlight) Ref() { f.references.Add(1) }

// Free implements mem.Buffer.
func (f *inFlight) Free() {
	if f.references.Add(-1) == 0 { // rarely: a message is counted three times by grpc
		f.connection.taken.Add(1)
		f.land()
	}
}

func (l *landing) land() {
	if landed := l.landed.Load(); landed != nil {
		(*landed)()
	}
}

// landWhenForgotten has a call that sends nothing more land, too, when grpc has
// nothing of it any more. What landing calls must not lead to the buffer.
func (f *inFlight) landWhenForgotten() {
	runtime.AddCleanup(f, func(l *landing) {
		if l.references.Swap(0) != 0 {
			l.land()
		}
	}, f.landing)
}

// leave gives back the place of a call that has ended, as soon as its client has
// taken what it was sent: until then grpc holds that, and if the place were free a
// client that takes nothing could fill the memory with calls that have ended. ctx is
// the call's: of one that its client has cancelled grpc holds nothing.
func (s *Server) leave(ctx context.Context, f *inFlight) {
	l := f.landing // not the buffer
	if l.references.Load() == 0 || errors.Is(ctx.Err(), context.Canceled) {
		s.calls.Add(-1)
		return
	}
	landed := make(chan struct{}, 1)
	signal := func() {
		select {
		case landed <- struct{}{}:
		default:
		}
	}
	l.landed.Store(&signal)
	f.landWhenForgotten()
	s.loops.Go(func() {
		defer s.calls.Add(-1)
		l.await(landed, s.cfg.UntakenTimeout)
	})
}

// await waits until everything has been written. It closes the connection when
// nothing was written on it for a time, and when too many of its calls have waited
// that long: there is no other way to tell the client.
func (l *landing) await(landed <-chan struct{}, patience time.Duration) {
	c := l.connection
	c.untaken.Add(1)
	defer c.untaken.Add(-1)
	look := time.NewTicker(patience)
	defer look.Stop()
	for taken := c.taken.Load(); l.references.Load() > 0; {
		select {
		case <-landed:
		case <-c.gone:
			return
		case <-look.C:
			now := c.taken.Load()
			if now == taken || c.untaken.Load() > maxUntakenCalls {
				_ = c.Close()
				return
			}
			taken = now
		}
	}
}
