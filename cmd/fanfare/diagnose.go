package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"time"
)

// probeTimeout bounds each of the two looks at what listens at an address.
const probeTimeout = time.Second

// prefaceOfHTTP2 is what a client of gRPC says first: the connection preface and
// an empty SETTINGS frame (RFC 9113, section 3.4).
const prefaceOfHTTP2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// checkServer refuses addresses that are URLs of a browser.
func checkServer(server string) error {
	scheme, rest, found := strings.Cut(server, "://")
	if found && (scheme == "http" || scheme == "https") {
		return usagef("--server %q is not an address: write host:port, %s, without %s://", server, strings.TrimRight(rest, "/"), scheme)
	}
	return nil
}

// whatListens says what listens at an address with which no gRPC came about, as
// the end of a sentence; "" if nothing does, or it cannot be told.
func whatListens(ctx context.Context, server string) string {
	network, address := networkAddress(server)
	// The call's own time may be up.
	ctx = context.WithoutCancel(ctx)
	first := firstAnswer(ctx, network, address)
	switch {
	case strings.HasPrefix(first, "HTTP/"):
		return "speaks HTTP, not gRPC"
	case speaksTLS(ctx, network, address):
		return "expects TLS, which fanfare does not speak yet"
	}
	return ""
}

// networkAddress is what to dial for a target of gRPC.
func networkAddress(server string) (network, address string) {
	if path, isUnix := strings.CutPrefix(server, unixPrefix); isUnix {
		return "unix", path
	}
	if path, isUnix := strings.CutPrefix(server, "unix:"); isUnix {
		return "unix", path
	}
	for _, scheme := range []string{"dns:///", "passthrough:///", "dns:"} {
		server = strings.TrimPrefix(server, scheme)
	}
	if _, _, err := net.SplitHostPort(server); err != nil {
		server = net.JoinHostPort(server, "443") // as gRPC does
	}
	return "tcp", server
}

// firstAnswer returns the first bytes with which a server answers a client of
// gRPC, "" if there are none.
func firstAnswer(ctx context.Context, network, address string) string {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return ""
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if conn.SetDeadline(deadline) != nil {
		return ""
	}
	if _, err := io.WriteString(conn, prefaceOfHTTP2); err != nil {
		return ""
	}
	answer := make([]byte, len("HTTP/"))
	n, _ := io.ReadFull(conn, answer)
	return string(answer[:n])
}

// speaksTLS reports whether a server takes part in a TLS handshake. Whom its
// certificate names does not matter: nothing is sent.
func speaksTLS(ctx context.Context, network, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		var refusal *net.OpError // an alert is TLS, too
		return errors.As(err, &refusal) && refusal.Op == "remote error"
	}
	return conn.Close() == nil
}

// portAdvice is what to do about an address that names no port, or only one; ""
// for others. gRPC takes port 443 then, at which no Fanfare server is expected.
func portAdvice(server string) string {
	if strings.Contains(server, "/") || strings.HasPrefix(server, "unix:") {
		return ""
	}
	if _, _, err := net.SplitHostPort(server); err == nil {
		return ""
	}
	host, port, _ := net.SplitHostPort(defaultAddress)
	if server != "" && strings.Trim(server, "0123456789") == "" {
		return "did you mean " + net.JoinHostPort(host, server) + "?"
	}
	return "without a port it is 443: did you mean " + net.JoinHostPort(strings.Trim(server, "[]"), port) + "?"
}
