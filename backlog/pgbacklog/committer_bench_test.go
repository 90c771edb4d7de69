package pgbacklog

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fanfare-io/fanfare/backlog"
)

// BenchmarkPublishers compares publishes through the committer with one
// transaction for each that inserts the row and notifies, through the same
// driver on the same server. Each iteration is a pair of short runs, so that
// both meet the same disk; run it with -benchtime 5x or so. Reported are the
// medians of publishes per second and of the pairs' ratios.
func BenchmarkPublishers(b *testing.B) {
	const (
		streams = 50
		rest    = time.Second
	)
	for _, callers := range []int{1, 16, 64, 512} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			url := newSchema(b)
			s := startPublisher(b, url)
			rowAndNotify := newRowAndNotify(b, url, callers)
			payload := make([]byte, 300)
			var grouped, single, ratios []float64
			for b.Loop() {
				g := rate(b, callers, rest, func(ctx context.Context, i int) error {
					_, err := backlog.Publish(ctx, s, backlog.Publication{
						Stream: backlog.StreamName{Channel: "bench", Scope: fmt.Sprint(i % streams)}, Payload: payload,
					})
					return err
				})
				r := rate(b, callers, rest, func(ctx context.Context, i int) error { return rowAndNotify(ctx, payload) })
				grouped, single, ratios = append(grouped, g), append(single, r), append(ratios, g/r)
			}
			b.ReportMetric(median(grouped), "publishes/s")
			b.ReportMetric(median(single), "row-and-notify/s")
			b.ReportMetric(median(ratios), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// rate runs publish from many callers for a while and returns how many
// succeeded a second.
func rate(b *testing.B, callers int, d time.Duration, publish func(ctx context.Context, i int) error) float64 {
	b.Helper()
	var done atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	began := time.Now()
	for caller := range callers {
		wg.Go(func() {
			for i := caller; time.Since(began) < d; i++ {
				if err := publish(b.Context(), i); err != nil {
					failed.Store(&err)
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		b.Fatal(*err)
	}
	return float64(done.Load()) / time.Since(began).Seconds()
}

// newRowAndNotify returns a function that publishes as one would without
// Fanfare: insert, notify and commit, in one round trip.
func newRowAndNotify(b *testing.B, url string, callers int) func(ctx context.Context, payload []byte) error {
	b.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		b.Fatal(err)
	}
	config.MaxConns = int32(min(callers, 64))
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	if _, err := pool.Exec(b.Context(), `create table plain (id bigint generated always as identity primary key, payload bytea not null)`); err != nil {
		b.Fatal(err)
	}
	return func(ctx context.Context, payload []byte) error {
		var batch pgx.Batch
		batch.Queue("begin")
		batch.Queue("insert into plain (payload) values ($1)", payload)
		batch.Queue("select pg_notify('plain', encode($1::bytea, 'base64'))", payload)
		batch.Queue("commit")
		return pool.SendBatch(ctx, &batch).Close()
	}
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// BenchmarkSubmit measures what the committer itself costs for a publication:
// the transactions are empty.
func BenchmarkSubmit(b *testing.B) {
	c := newCommitter(nil, committerConfig{}, nil)
	c.call = func(_ context.Context, _ string, take func() ([]*item, time.Duration)) ([]result, error) {
		items, _ := take()
		return make([]result, len(items)), nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.run(ctx)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	caller, cancelCaller := context.WithTimeout(ctx, time.Hour)
	defer cancelCaller()
	b.ReportAllocs()
	slots := make(chan struct{}, 1000)
	done := func(backlog.Outcome, error) { <-slots }
	for b.Loop() {
		slots <- struct{}{}
		c.submit(caller, publication("s", "payload"), done)
	}
}
