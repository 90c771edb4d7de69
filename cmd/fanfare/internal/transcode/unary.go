package transcode

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"

	"golang.org/x/sync/semaphore"
)

// serveUnary reads the request to its end, so that what is wrong with it can be said,
// and that a client that is slow to send it takes no place of a call; then it calls.
func (h *Handler) serveUnary(w http.ResponseWriter, r *http.Request, next http.Handler) {
	read := &budget{all: h.bodies}
	defer read.giveBack()
	body, err := read.body(w, r, h.maxBodyBytes)
	if err != nil {
		h.refuseBody(w, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.placeTimeout)
	err = h.calls.Acquire(ctx, 1)
	cancel()
	if err != nil {
		refuseForNow(w, "the server answers as many calls over HTTP as it may; try again")
		return
	}
	defer h.calls.Release(1)
	// The server ends the call before its answer could not be written any more.
	ctx, cancel = context.WithTimeout(r.Context(), h.config.UnaryTimeout)
	defer cancel()
	ctx, _ = withFault(ctx)
	r = r.WithContext(ctx)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	next.ServeHTTP(w, r)
}

func (h *Handler) refuseBody(w http.ResponseWriter, err error) {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		refuseSize(w, tooLarge.Limit)
	case errors.Is(err, errTooManyBodies):
		refuseForNow(w, "the server reads as many requests over HTTP as it may; try again")
	case errors.Is(err, os.ErrDeadlineExceeded):
		refuse(w, http.StatusRequestTimeout, "the request did not come in time")
	default:
		// Whoever sent it has gone, most likely.
		refuse(w, http.StatusBadRequest, "the request did not come to its end")
	}
}

var errTooManyBodies = errors.New("too many requests are being read")

// budget is what one request has taken of the memory for all.
type budget struct {
	all   *semaphore.Weighted
	taken int64
}

// body reads a request of at most limit bytes, as far as there is memory for it.
func (b *budget) body(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	in := http.MaxBytesReader(w, r.Body, limit)
	var body bytes.Buffer
	for {
		// The buffer doubles, and holds both while it does.
		if err := b.take(3 * int64(max(body.Len(), bytes.MinRead))); err != nil {
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

// take has the request hold so many bytes, or more.
func (b *budget) take(bytes int64) error {
	more := bytes - b.taken
	if more <= 0 {
		return nil
	}
	if !b.all.TryAcquire(more) {
		return errTooManyBodies
	}
	b.taken = bytes
	return nil
}

func (b *budget) giveBack() { b.all.Release(b.taken) }
