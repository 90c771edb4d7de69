package pgbacklog

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fanfare-io/fanfare/backlog"
)

// BenchmarkPublishers compares publishes through the committer with two others on
// the same server, through the same driver: one transaction for each frame that
// inserts the row and notifies, and the same rows in transactions of 512 that do not
// notify. Each iteration runs all three for a moment, in turns of alternating order,
// so that they meet the same disk; run it with -benchtime 7x or so. Reported are the
// medians of frames per second and of the ratios.
func BenchmarkPublishers(b *testing.B) {
	const rest = time.Second
	numbered := func(n int) func(i int) string {
		return func(i int) string { return fmt.Sprint(i % n) }
	}
	for _, c := range []struct {
		name    string
		callers int
		scope   func(i int) string
	}{
		{"callers=1", 1, numbered(1000)},
		{"callers=16", 16, numbered(1000)},
		{"callers=64", 64, numbered(1000)},
		{"callers=512", 512, numbered(1000)},
		{"callers=512/one-stream", 512, numbered(1)},
		{"callers=512/new-streams", 512, numbered(1 << 62)},
	} {
		b.Run(c.name, func(b *testing.B) {
			url := newSchema(b)
			s := startPublisher(b, url)
			payload := make([]byte, 200)
			var next atomic.Int64
			plain := newPlainTable(b, url, c.callers)
			runs := []func() float64{
				func() float64 {
					return rate(b, c.callers, rest, func(ctx context.Context) error {
						_, err := backlog.Publish(ctx, s, backlog.Publication{
							Stream: backlog.StreamName{Channel: "bench", Scope: c.scope(int(next.Add(1)))}, Payload: payload,
						})
						return err
					})
				},
				func() float64 { return rate(b, c.callers, rest, plain.insertAndNotify) },
				func() float64 { return plainBatch * rate(b, 1, rest, plain.insertMany) },
			}
			rates := make([][]float64, len(runs))
			var toSingle, toRows []float64
			for backwards := false; b.Loop(); backwards = !backwards {
				last := make([]float64, len(runs))
				for i := range runs {
					if backwards {
						i = len(runs) - 1 - i
					}
					last[i] = runs[i]()
					rates[i] = append(rates[i], last[i])
				}
				toSingle, toRows = append(toSingle, last[0]/last[1]), append(toRows, last[0]/last[2])
			}
			b.ReportMetric(median(rates[0]), "publishes/s")
			b.ReportMetric(median(rates[1]), "row-and-notify/s")
			b.ReportMetric(median(rates[2]), "rows/s")
			b.ReportMetric(median(toSingle), "of-row-and-notify")
			b.ReportMetric(median(toRows), "of-rows")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// rate runs publish from many callers for a while and returns how many
// succeeded a second.
func rate(b *testing.B, callers int, d time.Duration, publish func(ctx context.Context) error) float64 {
	b.Helper()
	var done atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	began := time.Now()
	for range callers {
		wg.Go(func() {
			for time.Since(began) < d {
				if err := publish(b.Context()); err != nil {
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

// plainTable is published to as one would without Fanfare: its rows are like those
// of channel_frames.
type plainTable struct {
	pool     *pgxpool.Pool
	next     atomic.Int64
	payload  []byte
	payloads [][]byte
}

// plainBatch is how many rows a transaction of insertMany has.
const plainBatch = 512

func newPlainTable(b *testing.B, url string, callers int) *plainTable {
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
	if _, err := pool.Exec(b.Context(), `create table plain (like fanfare.channel_frames including all)`); err != nil {
		b.Fatal(err)
	}
	payload := make([]byte, 200)
	return &plainTable{pool: pool, payload: payload, payloads: slices.Repeat([][]byte{payload}, plainBatch)}
}

// place spreads streams over the index, as random identities are.
func (p *plainTable) place() (stream, sequence int64) {
	sequence = p.next.Add(1)
	return sequence % 1000 * 0x1e3779b97f4a7c15 & (1<<62 - 1), sequence
}

// insertAndNotify inserts one row, notifies and commits, in one round trip.
func (p *plainTable) insertAndNotify(ctx context.Context) error {
	stream, sequence := p.place()
	_, err := p.pool.Exec(ctx, `
		with stored as (
		  insert into plain (stream_id, sequence, id, payload, size, content_type, event_type, origin, created)
		  values ($1, $2, gen_random_uuid(), $3::bytea, octet_length($3::bytea), '', '', 1, clock_timestamp()) returning sequence, payload)
		select pg_notify('plain', sequence || encode(payload, 'base64')) from stored`, stream, sequence, p.payload)
	return err
}

// insertMany inserts plainBatch rows in one transaction.
func (p *plainTable) insertMany(ctx context.Context) error {
	streams, sequences := make([]int64, plainBatch), make([]int64, plainBatch)
	for i := range streams {
		streams[i], sequences[i] = p.place()
	}
	_, err := p.pool.Exec(ctx, `
		insert into plain (stream_id, sequence, id, payload, size, content_type, event_type, origin, created)
		select n.stream_id, n.sequence, gen_random_uuid(), n.payload, octet_length(n.payload), '', '', 1, clock_timestamp()
		  from unnest($1::bigint[], $2::bigint[], $3::bytea[]) n(stream_id, sequence, payload)`, streams, sequences, p.payloads)
	return err
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
