package transcode

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"connectrpc.com/connect"
)

// serveUnary reads the request to its end, so that what is wrong with it can be said,
// and that a client that is slow to send it takes no place of a call; then it calls. All
// of it has one time, as the one of the http.Server in which the answer can be written
// runs from the header, too: whoever publishes must learn what became of it.
func (h *Handler) serveUnary(w http.ResponseWriter, r *http.Request, next http.Handler) {
	ctx, cancel := context.WithTimeout(r.Context(), h.config.UnaryTimeout)
	defer cancel()
	read := h.requests.budget(r, h.placeTimeout)
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
	case errors.Is(err, errNoMemory):
		refuseForNow(w, "the server reads as many requests over HTTP as it may; try again")
	case errors.Is(err, os.ErrDeadlineExceeded):
		refuse(w, http.StatusRequestTimeout, "the request did not come in time; nothing was sent to the server")
	case errors.Is(err, errNotGzip):
		writeProblem(w, http.StatusBadRequest, Problem{
			Code: connect.CodeInvalidArgument.String(), Reason: reasonField, Message: "the request cannot be decompressed",
		})
	default:
		// Whoever sent it has gone, most likely.
		refuse(w, http.StatusBadRequest, "the request did not come to its end")
	}
}
