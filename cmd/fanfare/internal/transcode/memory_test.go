package transcode

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
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

// Symptom: memory was lost for good, bit by bit, until every request was refused. Cause: what
// a stream took for a message while its call ended, after what it had was given back and
// before no more could be taken, was never given back.
func TestNothingIsTakenBesideGivingBack(t *testing.T) {
	const size = 1 << 20
	m := newMemory(size)
	for try := range 3000 {
		b := m.budget(&http.Request{RemoteAddr: "192.0.2.1:1"}, patience)
		begun, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			close(begun)
			for bytes := int64(1); b.take(t.Context(), bytes) == nil; bytes++ {
			}
		}()
		<-begun
		b.giveBack()
		<-over
		if !m.all.TryAcquire(size) {
			t.Fatalf("try %d: what was taken meanwhile was not given back", try)
		}
		m.all.Release(size)
	}
}

// Symptom: whoever has one IPv6 network, of 2^64 addresses, could have everybody else refused
// with two of them. Cause: each address had a share of its own.
func TestClientsAreNetworks(t *testing.T) {
	for _, c := range []struct {
		address, client string
	}{
		{"192.0.2.1:1", "192.0.2.1/32"},
		{"[::ffff:192.0.2.1]:2", "192.0.2.1/32"},
		{"[2001:db8:0:1::1]:1", "2001:db8:0:1::/64"},
		{"[2001:db8:0:1:ffff::2]:2", "2001:db8:0:1::/64"},
		{"[2001:db8:0:2::1]:1", "2001:db8:0:2::/64"},
		{"[fe80::1%eth0]:1", "fe80::/64"},
	} {
		if got := clientOf(c.address); got != netip.MustParsePrefix(c.client) {
			t.Errorf("%s is of %s", c.address, got)
		}
	}
	const size = 1000
	m := newMemory(size)
	take := func(address string) error {
		return m.budget(&http.Request{RemoteAddr: address}, time.Millisecond).take(t.Context(), size/2)
	}
	if err := take("[2001:db8::1]:1"); err != nil {
		t.Fatal(err)
	}
	if err := take("[2001:db8::ffff:1]:1"); !errors.Is(err, errNoMemory) {
		t.Errorf("another address of the network: %v", err)
	}
	if err := take("[2001:db8:0:1::1]:1"); err != nil {
		t.Errorf("another network: %v", err)
	}
}
