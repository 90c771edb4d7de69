package hub

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// Symptom: while a store failed, and for as long as one page could not be read, the
// log got several lines a second. Cause: a line for each attempt.
func TestFailingStoreDoesNotFloodTheLog(t *testing.T) {
	var log syncBuffer
	cfg := Config{TailFrames: 10, ReReadInterval: time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	bubble(t, cfg, func(t *testing.T, r *rig) {
		const streams, broken = 1000, 10
		var all []*reader
		for i := range streams {
			n := 1
			if i < broken {
				n = 50
			}
			r.publishMany(streamName(i), 0, n)
			all = append(all, r.subscribe(streamName(i), Oldest()))
		}
		failing := func(d time.Duration) int {
			before := strings.Count(log.String(), "\n")
			for end := time.Now().Add(d); time.Now().Before(end); advance(t, 100*time.Millisecond) {
				for _, s := range all[:broken] {
					_, _, _ = s.sub.TryNext(1) // asks for its page
				}
			}
			return strings.Count(log.String(), "\n") - before
		}
		r.store.setFail(backlog.ErrUnavailable)
		// New subscriptions, too, as of clients that come back.
		for i := range 600 {
			go func() {
				<-time.After(time.Duration(i) * 100 * time.Millisecond)
				if _, _, err := subscribe(t.Context(), r.hub, streamName(streams+i), Live()); err == nil {
					t.Error("subscribed without a load")
				}
			}()
		}
		if n := failing(time.Minute); n < 3 || n > 21 {
			t.Errorf("%d lines in a minute:\n%s", n, log.String())
		}
		if !strings.Contains(log.String(), "left_out=") {
			t.Errorf("nothing says how many lines were left out:\n%s", log.String())
		}
		r.store.setFail(nil)
		for _, s := range all[:broken] {
			expect(t, s.frames(50), numbers(0, 50))
			s.caughtUpOrSilent()
		}
		synctest.Wait()
		// Each kind is for itself, and the first line comes at once.
		advance(t, logInterval)
		before := len(log.String())
		r.store.setFail(errors.New("another"))
		r.bus.sinkHint()
		synctest.Wait()
		if got := log.String()[before:]; strings.Count(got, "\n") != 1 || !strings.Contains(got, "refresh failed") || !strings.Contains(got, fmt.Sprint("streams=", streams)) {
			t.Errorf("the log of a new failure: %q", got)
		}
	})
}
