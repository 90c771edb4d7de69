package backlogtest

import (
	"bytes"
	"errors"
	"maps"
	"slices"

	"github.com/fanfare-io/fanfare/backlog"
)

// equal fails the test if got is not want.
func equal[T comparable](h *harness, what string, got, want T) {
	h.Helper()
	if got != want {
		h.Errorf("%s is %v, want %v", what, got, want)
	}
}

// equalAll fails the test if got has not the elements of want in their order.
func equalAll[T comparable](h *harness, what string, got, want []T) {
	h.Helper()
	if !slices.Equal(got, want) {
		h.Errorf("%s are %v, want %v", what, clip(got), clip(want))
	}
}

// clip keeps messages readable.
func clip[T any](s []T) []T { return s[:min(len(s), 20)] }

// isError fails the test if err is not want.
func isError(h *harness, what string, err, want error) {
	h.Helper()
	if !errors.Is(err, want) {
		h.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

// asError fails the test if err is not of type E and returns it.
func asError[E error](h *harness, what string, err error) E {
	h.Helper()
	var e E
	if !errors.As(err, &e) {
		h.Fatalf("%s: got error %v, want a %T", what, err, e)
	}
	return e
}

// expectedHead fails the test if err does not say that the head is want.
func expectedHead(h *harness, what string, err error, want backlog.Position) {
	h.Helper()
	equal(h, what+": the head in the error", asError[*backlog.ExpectationError](h, what, err).Head, want)
}

// sameContent fails the test if f is not what p published.
func sameContent(h *harness, f backlog.Frame, p backlog.Publication) {
	h.Helper()
	if !bytes.Equal(f.Payload, p.Payload) {
		h.Errorf("payload of %s differs: %d bytes stored, %d published", f.Position, len(f.Payload), len(p.Payload))
	}
	equal(h, "content type", f.ContentType, p.ContentType)
	equal(h, "event type", f.EventType, p.EventType)
	if !maps.Equal(f.Headers, p.Headers) {
		h.Errorf("headers are %q, want %q", f.Headers, p.Headers)
	}
	if len(p.Headers) == 0 && f.Headers != nil {
		h.Errorf("headers are %#v, want nil", f.Headers)
	}
}

// contiguous fails the test if frames are not numbered from first without a
// hole.
func contiguous(h *harness, frames []backlog.Frame, first uint64) {
	h.Helper()
	for i, f := range frames {
		if want := first + uint64(i); f.Position.Sequence != want {
			h.Fatalf("frame %d has sequence %d, want %d", i, f.Position.Sequence, want)
		}
	}
}
