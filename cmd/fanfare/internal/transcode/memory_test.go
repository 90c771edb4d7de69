package transcode

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"
)

// One client has at most half of the memory, so that it alone cannot have the others
// refused; and of a client that has gone nothing is kept.
func TestOneClientCannotTakeAllMemory(t *testing.T) {
	const size = 1000
	m := newMemory(size)
	from := func(address string) *budget { return m.budget(&http.Request{RemoteAddr: address}, patience) }
	take := func(b *budget, bytes int64) error { return b.take(context.Background(), bytes) }
	takeAtOnce := func(b *budget, bytes int64) error {
		b.patience = time.Millisecond
		defer func() { b.patience = patience }()
		return take(b, bytes)
	}
	greedy, again, other := from("192.0.2.1:1"), from("192.0.2.1:2"), from("192.0.2.2:1")
	if err := take(greedy, size/2); err != nil {
		t.Errorf("half: %v", err)
	}
	if err := takeAtOnce(again, 1); !errors.Is(err, errNoMemory) {
		t.Errorf("more than half, on another connection: %v", err)
	}
	if err := take(other, size/2); err != nil {
		t.Errorf("another client: %v", err)
	}
	third := from("@")
	if err := takeAtOnce(third, 1); !errors.Is(err, errNoMemory) {
		t.Errorf("more than there is: %v", err)
	}
	greedy.shrink(size / 4)
	if err := take(third, size/4); err != nil {
		t.Errorf("after some was given back: %v", err)
	}
	if err := takeAtOnce(again, size/4); !errors.Is(err, errNoMemory) {
		t.Errorf("more than all have left: %v", err)
	}
	for _, b := range []*budget{greedy, again, other, third, third} {
		b.giveBack()
	}
	if err := takeAtOnce(other, 1); !errors.Is(err, errNoMemory) {
		t.Errorf("of a request that has ended: %v", err)
	}
	if !m.all.TryAcquire(size) || len(m.shares) != 0 {
		t.Errorf("not everything was given back; %d clients are kept", len(m.shares))
	}
}
