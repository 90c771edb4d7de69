package service

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// LoopbackOnly refuses, with 403, requests that a web page on another host may
// have caused, for servers that are bound to loopback because they have no
// authentication. A page whose name was made to lead to 127.0.0.1 (DNS rebinding)
// is of the same origin as what it reads; only the Host header tells.
//
// Host must be localhost or a loopback address, with or without a port, or be
// missing, as in HTTP/1.0, which no browser speaks. Origin, if there is one, must
// be of such a host, or one for which allowed, unless it is nil, returns true.
func LoopbackOnly(next http.Handler, allowed func(origin string) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "" && !isLoopback(r.Host) {
			http.Error(w, "this server is for its own machine: Host must be localhost or a loopback address", http.StatusForbidden)
			return
		}
		for _, origin := range r.Header.Values("Origin") {
			if allowed != nil && allowed(origin) {
				continue
			}
			if u, err := url.Parse(origin); err != nil || !isLoopback(u.Host) {
				http.Error(w, "this server is for its own machine: Origin must be of localhost or a loopback address", http.StatusForbidden)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// isLoopback reports whether a host, with or without a port, is this machine by
// its name alone.
func isLoopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	address, err := netip.ParseAddr(host)
	return err == nil && address.Unmap().IsLoopback()
}
