//go:build unix

package main

import (
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
)

// 300 connections to the HTTP port that never finish their header took all file
// descriptors, so that no subscriber could connect. Only a few are accepted, each
// for a short time, and probes come through between them.
func TestSlowHTTPClients(t *testing.T) {
	s := startEmbedded(t)
	url := healthURL(t, s.stdout)
	address := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/healthz")
	const clients = 3 * maxWebConns
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
	eventually(t, "as many are accepted as may be", func() bool { return taken() >= maxWebConns-10 })
	mustRun(t, "", "publish", "c", "s", "--data", "x", "--server", s.address)
	if n := taken(); n > maxWebConns+10 { // and those of the publish
		t.Errorf("%d files are open for %d clients", n, clients)
	}
	if p := get(t, url); p.status != http.StatusOK {
		t.Errorf("%+v", p)
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
