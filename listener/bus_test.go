package listener

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

func TestBusAnnounces(t *testing.T) {
	b := newBusTest(t, &sink{})
	b.pub.publish(1, 2)
	b.pub.publish(3)
	b.expect(t, 1, 2, 3)
	if len(b.sink.hintTimes()) != 0 {
		t.Fatal("a hint without a reason")
	}
	first := b.bus.Current()
	if first.Number != 1 || first.Origin != 5 {
		t.Fatalf("listening %+v", first)
	}
	killListeners(t, b.db)
	eventually(t, "the next listening", func() bool { return b.bus.Current().Number == 2 })
	if _, err := b.bus.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.pub.publish(4)
	b.expect(t, 1, 2, 3, 4)
	if got := b.sink.story(); got != "listening 1, lost, listening 2" {
		t.Fatalf("the sink was told: %s", got)
	}
	if s := b.bus.Stats(); s.Envelopes != 3 || s.Announcements != 4 || s.Reloads != 1 {
		t.Fatalf("stats %+v", s)
	}
}

// An entry that says that a policy was changed is a hint, and nothing to worry
// about.
func TestBusPassesHints(t *testing.T) {
	t.Parallel()
	b := newBusTest(t, &sink{})
	b.pub.send(Envelope{Hint: true})
	eventually(t, "a hint", func() bool { return len(b.sink.hintTimes()) == 1 })
	// Frames of the same transaction are announced as ever.
	b.pub.send(Envelope{Hint: true, Announcements: []backlog.Announcement{frame(1, nil, nil)}})
	b.pub.send(Envelope{Hint: true})
	b.expect(t, 1)
	eventually(t, "one hint for two", func() bool { return len(b.sink.hintTimes()) == 2 })
	s := b.bus.Stats()
	if s.Envelopes != 3 || s.Announcements != 1 || s.Hints != 2 || s.SkippedEntries+s.Forged+s.Unreadable+s.UnknownVersion+s.UnknownKey != 0 {
		t.Errorf("stats %+v", s)
	}
	if log := strings.Join(b.logs.lines(), ""); log != "" {
		t.Errorf("the log is %q", log)
	}
}

// POSTGRES.md 15, acceptance 10: whatever others notify, plausible, from the
// future, replayed or garbled, announces nothing. It is one hint a second.
func TestBusRefusesForgeries(t *testing.T) {
	t.Parallel()
	b := newBusTest(t, &sink{})
	genuine := b.pub.publish(1)
	b.expect(t, 1)
	pid := b.db.PgConn().PID()
	plausible := sample()
	plausible.PID, plausible.Transaction = pid, 1<<62
	forgeries := []string{
		"", "hello", strings.Repeat("x", 7999), "F1", "F1\t\t\t\t\t\t\t", "F2\tsomething new",
		genuine,                               // replayed by another process
		strings.Replace(genuine, "D", "C", 1), // garbled
		genuine + "\nC\tchat/messages\t\t1\t99\t2", // with an addition
		EncodeEnvelope(Key{ID: testKey.ID, Secret: []byte("guess")}, plausible),
		EncodeEnvelope(Key{ID: 4711, Secret: []byte("mine")}, plausible),
	}
	// The first by itself: what comes at once is one hint.
	begun := time.Now()
	notify(t, b.db, busChannel, "first")
	eventually(t, "a hint", func() bool { return len(b.sink.hintTimes()) == 1 })
	for range 20 {
		for _, payload := range forgeries {
			notify(t, b.db, busChannel, payload)
		}
	}
	// Replayed by the same process: only the mark tells.
	pgtest.Exec(t, b.pub.conn, "select pg_notify($1, $2)", busChannel, genuine)
	b.pub.publish(2)
	b.expect(t, 1, 2)
	// The version from the future may have had an ephemeral frame.
	eventually(t, "a hint that frames may have been missed", func() bool { return len(b.sink.missedTimes()) >= 1 })
	s := b.bus.Stats()
	// How far they are apart is tested where the clock is the test's.
	seconds := int(time.Since(begun)/hintInterval) + 1
	if hints, missed := len(b.sink.hintTimes()), len(b.sink.missedTimes()); hints > seconds || missed > seconds {
		t.Fatalf("%d hints and %d that something may have been missed in %d seconds", hints, missed, seconds)
	}
	if s.Unreadable < 100 || s.UnknownVersion != 20 || s.UnknownKey != 20 || s.Forged < 60 || s.Replayed != 1 || s.Envelopes != 2 {
		t.Fatalf("stats %+v", s)
	}
	if s.Reloads > uint64(seconds)+2 {
		t.Fatalf("%d reloads of the keys in %d seconds", s.Reloads, seconds)
	}
	if n := len(b.logs.lines()); n > 12+seconds {
		t.Fatalf("%d log lines in %d seconds", n, seconds)
	}
}

// A new key: its envelopes and those after it wait, in order, for the keys.
func TestBusReloadsKeys(t *testing.T) {
	t.Parallel()
	b := newBusTest(t, &sink{})
	b.pub.publish(1)
	b.expect(t, 1)
	next := Key{ID: testKey.ID + 1, Secret: []byte("next")}
	gate := make(chan struct{})
	b.ring.mu.Lock()
	b.ring.gate = gate
	b.ring.keys = []Key{testKey, next}
	b.ring.mu.Unlock()
	awaitReloadAllowed(b)
	b.pub.key = next
	b.pub.publish(2)
	b.pub.key = testKey
	b.pub.publish(3)
	eventually(t, "the reload to begin", func() bool {
		b.ring.mu.Lock()
		defer b.ring.mu.Unlock()
		return b.ring.loads == 2
	})
	// The listener is not held up by it.
	r := attach(t, b.l, "aside")
	ensure(t, b.l, "aside")
	notify(t, b.db, "aside", "not held")
	eventually(t, "another consumer's notification", func() bool { return r.has("not held") })
	if got := b.sink.seen(); len(got) != 1 {
		t.Fatalf("announced %v before the keys were there", got)
	}
	close(gate)
	b.expect(t, 1, 2, 3)
	if s := b.bus.Stats(); s.UnknownKey != 0 {
		t.Fatalf("stats %+v", s)
	}
}

// A schema that was made anew has other secrets under the same ids.
func TestBusReloadsReplacedKeys(t *testing.T) {
	t.Parallel()
	b := newBusTest(t, &sink{})
	b.pub.publish(1)
	b.expect(t, 1)
	b.pub.key = Key{ID: testKey.ID, Secret: []byte("anew")}
	b.ring.set(b.pub.key)
	awaitReloadAllowed(b)
	b.pub.publish(2)
	b.expect(t, 1, 2)
}

// Envelopes of keys that cannot be loaded may have been missed; loading is tried
// again.
func TestBusWithoutKeys(t *testing.T) {
	t.Parallel()
	b := newBusTest(t, &sink{})
	b.ring.mu.Lock()
	b.ring.err = errors.New("no database")
	b.ring.mu.Unlock()
	awaitReloadAllowed(b)
	next := Key{ID: 77, Secret: []byte("next")}
	b.pub.key = next
	b.pub.publish(1)
	eventually(t, "a hint that frames may have been missed", func() bool { return len(b.sink.missedTimes()) >= 1 })
	b.ring.mu.Lock()
	b.ring.err = nil
	b.ring.keys = []Key{next}
	b.ring.mu.Unlock()
	awaitReloadAllowed(b)
	b.pub.publish(2)
	b.expect(t, 2)
}

// awaitReloadAllowed lets the time between two reloads pass.
func awaitReloadAllowed(*busTest) {
	timer := time.NewTimer(reloadInterval + 20*time.Millisecond)
	<-timer.C
}

// POSTGRES.md 21: a sink that is stuck costs a bounded amount of memory and
// nothing else; what was dropped may have been missed.
func TestBusWithStuckSink(t *testing.T) {
	gate := make(chan struct{})
	b := newBusTest(t, &sink{gate: gate})
	b.pub.publish(1)
	r := attach(t, b.l, "aside")
	ensure(t, b.l, "aside")
	big := strings.Repeat("x", 7000)
	for range 40 {
		pgtest.Exec(t, b.db, "select pg_notify($1, g || $2) from generate_series(1, 100) g", busChannel, big)
	}
	notify(t, b.db, "aside", "marker")
	eventually(t, "another consumer's notification", func() bool { return r.has("marker") })
	b.bus.inbox.mu.Lock()
	bytes, items := b.bus.inbox.bytes, len(b.bus.inbox.items)
	b.bus.inbox.mu.Unlock()
	if bytes > maxHeldBytes || items > maxHeldNotifications+10 {
		t.Fatalf("%d bytes, %d items are held", bytes, items)
	}
	state := pgtest.Query[string](t, b.db, `select concat_ws(' ', wait_event, backend_xmin) from pg_stat_activity
		where application_name like 'fanfare-listen/%' and datname = current_database()`)
	if state != "ClientRead" {
		t.Fatalf("the listener's session is %q, want ClientRead and no backend_xmin", state)
	}
	close(gate)
	eventually(t, "a hint that frames may have been missed", func() bool { return len(b.sink.missedTimes()) >= 1 })
	if s := b.bus.Stats(); s.Overflows == 0 {
		t.Fatalf("stats %+v", s)
	}
	b.pub.publish(2)
	eventually(t, "the next announcement", func() bool { got := b.sink.seen(); return got[len(got)-1] == 2 })
	eventually(t, "an empty queue", func() bool {
		return pgtest.Query[float64](t, b.db, "select pg_notification_queue_usage()") < 0.001
	})
}

func TestInboxKeepsEvents(t *testing.T) {
	b := newInbox()
	b.Listening(Connected{Listening: backlog.Listening{Number: 1}})
	for range maxHeldNotifications + 1 {
		b.Notify(Notification{Payload: "x"})
	}
	b.Lost(errors.New("gone"))
	var kinds []itemKind
	for _, i := range b.take() {
		kinds = append(kinds, i.kind)
	}
	if fmt.Sprint(kinds) != fmt.Sprint([]itemKind{itemListening, itemOverflow, itemNotification, itemLost}) {
		t.Fatalf("kinds %v", kinds)
	}
	for range 5 {
		b.Notify(Notification{Payload: strings.Repeat("x", maxHeldBytes/4+1)})
	}
	if b.bytes > maxHeldBytes {
		t.Fatalf("%d bytes held", b.bytes)
	}
}

func TestBusEnsureFails(t *testing.T) {
	l, err := New(Config{URL: "postgres://127.0.0.1:1/none", EnsureTimeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	bus := NewBus(l, busChannel, (&ring{}).load, nil)
	if _, err := bus.Ensure(t.Context()); !errors.Is(err, ErrNotListening) {
		t.Fatalf("Ensure = %v, want ErrNotListening", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := bus.Ensure(ctx); !errors.Is(err, ErrNotListening) || !errors.Is(err, context.Canceled) {
		t.Fatalf("Ensure = %v, want ErrNotListening and the cancellation", err)
	}
	if err := NewBus(l, strings.Repeat("x", 64), nil, nil).Run(t.Context(), &sink{}); err == nil {
		t.Fatal("a bus ran on a name of 64 bytes")
	}
}

// Every frame of many publishers comes once and in order, while Ensure is asked
// all the time and the connection is lost now and then; after each Ensure
// nothing is missing until the next loss.
func TestBusUnderLoad(t *testing.T) {
	b := newBusTest(t, &sink{})
	var published atomic.Uint64
	stop := make(chan struct{})
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for n := uint64(1); ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			b.pub.publish(n)
			published.Store(n)
		}
	})
	for range 4 {
		tasks.Go(func() {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				if _, err := b.bus.Ensure(context.Background()); err != nil {
					t.Errorf("Ensure: %v", err)
					return
				}
			}
		})
	}
	for range 5 {
		n := published.Load() + 100
		eventually(t, "more frames", func() bool { return published.Load() >= n })
		killListeners(t, b.db)
	}
	close(stop)
	tasks.Wait()
	last := published.Load()
	eventually(t, "a frame after the losses", func() bool {
		last++
		b.pub.publish(last)
		got := b.sink.seen()
		return got[len(got)-1] > last-5
	})
	got := b.sink.seen()
	for i := 1; i < len(got); i++ {
		if got[i] <= got[i-1] {
			t.Fatalf("%d announced after %d", got[i], got[i-1])
		}
	}
	if s := b.bus.Stats(); s.Forged+s.Replayed+s.Unreadable+s.UnknownKey != 0 {
		t.Fatalf("stats %+v", s)
	}
}
