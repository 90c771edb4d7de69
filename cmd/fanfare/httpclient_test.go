package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	gosse "github.com/tmaxmax/go-sse"

	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/transcode"
)

// siteURL is where a server says that it serves HTTP.
func siteURL(t testing.TB, stdout *transcript) string {
	t.Helper()
	return strings.TrimSuffix(stdout.await(t, `health on (http://\S+)/healthz\n`)[1], "/")
}

// bearer adds a token to a request.
func bearer(token string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
}

// header adds a header to a request.
func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// post sends JSON.
func post(t *testing.T, url, body string, change ...func(*http.Request)) page {
	t.Helper()
	all := append([]func(*http.Request){func(r *http.Request) {
		r.Method, r.Body, r.ContentLength = http.MethodPost, io.NopCloser(strings.NewReader(body)), int64(len(body))
		r.Header.Set("Content-Type", "application/json")
	}}, change...)
	return get(t, url, all...)
}

// publishJSON is the body of POST /v1/publish.
func publishJSON(channel, scope, payload string) string {
	text, _ := json.Marshal(map[string]any{"frame": map[string]string{
		"channel": channel, "scope": scope, "payload": base64.StdEncoding.EncodeToString([]byte(payload)),
	}})
	return string(text)
}

// problem is what a page says is wrong.
func (p page) problem(t *testing.T) transcode.Problem {
	t.Helper()
	var problem transcode.Problem
	if err := json.Unmarshal([]byte(p.body), &problem); err != nil || problem.Code == "" {
		t.Errorf("status %d: %q is no problem in JSON: %v", p.status, p.body, err)
	}
	return problem
}

// unencryptedHTTP2 is a client that speaks HTTP/2 without TLS.
func unencryptedHTTP2(t *testing.T) *http.Client {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// browserTab is an EventSource that does not come back by itself.
type browserTab struct {
	t      testing.TB
	status int
	header http.Header
	close  context.CancelFunc
	// events are closed when the stream has ended.
	events chan gosse.Event
	err    error // how it ended, once events is closed
	last   string
}

// open opens an event stream.
func open(t testing.TB, client *http.Client, url string, change ...func(*http.Request)) *browserTab {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range change {
		c(request)
	}
	if client == nil {
		client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	}
	response, err := client.Do(request)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	tab := &browserTab{t: t, status: response.StatusCode, header: response.Header, close: cancel, events: make(chan gosse.Event, 10_000)}
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(tab.events)
		defer response.Body.Close()
		for event, err := range gosse.Read(response.Body, &gosse.ReadConfig{MaxEventSize: 8 << 20}) {
			if err != nil {
				tab.err = err
				return
			}
			// The library takes a block with nothing but an id for an event.
			if event.Type != "" || event.Data != "" {
				tab.events <- event
			}
		}
	})
	t.Cleanup(func() { cancel(); reading.Wait() })
	return tab
}

// next returns the next event.
func (b *browserTab) next() gosse.Event {
	b.t.Helper()
	select {
	case event, ok := <-b.events:
		if !ok {
			b.t.Fatalf("the event stream has ended: %v", b.err)
		}
		b.last = event.LastEventID
		return event
	case <-time.After(patience):
		b.t.Fatalf("no event within %s", patience)
		return gosse.Event{}
	}
}

// nextFrame returns the data of the next frame, past what is told of the stream.
func (b *browserTab) nextFrame() string {
	b.t.Helper()
	for {
		if event := b.next(); !strings.HasPrefix(event.Type, "fanfare.") {
			return event.Data
		}
	}
}

// await waits for an event of a type.
func (b *browserTab) await(kind string) gosse.Event {
	b.t.Helper()
	for {
		if event := b.next(); event.Type == kind {
			return event
		}
	}
}

// rest returns the frames up to the end of the stream.
func (b *browserTab) rest() (frames []string) {
	b.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case event, ok := <-b.events:
			if !ok {
				return frames
			}
			b.last = event.LastEventID
			if !strings.HasPrefix(event.Type, "fanfare.") {
				frames = append(frames, event.Data)
			}
		case <-deadline:
			b.t.Fatalf("the event stream has not ended within %s", patience)
		}
	}
}

// publishNumbers publishes the numbers from one to below another, a frame each.
func publishNumbers(t testing.TB, address, channel, scope string, from, below int) {
	t.Helper()
	var lines bytes.Buffer
	for i := from; i < below; i++ {
		fmt.Fprintln(&lines, i)
	}
	mustRun(t, lines.String(), "publish", channel, scope, "--lines", "--server", address)
}

// dialSite opens a connection to the HTTP port.
func dialSite(t testing.TB, site string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(site, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// cut waits until the other side has closed a connection, and returns what it had sent.
func cut(t testing.TB, conn net.Conn) string {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(conn)
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("the connection was not cut within %s; it said %.300q", patience, said)
	}
	return string(said)
}
