package main

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// webPatience is how long a connection to the HTTP port keeps its place whoever else
// wants one. Clients send their request with the connection, and answers come from
// memory, so it is enough for those that want one; and little enough for thousands
// of connections to pass in a second, of which a probe may be the last.
const webPatience = 10 * time.Millisecond

// webPlaces are the connections to the HTTP port that there may be at a time. A new
// one takes the place of the one on which nothing has happened for longest: were it
// to wait until that ends, a few silent clients would keep probes from their answers,
// and whoever probes would restart a server that is well.
type webPlaces struct {
	limit int

	mu sync.Mutex // guards what follows
	// taken has since when a connection is in its state.
	taken map[net.Conn]time.Time
}

func newWebPlaces(limit int) *webPlaces {
	return &webPlaces{limit: limit, taken: make(map[net.Conn]time.Time)}
}

// changed is the ConnState hook of the server.
func (p *webPlaces) changed(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		p.take(conn)
	case http.StateActive, http.StateIdle:
		p.move(conn)
	case http.StateClosed, http.StateHijacked:
		p.leave(conn)
	}
}

// take gives a place to a new connection. The server calls it before it reads from
// that, and accepts no other meanwhile.
func (p *webPlaces) take(conn net.Conn) {
	for {
		wait := p.makeRoom()
		if wait <= 0 {
			break
		}
		time.Sleep(wait)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[conn] = time.Now()
}

// makeRoom closes a connection if there is no place. It returns how long it is to be
// borne yet.
func (p *webPlaces) makeRoom() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.taken) < p.limit {
		return 0
	}
	var longest net.Conn
	for conn, since := range p.taken {
		if longest == nil || since.Before(p.taken[longest]) {
			longest = conn
		}
	}
	if wait := webPatience - time.Since(p.taken[longest]); wait > 0 {
		return wait
	}
	delete(p.taken, longest)
	longest.Close()
	return 0
}

// move notes that something has happened on a connection. It may have lost its place
// meanwhile.
func (p *webPlaces) move(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.taken[conn]; ok {
		p.taken[conn] = time.Now()
	}
}

func (p *webPlaces) leave(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.taken, conn)
}
