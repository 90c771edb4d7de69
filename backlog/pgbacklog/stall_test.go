package pgbacklog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// stall is something that keeps publishes from being committed. begin has begun it
// when it returns; end ends it, and is called once.
type stall struct {
	begin func(t *testing.T, s *Store, url string) (end func())
	// fails, if not nil, is what publishes end with at once; otherwise they wait.
	fails error
}

// answersMeanwhile reports whether a publish with a deadline may end with err. An
// attempt ends before the deadline, and nothing is stored; unless it is in a commit
// that does not end, or the machine is too busy to say so in time.
func (s stall) answersMeanwhile(err error) bool {
	if s.fails != nil {
		return errors.Is(err, s.fails)
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, backlog.ErrOutcomeUnknown)
}

var stalls = map[string]stall{
	"the lock of all notifying commits": {
		begin: func(t *testing.T, _ *Store, url string) func() { return holdNotifyLock(t, url) },
	},
	"the stream's row": {
		begin: func(t *testing.T, _ *Store, url string) func() {
			foreign := pgtest.Dial(t, url)
			pgtest.Exec(t, foreign, "begin")
			pgtest.Exec(t, foreign, "select from fanfare.streams where scope = 's' for update")
			return func() { pgtest.Exec(t, foreign, "rollback") }
		},
	},
	"a commit that does not end": {
		begin: func(t *testing.T, s *Store, url string) func() {
			admin := pgtest.Dial(t, url)
			release := demandStandby(t, admin)
			eventually(t, "the replica's commit waits for the standby", func() bool {
				submit(t.Context(), s, publication("before", "x")) // the server applies the setting a little later
				return pgtest.Query[bool](t, admin, `select exists (select from pg_stat_activity where wait_event = 'SyncRep')`)
			})
			return release
		},
	},
	"a full notification queue": {
		begin: func(t *testing.T, _ *Store, url string) func() { return stopNotifying(t, url) },
		fails: backlog.ErrNotificationQueueFull,
	},
}

// Whatever keeps publishes from being committed: every caller is answered by its
// deadline, publishes are refused before more is in memory than configured, reads
// go on, and publishing goes on by itself afterwards. What callers were told is
// what is stored: once if it was acknowledged, not at all if it certainly was not.
func TestStalledPublishes(t *testing.T) {
	for name, stall := range stalls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testStall(t, stall)
		})
	}
}

const stalledBytes = 1 << 20 // what may be in memory

func testStall(t *testing.T, stall stall) {
	server := pgtest.Start(t) // the lock of notifying commits is the cluster's
	url := migrated(t, server.NewDatabase(t))
	s := startPublisher(t, url, func(c *committerConfig) { c.MaxQueuedBytes = stalledBytes })
	head := mustPublish(t, s, publication("s", "0")).Position
	end := sync.OnceFunc(stall.begin(t, s, url))
	defer end()

	const deadline = 3 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	began := time.Now()
	var all []*pending
	refused := 0
	for i := range 400 {
		p := publication("s", fmt.Sprintf("%d ", i))
		p.Payload = append(p.Payload, bytes.Repeat([]byte("x"), 16<<10)...)
		p.Ephemeral = i%10 == 9 && stall.fails == nil // what fails is what inserts rows
		all = append(all, submit(ctx, s, p))
		if queued := queuedBytes(s); queued > stalledBytes {
			t.Fatalf("%d bytes are in memory, the limit is %d", queued, stalledBytes)
		}
	}
	readEverything(t, s, head)
	for i, p := range all {
		_, err := p.wait(t)
		switch {
		case errors.Is(err, backlog.ErrPublishQueueFull):
			refused++
		case !stall.answersMeanwhile(err):
			t.Errorf("publish %d ended with %v", i, err)
		}
	}
	if elapsed := time.Since(began); elapsed > deadline+form(30*time.Second, 5*time.Second) {
		t.Errorf("the callers had their answers after %v, their deadline was %v", elapsed, deadline)
	}
	if stall.fails == nil && refused < 100 {
		t.Errorf("%d of 400 publishes of 16 KiB were refused, with room for %d bytes", refused, stalledBytes)
	}
	readEverything(t, s, head)
	if stall.fails != nil {
		// Nobody waits; otherwise the commit in flight may.
		if queued := queuedBytes(s); queued != 0 {
			t.Errorf("%d bytes are left in memory", queued)
		}
	}

	// An attempt whose callers have left takes room until it ends.
	var patient *pending
	eventually(t, "there is room for another publish", func() bool {
		patient = submit(t.Context(), s, publication("s", "patient"))
		return patient.waiting() || !errors.Is(patient.err, backlog.ErrPublishQueueFull)
	})
	if stall.fails != nil {
		if _, err := patient.wait(t); !stall.answersMeanwhile(err) {
			t.Errorf("a publish without deadline ended with %v", err)
		}
	}
	end()
	if stall.fails == nil {
		patient.must(t)
	}
	mustPublishSoon(t, s, publication("s", "after"))
	mustBeAsAnswered(t, s, url, all)
	eventually(t, "nothing is left in memory", func() bool { return queuedBytes(s) == 0 })
}

func queuedBytes(s *Store) int64 {
	s.committer.mu.Lock()
	defer s.committer.mu.Unlock()
	return s.committer.queued.bytes
}

// mustBeAsAnswered compares what is stored of stream s with the answers to
// publications that begin with their indexes.
func mustBeAsAnswered(t *testing.T, s *Store, url string, all []*pending) {
	t.Helper()
	count := map[int]int{}
	for _, payload := range stored(t, pgtest.Dial(t, url), "s") {
		var i int
		if _, err := fmt.Sscanf(payload, "%d x", &i); err == nil {
			count[i]++
		}
	}
	for i, p := range all {
		unknown := errors.Is(p.err, backlog.ErrOutcomeUnknown)
		if n := count[i]; n > 1 || n == 1 && p.err != nil && !unknown {
			t.Errorf("publish %d ended with %v and is stored %d times", i, p.err, n)
		}
	}
}
