package transcode

import (
	"errors"
	"net/http"
	"time"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// serveStream serves a call whose answer goes on until one of both ends it. No time
// bounds the whole; each write has its own.
func (h *Handler) serveStream(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	if r.URL.Path != fanfarev1.FanfareService_Subscribe_FullMethodName {
		// Requests go on, too. That of Subscribe is one, which has to come in time.
		_ = control.SetReadDeadline(time.Time{})
	}
	stream := &streamWriter{ResponseWriter: w, control: control, timeout: h.config.WriteTimeout}
	if h.config.Begin != nil {
		stream.begin = func() (func(), bool) { return h.config.Begin(r) }
	}
	defer stream.close()
	h.rpc.ServeHTTP(stream, r)
}

// streamWriter gives each write its time, and asks for a place when the answer
// begins.
type streamWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
	// begin is nil if there is nothing to ask, or it was asked; end gives the place
	// back.
	begin func() (end func(), ok bool)
	end   func()
	// refused is true if there was no place.
	refused bool
}

var errNoPlace = errors.New("there is no place for another stream")

// WriteHeader implements http.ResponseWriter.
func (s *streamWriter) WriteHeader(status int) {
	if !s.ask() {
		return
	}
	s.extend()
	s.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (s *streamWriter) Write(p []byte) (int, error) {
	if !s.ask() {
		return 0, errNoPlace
	}
	s.extend()
	return s.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (s *streamWriter) Flush() { _ = s.FlushError() }

// FlushError is what http.ResponseController flushes with.
func (s *streamWriter) FlushError() error {
	if !s.ask() {
		return errNoPlace
	}
	s.extend()
	return s.control.Flush()
}

// Unwrap is for http.ResponseController.
func (s *streamWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s *streamWriter) extend() { _ = s.control.SetWriteDeadline(time.Now().Add(s.timeout)) }

func (s *streamWriter) close() {
	if s.end != nil {
		s.end()
	}
	// What follows on the connection, an end without a body included, has its time.
	s.extend()
}

// ask takes the stream's place, once.
func (s *streamWriter) ask() bool {
	if s.begin != nil {
		var ok bool
		s.end, ok = s.begin()
		s.begin = nil
		if s.refused = !ok; s.refused {
			clear(s.Header())
			refuseForNow(s.ResponseWriter, "the server has as many streams over HTTP as it may; try another replica, or this one later")
		}
	}
	return !s.refused
}
