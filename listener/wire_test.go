package listener

import (
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// wire is a proxy that understands PostgreSQL's protocol and lies in it: it is
// the pooler, or the broken server, that no real PostgreSQL is on demand.
type wire struct {
	t        testing.TB
	listener net.Listener
	server   string
	tasks    sync.WaitGroup

	mu sync.Mutex
	// answer may return messages for a query instead of passing it on.
	answer func(sql string) []pgproto3.BackendMessage
	// filter may change or swallow (nil) what the server sends.
	filter func(m pgproto3.BackendMessage) pgproto3.BackendMessage
	links  []*wireLink
}

// wireLink is one connection; send guards writes to the client.
type wireLink struct {
	client, server net.Conn
	send           sync.Mutex
	backend        *pgproto3.Backend
}

func newWire(t testing.TB, databaseURL string) *wire {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{t: t, listener: l, server: u.Host}
	w.tasks.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			w.tasks.Go(func() { w.carry(client) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		w.each(func(k *wireLink) { _, _ = k.client.Close(), k.server.Close() })
		w.tasks.Wait()
	})
	return w
}

func (w *wire) url(databaseURL string) string {
	u, err := url.Parse(databaseURL)
	if err != nil {
		w.t.Fatal(err)
	}
	u.Host = w.listener.Addr().String()
	return u.String()
}

func (w *wire) set(answer func(string) []pgproto3.BackendMessage, filter func(pgproto3.BackendMessage) pgproto3.BackendMessage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer, w.filter = answer, filter
}

func (w *wire) hooks() (func(string) []pgproto3.BackendMessage, func(pgproto3.BackendMessage) pgproto3.BackendMessage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.answer, w.filter
}

// each calls f for every connection that is open.
func (w *wire) each(f func(*wireLink)) {
	w.mu.Lock()
	links := append([]*wireLink(nil), w.links...)
	w.mu.Unlock()
	for _, l := range links {
		f(l)
	}
}

func (w *wire) add(l *wireLink) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.links = append(w.links, l)
}

func (w *wire) drop(l *wireLink) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, other := range w.links {
		if other == l {
			w.links = append(w.links[:i], w.links[i+1:]...)
			return
		}
	}
}

func (w *wire) carry(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", w.server)
	if err != nil {
		return
	}
	defer server.Close()
	l := &wireLink{client: client, server: server, backend: pgproto3.NewBackend(client, client)}
	w.add(l)
	defer w.drop(l)
	startup, err := l.backend.ReceiveStartupMessage()
	if err != nil {
		return
	}
	frontend := pgproto3.NewFrontend(server, server)
	if m, ok := startup.(*pgproto3.StartupMessage); ok {
		frontend.Send(m)
		_ = frontend.Flush()
	} else {
		return // no TLS here, and cancel requests lead nowhere
	}
	var answers sync.WaitGroup
	answers.Go(func() { w.toClient(l, frontend); _ = client.Close() })
	w.toServer(l, frontend)
	_ = server.Close()
	answers.Wait()
}

func (w *wire) toServer(l *wireLink, frontend *pgproto3.Frontend) {
	for {
		m, err := l.backend.Receive()
		if err != nil {
			return
		}
		if q, ok := m.(*pgproto3.Query); ok {
			if answer, _ := w.hooks(); answer != nil {
				if messages := answer(q.String); messages != nil {
					l.write(messages...)
					continue
				}
			}
		}
		frontend.Send(m)
		if frontend.Flush() != nil {
			return
		}
	}
}

func (w *wire) toClient(l *wireLink, frontend *pgproto3.Frontend) {
	for {
		m, err := frontend.Receive()
		if err != nil {
			return
		}
		if a, ok := m.(pgproto3.AuthenticationResponseMessage); ok {
			_ = l.backend.SetAuthType(authType(a))
		}
		if _, filter := w.hooks(); filter != nil {
			if m = filter(m); m == nil {
				continue
			}
		}
		if !l.write(m) {
			return
		}
	}
}

func authType(m pgproto3.AuthenticationResponseMessage) uint32 {
	if _, ok := m.(*pgproto3.AuthenticationOk); ok {
		return pgproto3.AuthTypeOk
	}
	return 0
}

func (l *wireLink) write(messages ...pgproto3.BackendMessage) bool {
	l.send.Lock()
	defer l.send.Unlock()
	for _, m := range messages {
		l.backend.Send(m)
	}
	return l.backend.Flush() == nil
}

// raw sends bytes that are no message.
func (l *wireLink) raw(b []byte) {
	l.send.Lock()
	defer l.send.Unlock()
	_, _ = l.client.Write(b)
}

// refuse answers a query with an error.
func refuse(code, message string) []pgproto3.BackendMessage {
	return []pgproto3.BackendMessage{
		&pgproto3.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: code, Message: message},
		&pgproto3.ReadyForQuery{TxStatus: 'I'},
	}
}

func fatal(code string) *pgproto3.ErrorResponse {
	return &pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: code, Message: "made up by the test"}
}

func isListen(sql string) bool { return strings.Contains(sql, "listen ") }
