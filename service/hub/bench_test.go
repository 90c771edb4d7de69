package hub

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fanfare-io/fanfare/backlog"
)

// BenchmarkFanOut is one frame from its announcement to a thousand
// subscriptions of its stream, which one goroutine reads as a connection's
// writer would: woken by the hooks, without blocking.
func BenchmarkFanOut(b *testing.B) { benchmarkFanOut(b, (*fakeStore).publish) }

// BenchmarkFanOutEphemeral is the same with an ephemeral frame.
func BenchmarkFanOutEphemeral(b *testing.B) { benchmarkFanOut(b, (*fakeStore).publishEphemeral) }

func benchmarkFanOut(b *testing.B, publish func(*fakeStore, backlog.StreamName, string) backlog.Announcement) {
	const subscribers = 1000
	r := newRig(b, Config{})
	r.bus.publish(orders, "first")
	all := make([]*Subscription, subscribers)
	woken := make([]atomic.Bool, subscribers)
	for i := range all {
		all[i] = r.subscribe(orders, Live()).sub
		all[i].SetWake(func() { woken[i].Store(true) })
		drain(b, all[i])
	}
	announcements := make([]backlog.Announcement, b.N)
	payload := strings.Repeat("x", 200)
	for i := range announcements {
		announcements[i] = publish(r.store, orders, payload)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range announcements {
		r.hub.Announce(announcements[i : i+1])
		for j, sub := range all {
			if woken[j].Swap(false) {
				drain(b, sub)
			}
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/subscribers, "ns/delivery")
	for _, sub := range all {
		if got := sub.Position(); got != r.store.head(orders) {
			b.Fatalf("a subscription is at %s", got)
		}
	}
}

func drain(b *testing.B, sub *Subscription) {
	for {
		if _, ok, err := sub.TryNext(messageBytes); err != nil {
			b.Fatal(err)
		} else if !ok {
			return
		}
	}
}

// BenchmarkSubscribe is a subscription answered from the tail, and its end.
func BenchmarkSubscribe(b *testing.B) {
	r := newRig(b, Config{})
	r.publishMany(orders, 0, 100)
	drain(b, r.subscribe(orders, Oldest()).sub)
	b.ReportAllocs()
	for b.Loop() {
		sub, _, err := subscribe(b.Context(), r.hub, orders, Oldest())
		if err != nil {
			b.Fatal(err)
		}
		sub.Close()
	}
}
