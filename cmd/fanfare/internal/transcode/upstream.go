package transcode

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	// upstreamWindow is what the transport takes of a stream ahead of whoever reads it.
	upstreamWindow = 64 << 10
	// upstreamPing finds a server that is dead; servers refuse clients that ping more
	// often than every 10 s.
	upstreamPing        = 20 * time.Second
	upstreamPingTimeout = 10 * time.Second
	upstreamHost        = "fanfare.internal"
	// copyBytes is held for as long as a stream is.
	copyBytes = 8 << 10
)

// upstream has requests that are gRPC answered by a server.
type upstream struct {
	transport *http.Transport
	proxy     *httputil.ReverseProxy
	logger    *slog.Logger
}

func newUpstream(dial func(context.Context) (net.Conn, error), logger *slog.Logger) *upstream {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	u := &upstream{
		transport: &http.Transport{
			DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
			Protocols:          &protocols,
			DisableCompression: true,
			HTTP2: &http.HTTP2Config{
				MaxReceiveBufferPerStream: upstreamWindow,
				SendPingTimeout:           upstreamPing,
				PingTimeout:               upstreamPingTimeout,
			},
		},
		logger: logger,
	}
	u.proxy = &httputil.ReverseProxy{
		Transport:      u.transport,
		Rewrite:        rewrite,
		FlushInterval:  -1,
		ModifyResponse: u.endInOrder,
		ErrorHandler:   u.unreachable,
		ErrorLog:       slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
		BufferPool:     &copyBuffers{sync.Pool{New: func() any { return new([copyBytes]byte) }}},
	}
	return u
}

// ServeHTTP implements http.Handler.
func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f := faultOf(r.Context()); f != nil {
		// The transcoder works while it is read. What it cannot read is not begun.
		body, err := io.ReadAll(r.Body)
		if err == nil && len(body) == 0 {
			// A request has a length at least. Its error was told already.
			err = errors.New("there is no request")
		}
		if err == nil && f.unread {
			err = checkMessage(r.URL.Path, body)
		}
		if err != nil {
			st := streamFaultOf(r.Context())
			if st == nil {
				st = withReason(codes.InvalidArgument, reasonField, requestMessage(err))
			}
			endWith(w, st)
			return
		}
		if f.begun = true; f.read != nil {
			f.read()
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	u.proxy.ServeHTTP(w, r)
}

func (u *upstream) close() { u.transport.CloseIdleConnections() }

// passed are the headers that a call brings to the server, besides what begins with
// Grpc-: anything else could be taken for metadata by whoever reads that, and a cookie
// is sent by a browser without its page's doing.
var passed = map[string]bool{
	"Authorization": true, "Content-Type": true, "User-Agent": true,
	"Traceparent": true, "Tracestate": true, "Baggage": true,
}

func passes(name string) bool { return passed[name] || strings.HasPrefix(name, "Grpc-") }

func rewrite(r *httputil.ProxyRequest) {
	r.SetURL(&url.URL{Scheme: "http", Host: upstreamHost})
	r.Out.Host = upstreamHost
	r.Out.URL.RawQuery = ""
	for name := range r.Out.Header {
		if !passes(name) {
			delete(r.Out.Header, name)
		}
	}
	r.Out.Header.Set("Te", "trailers")
	// Who has connected, for the server's log; not what the client says of that itself.
	r.Out.Header.Set("X-Forwarded-For", r.In.RemoteAddr)
	if deadline, ok := r.In.Context().Deadline(); ok && r.Out.Header.Get("Grpc-Timeout") == "" {
		// Not before the deadline: the server resets the call then, which here would be
		// taken for a lost connection.
		r.Out.Header.Set("Grpc-Timeout", strconv.FormatInt(max(time.Until(deadline).Milliseconds(), 0)+1, 10)+"m")
	}
}

// unreachable answers a call that no server has answered, as gRPC does.
func (u *upstream) unreachable(w http.ResponseWriter, r *http.Request, err error) {
	endWith(w, u.statusOf(r.Context(), err))
}

// endWith is an answer of gRPC that is nothing but an error.
func endWith(w http.ResponseWriter, st *status.Status) {
	w.Header().Set("Content-Type", "application/grpc")
	setStatus(w.Header(), st)
	w.WriteHeader(http.StatusOK)
}

func setStatus(header http.Header, st *status.Status) {
	header.Set("Grpc-Status", strconv.Itoa(int(st.Code())))
	header.Set("Grpc-Message", url.PathEscape(st.Message()))
	if len(st.Proto().GetDetails()) > 0 {
		if details, err := proto.Marshal(st.Proto()); err == nil {
			header.Set("Grpc-Status-Details-Bin", base64.RawStdEncoding.EncodeToString(details))
		}
	}
}

func (u *upstream) statusOf(ctx context.Context, err error) *status.Status {
	if st := streamFaultOf(ctx); st != nil {
		return st
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return status.New(codes.DeadlineExceeded, "the call's deadline has passed")
	case ctx.Err() != nil:
		return status.New(codes.Canceled, "the call was cancelled")
	}
	u.logger.Debug("a call over HTTP was not answered", "error", err)
	return status.New(codes.Unavailable, "the server cannot be reached, or the connection to it was lost")
}

// endInOrder has an answer that breaks off end with a status. The proxy would break
// the client's connection instead, of which the client learns nothing.
func (u *upstream) endInOrder(response *http.Response) error {
	response.Body = &answer{ReadCloser: response.Body, response: response, upstream: u}
	return nil
}

type answer struct {
	io.ReadCloser
	response *http.Response
	upstream *upstream
}

func (a *answer) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if err == nil {
		return n, nil
	}
	ctx := a.response.Request.Context()
	if errors.Is(err, io.EOF) && (streamFaultOf(ctx) == nil || a.response.Trailer.Get("Grpc-Status") != "0") {
		return n, err
	}
	// All is not well, either, if the server has sent all and not all was passed on.
	a.response.Trailer = http.Header{}
	setStatus(a.response.Trailer, a.upstream.statusOf(ctx, err))
	return n, io.EOF
}

// copyBuffers implements httputil.BufferPool.
type copyBuffers struct{ pool sync.Pool }

func (b *copyBuffers) Get() []byte       { return b.pool.Get().(*[copyBytes]byte)[:] }
func (b *copyBuffers) Put(buffer []byte) { b.pool.Put((*[copyBytes]byte)(buffer)) }
