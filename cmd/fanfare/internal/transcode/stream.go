package transcode

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"

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
	held := &budget{all: h.bodies, patience: h.placeTimeout}
	defer held.giveBack()
	stream := &streamWriter{ResponseWriter: w, control: http.NewResponseController(w), timeout: h.config.WriteTimeout}
	defer stream.close()
	switch r.URL.Path {
	case fanfarev1.FanfareService_Subscribe_FullMethodName, grpc_health_v1.Health_Watch_FullMethodName:
		h.serveOneRequest(stream, r, held)
	default:
		h.serveMessages(stream, r, held)
	}
}

// serveOneRequest serves a call whose request is one message, which is read to its end, as
// that of a unary call is.
func (h *Handler) serveOneRequest(stream *streamWriter, r *http.Request, held *budget) {
	reading, cancel := context.WithTimeout(r.Context(), h.config.UnaryTimeout)
	body, err := h.readBody(reading, held, stream, r)
	cancel()
	if err != nil {
		h.refuseBody(stream, err)
		return
	}
	ctx, f := withFault(r.Context())
	f.unread, f.read = !isJSON(r), held.giveBack
	r = r.WithContext(ctx)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	h.rpc.ServeHTTP(stream, r)
}

// serveMessages serves a call whose requests go on, too.
func (h *Handler) serveMessages(stream *streamWriter, r *http.Request, held *budget) {
	_ = stream.control.SetReadDeadline(time.Time{}) // the server's own bounds the whole
	ctx, f := withStreamFault(r.Context())
	r = r.WithContext(ctx)
	limit := h.maxBodyBytes
	if r.URL.Path == fanfarev1.FanfareService_Session_FullMethodName {
		limit = maxSessionBytes
	}
	r.Body = &messages{
		ReadCloser: r.Body, held: held, take: func(bytes int64) error { return held.take(ctx, bytes) }, limit: limit, decodes: isJSON(r), fault: f,
		deadline: stream.control.SetReadDeadline, timeout: h.config.UnaryTimeout,
	}
	h.rpc.ServeHTTP(stream, r)
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
