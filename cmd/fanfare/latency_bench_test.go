package main

import (
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// BenchmarkLatency measures the time from a Publish on one replica to the frame's
// arrival at a subscriber of another, at an idle rate: a frame every 10 ms. What
// it reports as time per operation is that interval; the latencies are p50 and
// p99, and answered-p50 is when Publish has returned.
func BenchmarkLatency(b *testing.B) {
	const interval = 10 * time.Millisecond
	database := pgtest.NewDatabase(b)
	publisher := dialServer(b, startServer(b, database))
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	call, err := dialServer(b, startServer(b, database)).Subscribe(ctx, &fanfarev1.SubscribeRequest{Channel: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	awaitCaughtUp(b, call)

	var received, answered []time.Duration
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for b.Loop() {
		<-tick.C
		began := time.Now()
		answer := make(chan error, 1)
		go func() {
			_, err := publisher.Publish(ctx, &fanfarev1.PublishRequest{Frame: &fanfarev1.NewFrame{Channel: "bench", Payload: make([]byte, 300)}})
			answered = append(answered, time.Since(began))
			answer <- err
		}()
		response, err := call.Recv()
		if err != nil || len(response.GetFrames()) != 1 {
			b.Fatalf("received %v, %v", response, err)
		}
		received = append(received, time.Since(began))
		if err := <-answer; err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(quantile(received, 0.5), "p50-µs")
	b.ReportMetric(quantile(received, 0.99), "p99-µs")
	b.ReportMetric(quantile(answered, 0.5), "answered-p50-µs")
}

// dialServer returns a client of a server.
func dialServer(t testing.TB, s *server) fanfarev1.FanfareServiceClient {
	t.Helper()
	c := connection{server: s.address}
	conn, err := c.dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return fanfarev1.NewFanfareServiceClient(conn)
}

func awaitCaughtUp(t testing.TB, call grpc.ServerStreamingClient[fanfarev1.SubscribeResponse]) {
	t.Helper()
	for {
		response, err := call.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if response.GetCaughtUp() != nil {
			return
		}
	}
}

// quantile returns a quantile of durations in microseconds.
func quantile(durations []time.Duration, q float64) float64 {
	slices.Sort(durations)
	return float64(durations[int(q*float64(len(durations)-1))].Microseconds())
}
