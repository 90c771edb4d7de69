package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"

	"github.com/fanfare-io/fanfare/clientlib/sse"
	"github.com/fanfare-io/fanfare/service"
	"github.com/fanfare-io/fanfare/service/replica"
)

// webTimeouts bound what a client may take its time for. Event streams and streaming
// calls replace all but the first by bounds of their own, for each write.
type webTimeouts struct {
	// header bounds the reading of a request's header: clients send it with the
	// connection.
	header time.Duration
	// read bounds the reading of a request, and write, from its header on, that and its
	// answer: a batch of 4 MiB has to pass a slow line.
	read, write time.Duration
	// idle lets go of clients that ask nothing more. It is longer than proxies keep
	// connections of theirs, so that none loses a request in the moment of an end.
	idle time.Duration
	// shutdown bounds the wait for answers under way at the end.
	shutdown time.Duration
}

// usualWebTimeouts are those of the program.
func usualWebTimeouts() webTimeouts {
	return webTimeouts{
		header: 5 * time.Second, read: 30 * time.Second, write: 30 * time.Second, idle: 90 * time.Second, shutdown: time.Second,
	}
}

const (
	maxWebHeaderBytes = 16 << 10
	// maxWebStreams bounds the requests of one connection over HTTP/2.
	maxWebStreams = 250
	// webDeadTime is after how long of silence a connection over HTTP/2 is asked whether
	// it is still there, and how long what was sent may stay unacknowledged.
	webDeadTime = 30 * time.Second
)

// webServer serves HTTP/1.1 and HTTP/2 without TLS from before the store is open until
// everything else has ended, so that a probe is always answered.
type webServer struct {
	server   *http.Server
	lis      net.Listener
	places   *webPlaces
	timeouts webTimeouts
	// handler answers; it is set before run.
	handler atomic.Pointer[http.Handler]
}

// startWeb starts to serve on --http. It returns nil if that is off, or if nobody
// chose it and its port is in use: a second server on a host needs another port
// for clients, and should need nothing more. own is true if only this host, and none of
// its browsers' foreign pages, may use it where it is bound to loopback: see ownHost.
func (o *webOptions) startWeb(ctx context.Context, parts *replica.Parts, first http.Handler, own bool, logger *slog.Logger) (*webServer, error) {
	if o.http == httpOff {
		return nil, nil
	}
	lis, err := listen(ctx, "http", o.http, logger)
	if inUse := (*portInUseError)(nil); errors.As(err, &inUse) && !o.setHTTP && !o.required {
		logger.Warn("nothing is served over HTTP: its port is in use; choose another one with --http", "address", o.http)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	w := newWebServer(lis, o.connections(logger), o.timeouts, logger)
	if tcp, ok := lis.Addr().(*net.TCPAddr); own && ok && tcp.IP.IsLoopback() {
		w.server.Handler = service.LoopbackOnly(w.server.Handler, originMatcher(o.allowedOrigins))
	}
	w.answer(first)
	parts.Start("http", w.run)
	return w, nil
}

// ownHost reports whether a listener on loopback is for this host only. remote, which
// opens the server to others, speaks of addresses that were chosen: one that nobody chose
// was not meant to be opened, to browsers' foreign pages least of all.
func (o *webOptions) ownHost(authenticates, remote bool) bool {
	return !authenticates && !(remote && o.setHTTP)
}

// newWebServer serves on lis so many connections with streams, and some others.
func newWebServer(lis net.Listener, connections int, timeouts webTimeouts, logger *slog.Logger) *webServer {
	w := &webServer{
		// One more than there are places: that which takes one.
		lis:      netutil.LimitListener(lis, connections+webReserve+1),
		places:   newWebPlaces(connections, webReserve),
		timeouts: timeouts,
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	w.server = &http.Server{
		Handler: guardedWeb(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
			(*w.handler.Load()).ServeHTTP(response, request)
		}), logger),
		Protocols:         &protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxWebStreams, SendPingTimeout: webDeadTime, WriteByteTimeout: timeouts.write},
		ReadHeaderTimeout: timeouts.header,
		ReadTimeout:       timeouts.read,
		WriteTimeout:      timeouts.write,
		IdleTimeout:       timeouts.idle,
		MaxHeaderBytes:    maxWebHeaderBytes,
		ConnState:         w.places.changed,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return breakUnacknowledged(context.WithValue(ctx, webConn{}, conn), conn)
		},
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	return w
}

// breakUnacknowledged finds browsers that lost their network without a word.
var breakUnacknowledged = sse.ConnContext(webDeadTime)

// webConn is the key of a request's connection in its context.
type webConn struct{}

// hold has the connection of a request keep its place for a stream.
func (w *webServer) hold(r *http.Request) (release func(), ok bool) {
	conn, _ := r.Context().Value(webConn{}).(net.Conn)
	return w.places.hold(conn)
}

// answer has h answer from here on. A nil webServer has nobody to answer.
func (w *webServer) answer(h http.Handler) {
	if w != nil {
		w.handler.Store(&h)
	}
}

// run serves until ctx ends, then lets the answers under way out, and returns
// nil. It closes the socket. Streams have been told to go before, or are cut.
func (w *webServer) run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(w.lis) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.timeouts.shutdown)
	defer cancel()
	err := w.server.Shutdown(ending)
	if errors.Is(err, context.DeadlineExceeded) {
		err = w.server.Close()
	}
	<-served
	return err
}

// url is where a path is served, for people.
func (w *webServer) url(path string) string {
	if address := w.lis.Addr(); address.Network() == "unix" {
		return addressText(address) + ", " + path
	}
	return "http://" + w.lis.Addr().String() + path
}
