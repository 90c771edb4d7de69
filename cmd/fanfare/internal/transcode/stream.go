package transcode

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/vanguard"
	"google.golang.org/grpc/health/grpc_health_v1"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// serveStream serves a call whose answer goes on until one of both ends it. It has its
// place before its request is read. No time bounds the whole; each write has its own, and
// each message that is read.
func (h *Handler) serveStream(w http.ResponseWriter, r *http.Request) {
	if h.config.Begin != nil {
		end, ok := h.config.Begin(r)
		if !ok {
			refuseForNow(w, "the server has as many streams over HTTP as it may; try another replica, or this one later")
			return
		}
		defer end()
	}
	held := h.requests.budget(r, h.placeTimeout)
	defer held.giveBack()
	stream := &streamWriter{ResponseWriter: w, control: http.NewResponseController(w), timeout: h.config.WriteTimeout}
	defer stream.close()
	if !isEnveloped(r) {
		h.rpc.ServeHTTP(stream, r) // which refuses it
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	ctx, fault := withStreamFault(ctx)
	deadline := &readDeadline{control: stream.control}
	defer deadline.end()
	in := &messages{
		ReadCloser: r.Body, held: held, body: func(in io.Reader) ([]byte, error) { return held.body(ctx, in) },
		limit: h.maxBodyBytes, unpack: unpacks(r), fault: fault, publishes: publishes[r.URL.Path],
		deadline: deadline, timeout: h.config.UnaryTimeout,
	}
	var out http.ResponseWriter = stream
	if isJSON(r) {
		answers := h.answers.budget(r, h.config.WriteTimeout)
		defer answers.giveBack()
		request, response := methodTypes(r.URL.Path)
		in.convert = h.fromJSON(request)
		media := r.Header.Get("Content-Type")
		out = &jsonAnswer{
			ResponseWriter: stream, media: media, kind: response, json: h.json, held: answers,
			take: func(bytes int64) error { return answers.take(ctx, bytes) }, cancel: cancel, fault: fault,
		}
		r.Header.Set("Content-Type", strings.TrimSuffix(media, "+json")+"+proto")
	}
	r = r.WithContext(ctx)
	switch r.URL.Path {
	case fanfarev1.FanfareService_Subscribe_FullMethodName, grpc_health_v1.Health_Watch_FullMethodName:
		h.serveOneRequest(out, r, in)
	default:
		if r.URL.Path == fanfarev1.FanfareService_Session_FullMethodName {
			in.limit = maxSessionBytes
		}
		in.deadline.set(time.Time{}) // the server's own bounds the whole
		r.Body = in
		h.rpc.ServeHTTP(out, r.WithContext(withMessages(ctx, in)))
	}
}

// unpacks reports whether the messages of a request may be compressed, with gzip. That the
// transcoder need not know.
func unpacks(r *http.Request) bool {
	name := "Grpc-Encoding"
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/connect+") {
		name = "Connect-Content-Encoding"
	}
	if r.Header.Get(name) != vanguard.CompressionGzip {
		return false
	}
	r.Header.Del(name)
	return true
}

// serveOneRequest serves a call whose request is one message, which is read to its end, as
// that of a unary call is.
func (h *Handler) serveOneRequest(w http.ResponseWriter, r *http.Request, in *messages) {
	reading, cancel := context.WithTimeout(r.Context(), h.config.UnaryTimeout)
	body, err := h.readBody(reading, in.held, w, r)
	cancel()
	if err != nil {
		h.refuseBody(w, err)
		return
	}
	in.ReadCloser, in.limit, in.deadline = io.NopCloser(bytes.NewReader(body)), maxOpenBytes, nil
	ctx, f := withFault(r.Context())
	f.unread, f.read = true, in.held.giveBack
	r = r.WithContext(ctx)
	r.Body, r.ContentLength = in, -1
	h.rpc.ServeHTTP(w, r)
}

// streamWriter gives each write its time.
type streamWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
}

// WriteHeader implements http.ResponseWriter.
func (s *streamWriter) WriteHeader(status int) {
	s.extend()
	defer s.lift()
	s.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (s *streamWriter) Write(p []byte) (int, error) {
	s.extend()
	defer s.lift()
	return s.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (s *streamWriter) Flush() { _ = s.FlushError() }

// FlushError is what http.ResponseController flushes with.
func (s *streamWriter) FlushError() error {
	s.extend()
	defer s.lift()
	return s.control.Flush()
}

// Unwrap is for http.ResponseController.
func (s *streamWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s *streamWriter) extend() { _ = s.control.SetWriteDeadline(time.Now().Add(s.timeout)) }

// lift lets a stream be silent: over HTTP/2 a deadline that passes between writes ends it.
func (s *streamWriter) lift() { _ = s.control.SetWriteDeadline(time.Time{}) }

// close has what follows on the connection, an end without a body included, have its time.
func (s *streamWriter) close() { s.extend() }
