package sqlitebacklog

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// BenchmarkPublishers compares publishes of 200 bytes with what remains without
// Fanfare: rows of the same size, gathered into transactions in the same way,
// through the same driver with the same settings. Each iteration is a pair of
// short runs, so that both meet the same disk; run it with -benchtime 5x or so.
// Reported are the medians of publishes a second and of the pairs' ratios.
func BenchmarkPublishers(b *testing.B) {
	for _, streams := range []int{1, 1000} {
		for _, callers := range []int{1, 64, 512} {
			b.Run(fmt.Sprintf("streams=%d/callers=%d", streams, callers), func(b *testing.B) {
				s := startStore(b, Config{Path: filepath.Join(b.TempDir(), "fanfare.db")})
				insert := newGroupedInserts(b)
				payload := make([]byte, 200)
				var publishes, inserts, ratios []float64
				for b.Loop() {
					p := rate(b, callers, func(ctx context.Context, i int) error {
						_, err := backlog.Publish(ctx, s, backlog.Publication{
							Stream: backlog.StreamName{Channel: "bench", Scope: strconv.Itoa(i % streams)}, Payload: payload,
						})
						return err
					})
					n := rate(b, callers, func(ctx context.Context, i int) error { return insert(payload) })
					publishes, inserts, ratios = append(publishes, p), append(inserts, n), append(ratios, p/n)
				}
				b.ReportMetric(median(publishes), "publishes/s")
				b.ReportMetric(median(inserts), "inserts/s")
				b.ReportMetric(median(ratios), "ratio")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// rate calls publish from many callers for half a second and returns how many
// calls succeeded a second.
func rate(b *testing.B, callers int, publish func(ctx context.Context, i int) error) float64 {
	b.Helper()
	var done atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	began := time.Now()
	for caller := range callers {
		wg.Go(func() {
			for i := caller; time.Since(began) < 500*time.Millisecond; i += callers {
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

// newGroupedInserts returns a function that inserts a row and returns after the
// commit, which rows of up to 512 callers share.
func newGroupedInserts(b *testing.B) func(payload []byte) error {
	b.Helper()
	s := &Store{path: filepath.Join(b.TempDir(), "plain.db")}
	db, err := sql.Open("sqlite", s.dsn("journal_mode(WAL)", "wal_autocheckpoint(4000)"))
	if err != nil {
		b.Fatal(err)
	}
	conn, err := db.Conn(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	if _, err := conn.ExecContext(b.Context(), "create table plain (id integer primary key, payload blob not null)"); err != nil {
		b.Fatal(err)
	}
	statement, err := conn.PrepareContext(b.Context(), "insert into plain (payload) values (?)")
	if err != nil {
		b.Fatal(err)
	}
	type request struct {
		payload []byte
		done    chan error
	}
	requests := make(chan request, 512)
	var committer sync.WaitGroup
	ctx := context.WithoutCancel(b.Context())
	committer.Go(func() {
		for r := range requests {
			group := []request{r}
			for len(group) < 512 && len(requests) > 0 {
				group = append(group, <-requests)
			}
			_, err := conn.ExecContext(ctx, "begin immediate")
			for _, r := range group {
				if err == nil {
					_, err = statement.ExecContext(ctx, r.payload)
				}
			}
			if err == nil {
				_, err = conn.ExecContext(ctx, "commit")
			}
			for _, r := range group {
				r.done <- err
			}
		}
	})
	b.Cleanup(func() {
		close(requests)
		committer.Wait()
		_ = db.Close()
	})
	return func(payload []byte) error {
		r := request{payload, make(chan error, 1)}
		requests <- r
		return <-r.done
	}
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// BenchmarkCheckpoints measures, with 64 callers and 1,000 streams, how long a
// checkpoint keeps the next transaction waiting, and what part of the time
// checkpoints take.
func BenchmarkCheckpoints(b *testing.B) {
	for _, every := range []int64{1000, 4000, 16000} {
		b.Run(fmt.Sprint("every=", every), func(b *testing.B) {
			durations := &checkpointDurations{Handler: slog.DiscardHandler}
			s, err := Open(b.Context(), Config{Path: filepath.Join(b.TempDir(), "fanfare.db"), Logger: slog.New(durations)})
			if err != nil {
				b.Fatal(err)
			}
			s.checkpoints.every = every
			stop := runStore(b, s)
			payload := make([]byte, 200)
			began, publishes := time.Now(), 0.0
			for b.Loop() {
				publishes += rate(b, 64, func(ctx context.Context, i int) error {
					_, err := backlog.Publish(ctx, s, backlog.Publication{
						Stream: backlog.StreamName{Channel: "bench", Scope: strconv.Itoa(i % 1000)}, Payload: payload,
					})
					return err
				})
			}
			took := time.Since(began)
			stop()
			sum := time.Duration(0)
			for _, d := range durations.all {
				sum += d
			}
			b.ReportMetric(publishes/float64(b.N), "publishes/s")
			if len(durations.all) > 0 {
				slices.Sort(durations.all)
				b.ReportMetric(float64(durations.all[len(durations.all)/2].Microseconds())/1000, "median-ms")
			}
			b.ReportMetric(100*sum.Seconds()/took.Seconds(), "%-of-the-time")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// checkpointDurations keeps what is logged of checkpoints.
type checkpointDurations struct {
	slog.Handler
	all []time.Duration // written by one goroutine
}

func (h *checkpointDurations) Enabled(context.Context, slog.Level) bool { return true }

func (h *checkpointDurations) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if r.Message == "checkpoint" && a.Key == "duration" {
			h.all = append(h.all, a.Value.Duration())
		}
		return true
	})
	return nil
}
