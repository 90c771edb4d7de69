package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"syscall"
)

// checkAddress checks the address of a flag, without opening it. Without
// authentication whoever reaches the server may publish and read everything, so
// only this host may, unless remote is true.
func checkAddress(ctx context.Context, flag, address string, remote bool) error {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		if !strings.HasPrefix(path, "///") {
			return usagef("--%s %q: a Unix socket is written unix:///PATH, with an absolute path", flag, address)
		}
		if err := checkSocketPath(strings.TrimPrefix(path, "//")); err != nil {
			return usagef("--%s %s: %v", flag, address, err)
		}
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return usagef("--%s %q is neither host:port nor unix:///PATH", flag, address)
	}
	if _, err := net.DefaultResolver.LookupPort(ctx, "tcp", port); err != nil {
		return usagef("--%s %q: the port must be a number from 0 to 65535", flag, address)
	}
	if remote {
		return nil
	}
	loopback, err := isLoopback(ctx, host)
	if err != nil {
		return usagef("--%s %q: the host %s does not resolve (%s): name an address of this host, as 127.0.0.1 or localhost", flag, address, host, lookupCause(err))
	}
	if loopback {
		return nil
	}
	return usagef("--%s %s would let other hosts connect, without authentication: bind to 127.0.0.1 or a Unix socket, or accept that with --insecure-allow-remote", flag, address)
}

// isLoopback reports whether all addresses of host are loopback ones. The empty
// host means all interfaces. The error is that host has none.
func isLoopback(ctx context.Context, host string) (bool, error) {
	if host == "" {
		return false, nil
	}
	ips, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return false, err
	}
	others := slices.ContainsFunc(ips, func(ip net.IPAddr) bool { return !ip.IP.IsLoopback() })
	return len(ips) > 0 && !others, nil
}

// lookupCause is the error of a lookup without the name and the server that was
// asked.
func lookupCause(err error) string {
	var lookup *net.DNSError
	if errors.As(err, &lookup) {
		return lookup.Err
	}
	return err.Error()
}

// portInUseError says that a process serves on the address of a flag.
type portInUseError struct{ flag, address string }

func (e *portInUseError) Error() string {
	return fmt.Sprintf("%s is in use by another process: stop it, or choose another address with --%s", e.address, e.flag)
}

// listen opens the address of a flag, which passed checkAddress. The error is a
// *portInUseError if a process serves on the port. What is unusual about a Unix socket
// is logged.
func listen(ctx context.Context, flag, address string, logger *slog.Logger) (socket, error) {
	path, ok := strings.CutPrefix(address, unixPrefix)
	if !ok {
		lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, &portInUseError{flag, address}
		}
		if err != nil {
			return nil, fmt.Errorf("--%s %s: %w", flag, address, err)
		}
		return lis.(*net.TCPListener), nil
	}
	return listenUnix(ctx, flag, path, logger)
}

// warnOfOthers tells what other hosts can do at an address that is not this host's alone,
// and may is what everybody may do there without authentication.
func warnOfOthers(address net.Addr, authenticates bool, may string, logger *slog.Logger) {
	tcp, ok := address.(*net.TCPAddr)
	switch {
	case !ok || tcp.IP.IsLoopback():
	case authenticates:
		logger.Warn("tokens and frames travel in clear: put a proxy or a mesh that speaks TLS in front", "address", address)
	default:
		logger.Warn("serving without authentication: whoever reaches this address may "+may, "address", address)
	}
}
