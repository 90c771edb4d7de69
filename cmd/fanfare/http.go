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

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/service"
	"github.com/fanfare-io/fanfare/service/hub"
	"github.com/fanfare-io/fanfare/service/replica"
)

const (
	// maxWebConns bounds the connections: each takes a file descriptor, of which
	// publishers and subscribers need theirs. A further client takes the place of
	// another.
	maxWebConns = 64
	// webHeaderTimeout bounds the reading of a request's header: clients send it with
	// the connection.
	webHeaderTimeout = time.Second
	// webTimeout bounds the reading of a request, and apart from it the writing of
	// its answer. Answers come from memory.
	webTimeout = 2 * time.Second
	// webIdleTimeout lets go of clients that ask nothing more.
	webIdleTimeout = 15 * time.Second
	// webShutdownTimeout bounds the wait for answers under way at the end.
	webShutdownTimeout = time.Second
	maxWebHeaderBytes  = 8 << 10
)

// webServer serves HTTP from before the store is open until everything else has
// ended, so that a probe is always answered.
type webServer struct {
	server *http.Server
	lis    net.Listener
	// handler answers; it is set before run.
	handler atomic.Pointer[http.Handler]
}

// startWeb starts to serve on --http. It returns nil if that is off, or if nobody
// chose it and its port is in use: a second server on a host needs another port
// for clients, and should need nothing more.
func (o *serveOptions) startWeb(ctx context.Context, parts *replica.Parts, logger *slog.Logger) (*webServer, error) {
	if o.http == httpOff {
		return nil, nil
	}
	lis, err := listen(ctx, "http", o.http, logger)
	if inUse := (*portInUseError)(nil); errors.As(err, &inUse) && !o.setHTTP {
		logger.Warn("the health page is not served: its port is in use; choose another one with --http", "address", o.http)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	w := newWebServer(lis, logger)
	w.answer(o.waitingPage(logger))
	parts.Start("http", w.run)
	return w, nil
}

func newWebServer(lis net.Listener, logger *slog.Logger) *webServer {
	// One more than there are places: that which takes one.
	w := &webServer{lis: netutil.LimitListener(lis, maxWebConns+1)}
	var handler http.Handler = http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		(*w.handler.Load()).ServeHTTP(response, request)
	})
	if tcp, ok := lis.Addr().(*net.TCPAddr); ok && tcp.IP.IsLoopback() {
		handler = service.LoopbackOnly(handler)
	}
	w.server = &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: webHeaderTimeout,
		ReadTimeout:       webTimeout,
		WriteTimeout:      webTimeout,
		IdleTimeout:       webIdleTimeout,
		MaxHeaderBytes:    maxWebHeaderBytes,
		ConnState:         newWebPlaces(maxWebConns).changed,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	return w
}

// answer has h answer from here on. A nil webServer has nobody to answer.
func (w *webServer) answer(h http.Handler) {
	if w != nil {
		w.handler.Store(&h)
	}
}

// run serves until ctx ends, then lets the answers under way out, and returns
// nil. It closes the socket.
func (w *webServer) run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(w.lis) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), webShutdownTimeout)
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

// waitingPage is the health page before there is a store.
func (o *serveOptions) waitingPage(logger *slog.Logger) http.Handler {
	return service.New(absentStore{}, nil, absentBus{}, o.serviceConfig(logger)).HTTPHandler()
}

// absentStore and absentBus stand for those that are not there yet. The health
// page asks nothing of them, as nobody runs the server that it is of.
type (
	absentStore struct{ backlog.Store }
	absentBus   struct{ hub.Bus }
)
