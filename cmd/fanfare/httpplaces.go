package main

import (
	"container/list"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// webPatience is how long a connection to the HTTP port keeps its place whoever
	// else wants one. Clients send their request with the connection, and most answers
	// come from memory, so it is enough for those that want one; and little enough for
	// thousands of connections to pass in a second, of which a probe may be the last.
	webPatience = 10 * time.Millisecond
	// webReserve are the places that streams cannot take: there is always one for a
	// probe.
	webReserve = 64
)

// webPlaces are the connections to the HTTP port that there may be at a time: those that
// hold a stream, limit at most, and others, which share what those leave and the reserve.
// A new connection takes the place of the one, of those without a stream, on which
// nothing has happened for longest: were it to wait until that ends, silent clients would
// keep probes from their answers, and whoever probes would restart a server that is well.
type webPlaces struct {
	limit, reserve int

	mu sync.Mutex // guards what follows
	// taken are all connections that have a place, silent those of them without a
	// stream, that on which nothing has happened for longest first.
	taken  map[net.Conn]*webPlace
	silent *list.List
	// streams is how many are held.
	streams int
}

// webPlace is the place of a connection.
type webPlace struct {
	conn net.Conn
	// since is when something last happened.
	since time.Time
	// streams are what it holds. Without any it has an element of silent.
	streams int
	element *list.Element
}

func newWebPlaces(limit, reserve int) *webPlaces {
	return &webPlaces{limit: limit, reserve: reserve, taken: make(map[net.Conn]*webPlace), silent: list.New()}
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
	place := &webPlace{conn: conn, since: time.Now()}
	place.element = p.silent.PushBack(place)
	p.taken[conn] = place
}

// makeRoom closes a connection if there is no place. It returns how long that is to be
// borne yet.
func (p *webPlaces) makeRoom() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.taken) < p.limit+p.reserve {
		return 0
	}
	// There is one: streams hold at most limit.
	longest := p.silent.Front().Value.(*webPlace)
	if wait := webPatience - time.Since(longest.since); wait > 0 {
		return wait
	}
	p.giveUpLocked(longest)
	longest.conn.Close()
	return 0
}

// move notes that something has happened on a connection. It may have lost its place
// meanwhile.
func (p *webPlaces) move(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if place := p.taken[conn]; place != nil && place.streams == 0 {
		place.since = time.Now()
		p.silent.MoveToBack(place.element)
	}
}

func (p *webPlaces) leave(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if place := p.taken[conn]; place != nil {
		p.giveUpLocked(place)
	}
}

func (p *webPlaces) giveUpLocked(place *webPlace) {
	delete(p.taken, place.conn)
	if place.streams == 0 {
		p.silent.Remove(place.element)
	}
}

// hold has a connection keep its place as long as it has a stream, whatever happens on
// it. It fails if there are as many streams as there may be, or if the connection has lost
// its place. release is called once, when the stream has ended.
func (p *webPlaces) hold(conn net.Conn) (release func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	place := p.taken[conn]
	if place == nil || p.streams >= p.limit {
		return nil, false
	}
	p.streams++
	if place.streams++; place.streams == 1 {
		p.silent.Remove(place.element)
	}
	return func() { p.release(place) }, true
}

func (p *webPlaces) release(place *webPlace) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams--
	if place.streams--; place.streams > 0 || p.taken[place.conn] != place {
		return
	}
	place.since = time.Now()
	place.element = p.silent.PushBack(place)
}
