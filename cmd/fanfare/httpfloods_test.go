package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// What a client of HTTP/2 without TLS begins with, and a header that never ends (RFC 9113,
// sections 3.4, 6.2 and 6.5).
const (
	http2Preface    = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	http2Settings   = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	http2HalfHeader = "\x00\x00\x01\x01\x00\x00\x00\x00\x01\x82"
)

// Clients that never ask for anything, more of them than there are places, and each there
// again as soon as it is cut, keep nobody out: a stream that has begun goes on, a probe is
// answered, and a browser comes in.
func TestClientsThatNeverAskKeepNobodyOut(t *testing.T) {
	const streams = 5
	s := startEmbedded(t, "--http-max-connections", fmt.Sprint(streams))
	edge := start(t, nil, "edge", "--server", s.address, "--http", "127.0.0.1:0", "--http-max-connections", fmt.Sprint(streams), "--drain-delay", "0")
	t.Cleanup(func() { edge.interrupt(); edge.end() })
	for name, site := range map[string]string{"serve": siteURL(t, s.stdout), "edge": siteURL(t, edge.stdout)} {
		for kind, text := range map[string]string{
			"nothing":                 "",
			"a header, byte by byte":  "GET /v1/streams/c/s HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
			"HTTP/2 alone":            http2Preface,
			"half a header of HTTP/2": http2Preface + http2Settings + http2HalfHeader,
		} {
			t.Run(name+", "+kind, func(t *testing.T) {
				tab := open(t, nil, site+"/v1/streams/c/s?from=live")
				tab.await("fanfare.caught_up")
				flood(t, site, 2*(streams+webReserve), text)
				// An answer may be cut, as each that comes pushes out who asks for nothing for
				// longest, but for streams. The next will do.
				client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
				eventually(t, "a probe is answered", func() bool {
					response, err := client.Get(site + "/healthz")
					if err != nil {
						return false
					}
					response.Body.Close()
					return response.StatusCode == http.StatusOK
				})
				var late net.Conn
				eventually(t, "a browser comes in", func() bool {
					late = dialSite(t, site)
					_ = late.SetDeadline(time.Now().Add(patience))
					fmt.Fprint(late, "GET /v1/streams/c/s?from=live HTTP/1.1\r\nHost: localhost\r\n\r\n")
					_, err := readUntil(late, "caught_up")
					return err == nil
				})
				mustRun(t, "", "publish", "c", "s", "--data", kind, "--server", s.address)
				if data := tab.nextFrame(); data != kind {
					t.Errorf("who was there got %q", data)
				}
				if got, err := readUntil(late, "data: "+kind); err != nil {
					t.Errorf("who came got %q, %v", got, err)
				}
				tab.close()
				late.Close()
			})
		}
	}
}

// flood has clients say a text and nothing more, or if it is a header of HTTP/1.1, a byte
// now and then, each again and again until the test ends. It returns when there are more
// than may be.
func flood(t *testing.T, site string, clients int, text string) {
	t.Helper()
	ctx, end := context.WithCancel(context.Background())
	cuts := make(chan struct{}, 10)
	var flooding sync.WaitGroup
	for range clients {
		flooding.Go(func() {
			again := time.NewTicker(200 * time.Millisecond)
			defer again.Stop()
			for ctx.Err() == nil {
				if conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(site, "http://")); err == nil {
					beSlow(ctx, conn, text)
				}
				select {
				case cuts <- struct{}{}:
				default:
				}
				<-again.C
			}
		})
	}
	t.Cleanup(func() {
		end()
		flooding.Wait()
	})
	for range cap(cuts) {
		select {
		case <-cuts:
		case <-time.After(patience):
			t.Fatal("none of too many clients is cut")
		}
	}
}

// beSlow says a text, slowly if that is the beginning of a header, until the connection or
// ctx ends.
func beSlow(ctx context.Context, conn net.Conn, text string) {
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	defer conn.Close()
	if _, err := io.WriteString(conn, text); err != nil {
		return
	}
	var slow sync.WaitGroup
	if strings.HasPrefix(text, "GET") {
		slow.Go(func() {
			pace := time.NewTicker(50 * time.Millisecond)
			defer pace.Stop()
			for _, err := conn.Write([]byte("x")); err == nil; _, err = conn.Write([]byte("x")) {
				<-pace.C
			}
		})
	}
	_, _ = io.Copy(io.Discard, conn)
	conn.Close()
	slow.Wait()
}
