package service_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"golang.org/x/sync/errgroup"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// A store in memory serves as one in a file does, and shares nothing with
// another one.
func TestStoreInMemory(t *testing.T) {
	r, other := servicetest.Start(t, "sqlite::memory:"), servicetest.Start(t, "sqlite::memory:")
	s := stream("memory", "")
	publish(t, r, newFrame(s, "stored"))
	reader := subscribe(t, r, fromOldest(s))
	if got := reader.payloads(1)[0]; got != "stored" {
		t.Errorf("replayed %q", got)
	}
	publish(t, r, newFrame(s, "live"))
	if got := reader.payloads(1)[0]; got != "live" {
		t.Errorf("delivered %q", got)
	}
	if head := subscribe(t, other, fromOldest(s)).subscribed.GetHead(); head.GetSequence() != 0 {
		t.Errorf("another store has the stream's head %v", head)
	}
	if _, err := r.Client.CloseStream(t.Context(), &fanfarev1.CloseStreamRequest{Channel: s.Channel}); err != nil {
		t.Fatal(err)
	}
	reader.end()
	if last := reader.notices[len(reader.notices)-1].GetClosed().GetLast(); last.GetSequence() != 2 {
		t.Errorf("closed after %v", last)
	}
}

// docs/stores.md, backup: a file is copied by SQLite while a replica publishes.
// The copy is a database of its own; positions up to its head are good there, and
// later ones, also of numbers that it has given again, are told a gap.
func TestBackupWhileServing(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.File}, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("backup", "")
		positions := publishMany(t, w.a, s, 100, numbered)
		copied := filepath.Join(t.TempDir(), "copy.db")

		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var publishing errgroup.Group
		publishing.Go(func() error {
			for i := 100; ctx.Err() == nil; i++ {
				answer, err := w.a.Client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: newFrame(s, numbered(i))})
				if err != nil {
					return err
				}
				positions = append(positions, answer.GetPosition())
			}
			return nil
		})
		vacuumInto(t, db.File(), copied)
		stop()
		if err := publishing.Wait(); err != nil {
			t.Fatal(err)
		}
		positions = append(positions, publish(t, w.a, newFrame(s, "after the copy")))
		w.stop()

		restored := servicetest.Start(t, "sqlite:"+copied, wholeBacklog)
		r := subscribe(t, restored, after(s, positions[49]))
		if !r.subscribed.GetResumed() {
			t.Errorf("a position from before the backup: %v", r.subscribed)
		}
		head := int(r.subscribed.GetHead().GetSequence())
		if head < 100 || head >= len(positions) {
			t.Fatalf("the copy has %d frames of %d", head, len(positions))
		}
		for i, f := range r.take(head - 50) {
			if position(f.GetPosition()) != position(positions[50+i]) || string(f.GetPayload()) != numbered(50+i) {
				t.Fatalf("frame %q at %v, it was %q at %v", f.GetPayload(), f.GetPosition(), numbered(50+i), positions[50+i])
			}
		}
		lost := positions[len(positions)-1]
		if gap := subscribe(t, restored, after(s, lost)).untilGap(); gap.GetReason() != fanfarev1.GapReason_GAP_REASON_AHEAD {
			t.Errorf("a position from after the backup: %v", gap)
		}
		publishMany(t, restored, s, len(positions)-head, numbered)
		if gap := subscribe(t, restored, after(s, lost)).untilGap(); gap.GetReason() != fanfarev1.GapReason_GAP_REASON_EPOCH_CHANGED {
			t.Errorf("a position that was given again: %v", gap)
		}
	})
}

// vacuumInto copies a database as another program does.
func vacuumInto(t *testing.T, file, copied string) {
	t.Helper()
	conn, err := sql.Open("sqlite", file)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // a connection for one statement
	if _, err := conn.ExecContext(t.Context(), "vacuum into $1", copied); err != nil {
		t.Fatal(err)
	}
}
