package main

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// BenchmarkLatency measures the time from a Publish on one replica to the frame's
// arrival at a subscriber of another, at an idle rate: a frame every 10 ms. In
// turn with it, on the same server, it measures what one would do without
// Fanfare: a transaction that inserts and notifies, and a bare LISTEN. The time
// per operation that it reports is that interval.
func BenchmarkLatency(b *testing.B) {
	const interval = 5 * time.Millisecond
	database := pgtest.NewDatabase(b)
	publisher := dialServer(b, startServer(b, database))
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	call, err := dialServer(b, startServer(b, database)).Subscribe(ctx, &fanfarev1.SubscribeRequest{Channel: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	awaitCaughtUp(b, call)
	plain := newPlainPair(b, database)
	payload := make([]byte, 300)

	var received, answered, bare []time.Duration
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for b.Loop() {
		<-tick.C
		began := time.Now()
		answer := make(chan error, 1)
		go func() {
			_, err := publisher.Publish(ctx, &fanfarev1.PublishRequest{Frame: &fanfarev1.NewFrame{Channel: "bench", Payload: payload}})
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
		<-tick.C
		bare = append(bare, plain.send(b, payload))
	}
	b.ReportMetric(quantile(received, 0.5), "p50-µs")
	b.ReportMetric(quantile(received, 0.99), "p99-µs")
	b.ReportMetric(quantile(answered, 0.5), "answered-p50-µs")
	b.ReportMetric(quantile(bare, 0.5), "bare-p50-µs")
	b.ReportMetric(quantile(bare, 0.99), "bare-p99-µs")
	b.ReportMetric(quantile(received, 0.5)/quantile(bare, 0.5), "p50-ratio")
}

// plainPair is a connection that inserts and notifies, and one that listens.
type plainPair struct{ publisher, subscriber *pgx.Conn }

func newPlainPair(b *testing.B, database string) plainPair {
	b.Helper()
	var p plainPair
	for _, conn := range []**pgx.Conn{&p.publisher, &p.subscriber} {
		var err error
		if *conn, err = pgx.Connect(b.Context(), database); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { (*conn).Close(context.Background()) })
	}
	if _, err := p.publisher.Exec(b.Context(), "create table plain (id bigint generated always as identity primary key, payload bytea not null)"); err != nil {
		b.Fatal(err)
	}
	if _, err := p.subscriber.Exec(b.Context(), "listen plain"); err != nil {
		b.Fatal(err)
	}
	return p
}

// send returns how long a row took to the subscriber.
func (p plainPair) send(b *testing.B, payload []byte) time.Duration {
	began := time.Now()
	answer := make(chan error, 1)
	go func() {
		var batch pgx.Batch
		batch.Queue("begin")
		batch.Queue("insert into plain (payload) values ($1)", payload)
		batch.Queue("select pg_notify('plain', encode($1::bytea, 'base64'))", payload)
		batch.Queue("commit")
		answer <- p.publisher.SendBatch(b.Context(), &batch).Close()
	}()
	if _, err := p.subscriber.WaitForNotification(b.Context()); err != nil {
		b.Fatal(err)
	}
	took := time.Since(began)
	if err := <-answer; err != nil {
		b.Fatal(err)
	}
	return took
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
