//go:build unix

package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// 300 connections to the HTTP port that never finish their header took all file
// descriptors, so that no subscriber could connect. Only a few are kept, each for a
// short time, and probes take the place of one.
func TestSlowHTTPClients(t *testing.T) {
	const streams, places = 10, 10 + webReserve
	s := startEmbedded(t, "--http-max-connections", fmt.Sprint(streams))
	url := healthURL(t, s.stdout)
	address := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/healthz")
	const clients = 3 * places
	before := openFiles(t)
	for range clients {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: local"); err != nil {
			t.Fatal(err)
		}
	}
	// The clients' ends are of this process, too.
	taken := func() int { return openFiles(t) - before - clients }
	// About: connections of the start end meanwhile.
	eventually(t, "as many are accepted as may be", func() bool { return taken() >= places-10 })
	mustRun(t, "", "publish", "c", "s", "--data", "x", "--server", s.address)
	if n := taken(); n > places+10 { // and those of the publish
		t.Errorf("%d files are open for %d clients", n, clients)
	}
	if p := get(t, url); p.status != http.StatusOK {
		t.Errorf("%+v", p)
	}
}

// Symptom: the health page took seconds, or did not come at all, while some hundred
// connections to the HTTP port were open on which nothing was sent: 64 were accepted,
// and the rest, probes too, waited until those were given up. Kubernetes waits for a
// second, so a few silent clients had it restart a server that was well. A new
// connection takes the place of a silent one.
func TestSilentHTTPClients(t *testing.T) {
	s := startEmbedded(t, "--http-max-connections", "10")
	url := healthURL(t, s.stdout)
	address := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/healthz")
	// Those that waited in turn would take longer than the limit below.
	const clients, limit = 10 * webReserve, 5 * time.Second
	for range clients {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
	}
	began := time.Now()
	for _, path := range []string{"/healthz", "/livez"} {
		if p := get(t, "http://"+address+path); p.status != http.StatusOK {
			t.Errorf("%s: %+v", path, p)
		}
	}
	took := time.Since(began)
	t.Logf("two pages in %s, with %d silent clients", took, clients)
	if took > limit {
		t.Errorf("two pages took %s, with %d silent clients", took, clients)
	}
}

// openFiles is how many files this process has open.
func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/dev/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
