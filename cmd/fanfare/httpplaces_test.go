package main

import (
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// watchedConn knows whether it was closed.
type watchedConn struct {
	net.Conn
	closed bool
}

func (c *watchedConn) Close() error {
	c.closed = true
	return nil
}

// A new connection takes the place of the one on which nothing has happened for
// longest, whatever that is about, and no sooner than that had time to ask.
func TestNewHTTPClientTakesAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		places := newWebPlaces(0, 4)
		add := func() (conn *watchedConn, took time.Duration) {
			conn = &watchedConn{}
			began := time.Now()
			places.changed(conn, http.StateNew)
			return conn, time.Since(began)
		}
		var conns []*watchedConn
		for range 4 {
			conn, took := add()
			if took != 0 {
				t.Errorf("waited for %s, and there was room", took)
			}
			conns = append(conns, conn)
			elapse(time.Second)
		}
		silent, answered, asking, young := conns[1], conns[0], conns[2], conns[3]
		places.changed(answered, http.StateActive)
		places.changed(answered, http.StateIdle)
		elapse(time.Second)
		places.changed(asking, http.StateActive)
		elapse(time.Second)
		// Nothing has happened on them for 5, 4, 2 and 1 seconds.
		for i, want := range []*watchedConn{silent, young, answered, asking} {
			conn, took := add()
			if took != 0 {
				t.Errorf("waited for %s, and there were connections to close", took)
			}
			if conns = append(conns, conn); !want.closed {
				t.Errorf("new connection %d did not take the place that it should", i)
			}
			for _, c := range conns[4:] {
				if c.closed {
					t.Errorf("new connection %d took a newer one's place", i)
				}
			}
			// What it was doing when it lost its place makes it none.
			places.changed(want, http.StateActive)
			places.changed(want, http.StateClosed)
			elapse(time.Millisecond)
		}
		if len(places.taken) != 4 {
			t.Errorf("%d connections have a place", len(places.taken))
		}
		if _, took := add(); took != webPatience-4*time.Millisecond || !conns[4].closed {
			t.Errorf("waited for %s, and the oldest connection was there for 4ms", took)
		}
		places.changed(conns[5], http.StateClosed)
		if _, took := add(); took != 0 || conns[6].closed {
			t.Errorf("waited for %s although a connection had ended", took)
		}
	})
}

// A connection with a stream keeps its place, however long nothing happens on it and
// whoever comes, until the stream has ended; there are as many such as there may be, and
// places beside them.
func TestHTTPStreamsKeepTheirPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		places := newWebPlaces(2, 3)
		add := func() *watchedConn {
			elapse(webPatience)
			conn := &watchedConn{}
			places.changed(conn, http.StateNew)
			return conn
		}
		first, second, third := add(), add(), add()
		end, ok := places.hold(first)
		again, both := places.hold(first)
		if !ok || !both {
			t.Fatal("a connection may not hold two streams, and there is room for two")
		}
		if _, ok := places.hold(second); ok {
			t.Error("a third stream was let in")
		}
		again()
		endSecond, ok := places.hold(second)
		if !ok {
			t.Error("the place of a stream that has ended was not given back")
		}
		for range 20 {
			places.changed(first, http.StateActive)
			add()
		}
		if first.closed || second.closed {
			t.Error("a stream lost its place")
		}
		if !third.closed {
			t.Error("a connection without a stream kept its place")
		}
		if _, ok := places.hold(third); ok {
			t.Error("a connection holds a stream that has lost its place")
		}
		if n := len(places.taken); n != 5 {
			t.Errorf("%d connections have a place", n)
		}
		end()
		for range 20 {
			add()
		}
		if !first.closed {
			t.Error("a connection whose stream has ended kept its place")
		}
		places.changed(second, http.StateClosed)
		endSecond()
		if n := places.streams; n != 0 {
			t.Errorf("%d streams are held, and all have ended", n)
		}
	})
}

// elapse lets the clock of a synctest bubble, which no test waits for, run on.
func elapse(d time.Duration) { <-time.After(d) }
