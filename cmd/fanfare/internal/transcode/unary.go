package transcode

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// serveUnary reads the request to its end, so that what is wrong with it can be said,
// and that a client that is slow to send it takes no place of a call; then it calls. All
// of it has one time, as the one of the http.Server in which the answer can be written
// runs from the header, too: whoever publishes must learn what became of it.
func (h *Handler) serveUnary(w http.ResponseWriter, r *http.Request, next http.Handler) {
	ctx, cancel := context.WithTimeout(r.Context(), h.config.UnaryTimeout)
	defer cancel()
	read := &budget{all: h.bodies, patience: h.placeTimeout}
	defer read.giveBack()
	body, err := h.readBody(ctx, read, w, r)
	if err != nil {
		h.refuseBody(w, err)
		return
	}
	place, cancelPlace := context.WithTimeout(ctx, h.placeTimeout)
	err = h.calls.Acquire(place, 1)
	cancelPlace()
	switch {
	case ctx.Err() != nil:
		if err == nil {
			h.calls.Release(1)
		}
		refuse(w, http.StatusGatewayTimeout, "the time of the call was over before there was a place for it; nothing was sent to the server")
		return
	case err != nil:
		refuseForNow(w, "the server answers as many calls over HTTP as it may; try again")
		return
	}
	defer h.calls.Release(1)
	ctx, f := withFault(ctx)
	f.unread = !isJSON(r)
	r = r.WithContext(ctx)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	next.ServeHTTP(w, r)
}

// readBody reads a request until the deadline of ctx, and decompresses it.
func (h *Handler) readBody(ctx context.Context, read *budget, w http.ResponseWriter, r *http.Request) ([]byte, error) {
	control := http.NewResponseController(w)
	if deadline, ok := ctx.Deadline(); ok {
		_ = control.SetReadDeadline(deadline) // the server's own is later
	}
	limit := h.maxBodyBytes
	if isOpen(r.URL.Path) || isStreaming(r.URL.Path) {
		limit = maxOpenBytes
	}
	in := http.MaxBytesReader(w, r.Body, limit)
	if r.Header.Get("Content-Encoding") == "gzip" && !isEnveloped(r) {
		in = &gunzipped{ReadCloser: in, limit: limit}
		r.Header.Del("Content-Encoding")
	}
	body, err := read.body(ctx, in)
	if err != nil {
		return nil, err
	}
	if isEnveloped(r) && len(body) > envelopeBytes && body[0]&compressed != 0 {
		if err := read.take(ctx, 3*min(int64(len(body))*maxInflation, limit)); err != nil {
			return nil, err
		}
	}
	// The connection is read on, to see whether the client goes.
	_ = control.SetReadDeadline(time.Time{})
	return body, nil
}

func (h *Handler) refuseBody(w http.ResponseWriter, err error) {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		refuseSize(w, tooLarge.Limit)
	case errors.Is(err, errTooManyBodies):
		refuseForNow(w, "the server reads as many requests over HTTP as it may; try again")
	case errors.Is(err, os.ErrDeadlineExceeded):
		refuse(w, http.StatusRequestTimeout, "the request did not come in time; nothing was sent to the server")
	case errors.Is(err, errNotGzip):
		refuse(w, http.StatusBadRequest, "the request cannot be decompressed")
	default:
		// Whoever sent it has gone, most likely.
		refuse(w, http.StatusBadRequest, "the request did not come to its end")
	}
}

var errTooManyBodies = errors.New("too many requests are being read")

// budget is what one request has taken of the memory for all.
type budget struct {
	all      *semaphore.Weighted
	patience time.Duration

	mu    sync.Mutex // guards what follows: the body of a stream is read beside its call
	taken int64
	over  bool
}

// body reads a request, as far as there is memory for it.
func (b *budget) body(ctx context.Context, in io.Reader) ([]byte, error) {
	var body bytes.Buffer
	for {
		// The buffer doubles, and holds both while it does.
		if err := b.take(ctx, 3*int64(max(body.Len(), bytes.MinRead))); err != nil {
			return nil, err
		}
		body.Grow(bytes.MinRead)
		room := body.AvailableBuffer()
		n, err := in.Read(room[:cap(room)])
		body.Write(room[:n])
		switch {
		case errors.Is(err, io.EOF):
			return body.Bytes(), nil
		case err != nil:
			return nil, err
		}
	}
}

// take has the request hold so many bytes, or more. It waits for others to give some back.
// Only one may take at a time.
func (b *budget) take(ctx context.Context, bytes int64) error {
	b.mu.Lock()
	more := bytes - b.taken
	b.mu.Unlock()
	if more <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, b.patience)
	defer cancel()
	if b.all.Acquire(ctx, more) != nil {
		return errTooManyBodies
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		b.all.Release(more)
		return errTooManyBodies
	}
	b.taken += more
	return nil
}

// shrink gives back what is taken above so many bytes.
func (b *budget) shrink(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if more := b.taken - bytes; more > 0 {
		b.all.Release(more)
		b.taken = bytes
	}
}

// giveBack gives back what is taken. Nothing more can be taken.
func (b *budget) giveBack() {
	b.mu.Lock()
	b.over = true
	b.mu.Unlock()
	b.shrink(0)
}
