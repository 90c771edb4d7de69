package pgtest

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// Direction is a way through a proxy.
type Direction uint8

// Directions; they combine with |.
const (
	ToServer Direction = 1 << iota
	ToClient
	BothWays = ToServer | ToClient
)

// ProxyServer is a TCP proxy that loses, delays and cuts what it carries. Its
// methods may be called from any goroutine.
type ProxyServer struct {
	listener net.Listener
	tasks    sync.WaitGroup

	// mu guards the fields below.
	mu     sync.Mutex
	target string
	links  map[*link]struct{}
	// changed is closed and replaced when held, closed or what links hold changes.
	changed chan struct{}
	held    Direction
	refuse  bool
	delay   time.Duration
	closed  bool
	// trigger, if not nil, is what HoldReply waits for; triggered is then closed.
	trigger   []byte
	triggered chan struct{}
}

// link is one proxied connection.
type link struct {
	client, server net.Conn
	once           sync.Once
	gone           chan struct{} // closed when both sides have been closed
	// holdsReply is guarded by the proxy's mu: nothing goes to the client.
	holdsReply bool
	// sent is the end of what went to the server, where a trigger may begin. Only
	// the goroutine that carries bytes there uses it.
	sent []byte
}

// Proxy starts a proxy to target: HOST:PORT, or a URL of a PostgreSQL database.
// It is gone when t ends.
func Proxy(t testing.TB, target string) *ProxyServer {
	t.Helper()
	address, err := hostPort(target)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("start a proxy: %v", err)
	}
	p := &ProxyServer{listener: l, target: address, links: map[*link]struct{}{}, changed: make(chan struct{})}
	p.tasks.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

func hostPort(target string) (string, error) {
	if !strings.Contains(target, "://") {
		return target, nil
	}
	u, err := url.Parse(target)
	if err != nil {
		return "", fmt.Errorf("target of the proxy: %w", err)
	}
	if u.Port() == "" {
		return net.JoinHostPort(u.Hostname(), "5432"), nil
	}
	return u.Host, nil
}

// URL returns a PostgreSQL URL that leads through the proxy.
func (p *ProxyServer) URL(databaseURL string) string {
	u, err := url.Parse(databaseURL)
	if err != nil {
		return databaseURL // refused by whoever connects
	}
	u.Host = p.Addr()
	return u.String()
}

// Addr returns the proxy's HOST:PORT.
func (p *ProxyServer) Addr() string { return p.listener.Addr().String() }

// SetTarget makes new connections go to another target, as a changed DNS answer
// does. Existing ones stay.
func (p *ProxyServer) SetTarget(t testing.TB, target string) {
	t.Helper()
	address, err := hostPort(target)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = address
}

// Cut closes all connections, both ends, losing what is on its way. New ones
// work.
func (p *ProxyServer) Cut() { p.cut(false) }

// Reset is Cut with TCP resets instead of orderly ends.
func (p *ProxyServer) Reset() { p.cut(true) }

// Refuse makes new connections end as soon as they begin, until Restore.
func (p *ProxyServer) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = true
}

// Blackhole stops carrying bytes in directions, of existing and new
// connections, and keeps all sockets open, until Restore. What is sent
// meanwhile fills the buffers of the kernel and then blocks its sender.
func (p *ProxyServer) Blackhole(directions Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = directions
	p.announceLocked()
}

// Delay holds every chunk of bytes back for d, until Restore.
func (p *ProxyServer) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// HoldReply waits for a client that sends trigger. That reaches the server;
// whatever the server sends on that connection from then on is held, as when a
// commit is done and its answer is lost. It returns a channel that is closed when
// trigger has come. Restore delivers what is held, or stops waiting; Cut and
// Reset lose it. One trigger is waited for at a time.
func (p *ProxyServer) HoldReply(trigger string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trigger, p.triggered = []byte(trigger), make(chan struct{})
	return p.triggered
}

// Restore ends every fault. What was held is delivered.
func (p *ProxyServer) Restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held, p.refuse, p.delay, p.trigger = 0, false, 0, nil
	for l := range p.links {
		l.holdsReply = false
	}
	p.announceLocked()
}

// Connections returns how many connections the proxy carries.
func (p *ProxyServer) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

func (p *ProxyServer) announceLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *ProxyServer) cut(reset bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.end(reset)
	}
}

func (p *ProxyServer) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.announceLocked()
	p.mu.Unlock()
	p.Cut()
	p.tasks.Wait()
}

func (p *ProxyServer) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.tasks.Go(func() { p.carry(client) })
	}
}

// carry runs one connection.
func (p *ProxyServer) carry(client net.Conn) {
	defer client.Close()
	target, ok := p.admit()
	if !ok {
		return
	}
	server, err := net.DialTimeout("tcp", target, 10*time.Second)
	if err != nil {
		return
	}
	defer server.Close()
	l := &link{client: client, server: server, gone: make(chan struct{})}
	if !p.add(l) {
		return
	}
	defer p.drop(l)
	var ways sync.WaitGroup
	ways.Go(func() { p.copy(l, server, client, ToServer) })
	p.copy(l, client, server, ToClient)
	ways.Wait()
}

func (p *ProxyServer) admit() (target string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target, !p.refuse && !p.closed
}

func (p *ProxyServer) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.refuse {
		return false
	}
	p.links[l] = struct{}{}
	return true
}

func (p *ProxyServer) drop(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// copy carries bytes one way until either end closes, then ends both. An end is
// held like bytes are: in a real network it is a packet, too.
func (p *ProxyServer) copy(l *link, to io.Writer, from io.Reader, way Direction) {
	defer l.end(false)
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if !p.pass(l, way) {
			return
		}
		if n > 0 {
			if way == ToServer {
				p.lookForTrigger(l, buffer[:n])
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				p.pass(l, BothWays&^way)
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits until bytes may go on; false means that the connection is over.
func (p *ProxyServer) pass(l *link, way Direction) bool {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-l.gone:
			return false
		}
	}
	for {
		p.mu.Lock()
		held, closed, changed := p.held, p.closed, p.changed
		if l.holdsReply {
			held |= ToClient
		}
		p.mu.Unlock()
		if closed {
			return false
		}
		if held&way == 0 {
			return true
		}
		select {
		case <-changed:
		case <-l.gone:
			return false
		}
	}
}

// lookForTrigger holds the replies of a connection on which the trigger, or the
// rest of it, is about to go to the server.
func (p *ProxyServer) lookForTrigger(l *link, chunk []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trigger == nil {
		l.sent = nil
		return
	}
	l.sent = append(l.sent, chunk...)
	if bytes.Contains(l.sent, p.trigger) {
		l.holdsReply, l.sent, p.trigger = true, nil, nil
		close(p.triggered)
		return
	}
	l.sent = l.sent[max(0, len(l.sent)-len(p.trigger)+1):]
}

// end closes both sides, once; with reset, so that the peers see a connection
// reset.
func (l *link) end(reset bool) {
	l.once.Do(func() {
		for _, c := range []net.Conn{l.client, l.server} {
			if tcp, ok := c.(*net.TCPConn); ok && reset {
				_ = tcp.SetLinger(0)
			}
			_ = c.Close()
		}
		close(l.gone)
	})
}
