package sqlitebacklog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fanfare-io/fanfare/backlog"
)

// wish is something to ask of a store.
type wish struct {
	batch   []backlog.Publication // one is published alone, unless atomic
	atomic  bool
	closing *backlog.StreamName
}

// randomWishes draws wishes that get into each other's way.
func randomWishes(random *rand.Rand, n int) []wish {
	stream := func() backlog.StreamName { return backlog.StreamName{Channel: fmt.Sprint("s", random.IntN(3))} }
	publication := func() backlog.Publication {
		p := backlog.Publication{Stream: stream(), Payload: fmt.Append(nil, random.IntN(3))}
		if random.IntN(3) == 0 {
			p.Ephemeral = true
			return p
		}
		if random.IntN(2) == 0 {
			p.IdempotencyKey = fmt.Sprint("key ", random.IntN(6))
		}
		if random.IntN(3) == 0 {
			p.Expected = &backlog.Expectation{Sequence: uint64(random.IntN(6))}
		}
		return p
	}
	wishes := make([]wish, n)
	for i := range wishes {
		switch random.IntN(5) {
		case 0:
			name := stream()
			wishes[i].closing = &name
		case 1, 2:
			wishes[i].atomic = true
			for range 1 + random.IntN(5) {
				wishes[i].batch = append(wishes[i].batch, publication())
			}
		default:
			wishes[i].batch = []backlog.Publication{publication()}
		}
	}
	return wishes
}

// grant asks for a wish and returns what came of it, without epochs, which are
// random.
func (w *wish) grant(ctx context.Context, s backlog.Store) string {
	switch {
	case w.closing != nil:
		o, err := s.CloseStream(ctx, *w.closing, nil)
		return fmt.Sprint("closed after ", o.Last.Sequence, o.AlreadyClosed, err)
	case w.atomic:
		outcomes, err := s.PublishBatch(ctx, w.batch)
		text := "batch " + told(err)
		for _, o := range outcomes {
			text += fmt.Sprint(" ", o.Position.Sequence, o.Duplicate)
		}
		return text
	default:
		o, err := backlog.Publish(ctx, s, w.batch[0])
		return fmt.Sprint("publish ", o.Position.Sequence, o.Duplicate, " ", told(err))
	}
}

// told is what an error says, without epochs.
func told(err error) string {
	text := ""
	var batch *backlog.BatchError
	if errors.As(err, &batch) {
		text = fmt.Sprint("frame ", batch.Index, " ")
	}
	var conflict *backlog.KeyConflictError
	var unexpected *backlog.ExpectationError
	switch {
	case errors.As(err, &conflict):
		return text + fmt.Sprint("conflict with ", conflict.Position.Sequence)
	case errors.As(err, &unexpected):
		return text + fmt.Sprint("head is ", unexpected.Head.Sequence)
	default:
		return text + fmt.Sprint(err)
	}
}

// contents are the rows of a store without what is random or a time.
func contents(t *testing.T, s *runningStore) (rows []string) {
	t.Helper()
	for _, statement := range []string{
		`select 'stream ' || channel || ' ' || head || ' ' || floor || ' ' || closed || ' ' || ever_closed || ' ' || ephemeral || ' ' || stored_bytes
			|| ' ' || (previous_epoch is null) || ' ' || (closed_at is null) from streams order by channel`,
		`select 'frame ' || coalesce(s.channel, r.channel || ' retired') || ' ' || f.sequence || ' ' || f.size || ' ' || hex(f.payload) from channel_frames f
			left join streams s on s.stream_id = f.stream_id left join retired_streams r on r.stream_id = f.stream_id order by f.id`,
		`select 'retired ' || channel || ' ' || head from retired_streams order by channel, head`,
		`select 'key ' || channel || ' ' || key || ' ' || sequence from idempotency_keys order by channel, key`,
	} {
		result, err := s.reader.QueryContext(t.Context(), statement)
		if err != nil {
			t.Fatal(err)
		}
		defer result.Close()
		for result.Next() {
			var row string
			if err := result.Scan(&row); err != nil {
				t.Fatal(err)
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// TestTogetherAsApart: what is decided in one transaction, with rows and keys that
// were read once and batches that are undone, comes to the same as if everything
// had a transaction of its own, also for who listens.
func TestTogetherAsApart(t *testing.T) {
	for range 10 {
		seed := rand.Uint64()
		wishes := randomWishes(rand.New(rand.NewPCG(seed, 0)), 40)
		apart := openRunning(t, Config{Path: filepath.Join(t.TempDir(), "fanfare.db")})
		drainApart := collect(t, apart.Store)
		var want []string
		for i := range wishes {
			want = append(want, wishes[i].grant(t.Context(), apart))
		}
		together := openHeld(t, Config{})
		drainTogether := collect(t, together.Store)
		got := make([]string, len(wishes))
		granted := make(chan struct{})
		queued := 0
		for i := range wishes {
			go func() {
				got[i] = wishes[i].grant(t.Context(), together)
				granted <- struct{}{}
			}()
			queued += max(1, len(wishes[i].batch))
			eventually(t, "it is queued", func() bool { return together.queuedFrames() == queued })
		}
		together.release()
		for range wishes {
			<-granted
		}
		if !slices.Equal(got, want) {
			t.Errorf("seed %d: together\n%q\napart\n%q", seed, got, want)
		}
		if got, want := contents(t, together.runningStore), contents(t, apart); !slices.Equal(got, want) {
			t.Errorf("seed %d: rows together\n%q\napart\n%q", seed, got, want)
		}
		if got, want := lines(drainTogether()), lines(drainApart()); !slices.Equal(got, want) {
			t.Errorf("seed %d: announced together\n%q\napart\n%q", seed, got, want)
		}
		apart.stop()
		together.stop()
	}
}
