package transcode

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"math"
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

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
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
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				conn, err := dial(ctx)
				if err != nil {
					err = &dialError{err}
				}
				return conn, err
			},
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
		// The transport sends it again if the server goes before it has looked at it.
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		r.Body, _ = r.GetBody()
		r.ContentLength = int64(len(body))
	}
	if m := messagesOf(r.Context()); m != nil {
		// They are as gRPC has them. The transcoder would take an empty one for the end.
		r.Body, r.ContentLength = m, -1
	}
	r, cancel := withDeadline(r)
	defer cancel()
	u.proxy.ServeHTTP(w, r)
}

// withDeadline has the call end at the deadline that its client gives it, or at its
// context's if that is sooner, and has the server know. The server does not end it before:
// it would reset the call, which here would be taken for a lost connection.
func withDeadline(r *http.Request) (*http.Request, context.CancelFunc) {
	timeout, given := grpcTimeout(r.Header.Get("Grpc-Timeout"))
	deadline, ok := r.Context().Deadline()
	switch left := time.Until(deadline); {
	case given && (!ok || timeout < left):
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		return r.WithContext(ctx), cancel
	case ok:
		r.Header.Set("Grpc-Timeout", strconv.FormatInt(max(left.Milliseconds(), 0)+1, 10)+"m")
	}
	return r, func() {}
}

var timeoutUnits = map[byte]time.Duration{
	'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond,
}

// grpcTimeout reads a timeout as gRPC writes it: at most 8 digits, and a unit. It is false if
// there is none, or the server is to say that it is none.
func grpcTimeout(text string) (time.Duration, bool) {
	if len(text) < 2 || len(text) > 9 {
		return 0, false
	}
	unit, value := timeoutUnits[text[len(text)-1]], text[:len(text)-1]
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil || unit == 0 {
		return 0, false
	}
	if time.Duration(n) > math.MaxInt64/unit {
		return math.MaxInt64, true
	}
	return time.Duration(n) * unit, true
}

// dialError is that no server was reached.
type dialError struct{ error }

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
}

// unreachable answers a call that no server has answered, as gRPC does.
func (u *upstream) unreachable(w http.ResponseWriter, r *http.Request, err error) {
	endWith(w, u.statusOf(r, err))
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

func (u *upstream) statusOf(r *http.Request, err error) *status.Status {
	ctx := r.Context()
	if st := lostWith(ctx); st != nil {
		return st
	}
	// By the clock: timers may be late, and the server's earlier.
	deadline, limited := ctx.Deadline()
	switch {
	case limited && !time.Now().Before(deadline):
		return status.New(codes.DeadlineExceeded, "the call's deadline has passed")
	case ctx.Err() != nil:
		return status.New(codes.Canceled, "the call was cancelled")
	}
	u.logger.Debug("a call over HTTP was not answered", "error", err)
	var notReached *dialError
	if errors.As(err, &notReached) {
		if st, told := status.FromError(notReached.error); told {
			return st
		}
	} else if publishes[r.URL.Path] {
		return outcomeUnknown("the connection to the server was lost")
	}
	return status.New(codes.Unavailable, "the server cannot be reached, or the connection to it was lost")
}

// publishes are the calls that store frames.
var publishes = map[string]bool{
	fanfarev1.FanfareService_Publish_FullMethodName:       true,
	fanfarev1.FanfareService_PublishBatch_FullMethodName:  true,
	fanfarev1.FanfareService_PublishStream_FullMethodName: true,
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
	var st *status.Status
	if !errors.Is(err, io.EOF) {
		st = a.upstream.statusOf(a.response.Request, err)
	} else if a.response.Trailer.Get("Grpc-Status") == "0" {
		// All is not well, either, if not all was passed on, to the server or by it.
		st = streamFaultOf(a.response.Request.Context())
	}
	if st != nil {
		a.response.Trailer = http.Header{}
		setStatus(a.response.Trailer, st)
	}
	return n, io.EOF
}

// copyBuffers implements httputil.BufferPool.
type copyBuffers struct{ pool sync.Pool }

func (b *copyBuffers) Get() []byte       { return b.pool.Get().(*[copyBytes]byte)[:] }
func (b *copyBuffers) Put(buffer []byte) { b.pool.Put((*[copyBytes]byte)(buffer)) }
