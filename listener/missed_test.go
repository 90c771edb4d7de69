package listener

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// diary is a Sink that remembers what happened in order.
type diary struct {
	mu      sync.Mutex
	entries []string
	missed  []time.Time
	stuck   chan struct{} // Announce waits for it if not nil
	unheard string        // the scope of streams that nobody hears, if not empty
}

func (d *diary) write(entry string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.entries = append(d.entries, entry)
}

func (d *diary) Listening(backlog.Listening) { d.write("listening") }
func (d *diary) Lost(error)                  { d.write("lost") }
func (d *diary) Hint()                       { d.write("hint") }

func (d *diary) Hears(s backlog.StreamName) bool { return d.unheard == "" || s.Scope != d.unheard }

func (d *diary) Missed() {
	d.write("missed")
	d.mu.Lock()
	defer d.mu.Unlock()
	d.missed = append(d.missed, time.Now())
}

func (d *diary) Announce(all []backlog.Announcement) {
	for _, a := range all {
		if a.Frame.Ephemeral {
			d.write(fmt.Sprintf("e%d", a.Frame.Position.Sequence))
		} else {
			d.write(fmt.Sprintf("d%d", a.Frame.Position.Sequence))
		}
	}
	if d.stuck != nil {
		<-d.stuck
	}
}

// story returns what was written since the last call.
func (d *diary) story() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	story := strings.Join(d.entries, " ")
	d.entries = nil
	return story
}

// offline is a bus whose notifications are made by the test, in a bubble of
// synctest.
type offline struct {
	bus         *Bus
	diary       *diary
	ring        *ring
	transaction uint64
}

func newOffline(t *testing.T) *offline {
	t.Helper()
	l, err := New(Config{URL: "postgres://127.0.0.1:1/none"})
	if err != nil {
		t.Fatal(err)
	}
	o := &offline{diary: &diary{}, ring: &ring{keys: []Key{testKey}}, transaction: 100}
	o.bus = NewBus(l, busChannel, o.ring.load, nil)
	run(t, func(ctx context.Context) error { return o.bus.Run(ctx, o.diary) })
	o.connect()
	synctest.Wait()
	if got := o.diary.story(); got != "listening" {
		t.Fatalf("the sink was told %s", got)
	}
	return o
}

func (o *offline) connect() {
	o.bus.inbox.Listening(Connected{Listening: backlog.Listening{Number: 1, Origin: 5}, OldestTransaction: 100})
}

func (o *offline) notify(payload string) { o.bus.inbox.Notify(Notification{PID: 1, Payload: payload}) }

// payloads are the envelopes of the next transaction.
func (o *offline) payloads(all ...backlog.Announcement) []string {
	o.transaction++
	return EncodeTransaction(testKey, Envelope{Origin: 5, PID: 1, Transaction: o.transaction, Index: 1, Announcements: all})
}

func (o *offline) publish(all ...backlog.Announcement) {
	for _, p := range o.payloads(all...) {
		o.notify(p)
	}
}

// raw is an authentic envelope with any entry.
func (o *offline) raw(entry string) string {
	o.transaction++
	return seal(testKey, &Envelope{Origin: 5, PID: 1, Transaction: o.transaction, Index: 1}, []string{entry})
}

func large(sequence uint64) backlog.Announcement { return ephemeral(sequence, make([]byte, 30_000)) }

// Whatever may have been an ephemeral frame is told, before what was announced
// after it, and what cannot have been one is a hint.
func TestBusTellsOfWhatMayBeMissed(t *testing.T) {
	t.Parallel()
	const missed, hint = "d1 missed e1", "d1 e1"
	for name, test := range map[string]struct {
		lose func(o *offline)
		want string
	}{
		"nothing":              {func(*offline) {}, "d1 e1"},
		"unknown version":      {func(o *offline) { o.notify("F2\tx") }, missed},
		"unknown kind":         {func(o *offline) { o.notify(o.raw("Z\tx")) }, missed},
		"unreadable frame":     {func(o *offline) { o.notify(o.raw("E\tx")) }, missed},
		"unreadable part":      {func(o *offline) { o.notify(o.raw("S\t1\t1\tx")) }, missed},
		"parts of no entry":    {func(o *offline) { o.notify(o.raw("S\t1\t1\t1\tx")) }, missed},
		"parts of unknown":     {func(o *offline) { o.notify(o.raw("S\t1\t1\t1\tZ\tx")) }, missed},
		"first parts only":     {func(o *offline) { o.notify(o.payloads(large(1))[0]) }, missed},
		"last part only":       {func(o *offline) { o.notify(o.payloads(large(1))[2]) }, missed},
		"part left out":        {func(o *offline) { p := o.payloads(large(1)); o.notify(p[0]); o.notify(p[2]); o.notify(p[3]) }, missed},
		"key not to be judged": {func(o *offline) { o.unknownKey() }, missed},
		"transaction too old to be judged": {func(o *offline) {
			o.bus.inbox.Notify(Notification{PID: 9, Payload: EncodeEnvelope(testKey, Envelope{Origin: 5, PID: 9, Transaction: 3, Index: 1})})
		}, missed},
		"older than the last": {func(o *offline) {
			o.notify(EncodeEnvelope(testKey, Envelope{Origin: 5, PID: 1, Transaction: 3, Index: 1}))
		}, hint},
		"policy changed": {func(o *offline) { o.notify(o.raw("H")) }, hint},
		"garbage":        {func(o *offline) { o.notify("x") }, hint},
		"replay": {func(o *offline) {
			// One that is no hint by itself: the bus may have taken it before the other comes.
			o.transaction++
			p := EncodeEnvelope(testKey, Envelope{Origin: 5, PID: 1, Transaction: o.transaction, Index: 1})
			o.notify(p)
			o.notify(p)
		}, hint},
		"of another process": {func(o *offline) {
			o.bus.inbox.Notify(Notification{PID: 2, Payload: o.raw("H")})
		}, hint},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOffline(t)
				o.publish(frame(1, nil, nil))
				test.lose(o)
				o.publish(ephemeral(1, nil))
				synctest.Wait()
				// A hint comes when what is there has been announced.
				got := strings.ReplaceAll(o.diary.story(), " hint", "")
				if got != test.want {
					t.Errorf("the sink was told: %s; want: %s", got, test.want)
				}
				hinted := test.want == hint && name != "nothing"
				if s := o.bus.Stats(); test.want == hint && (s.Hints == 1) != hinted || s.Missed > 1 {
					t.Errorf("stats %+v", s)
				}
				elapse(time.Minute)
				synctest.Wait()
				if got := o.diary.story(); got != "" {
					t.Errorf("and later: %s", got)
				}
			})
		})
	}
}

// unknownKey notifies what is signed with a key that was made after the keys were
// loaded, which was a moment ago.
func (o *offline) unknownKey() {
	next := Key{ID: 77, Secret: []byte("next")}
	o.ring.set(testKey, next)
	o.notify(EncodeEnvelope(next, Envelope{Origin: 5, PID: 1, Transaction: o.transaction + 1, Index: 1}))
}

// A key that does not exist when all have been loaded is a forger's, and so is a
// digest that no key makes.
func TestBusMissesNothingByForgery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffline(t)
		for _, key := range []Key{{ID: 77, Secret: testKey.Secret}, {ID: testKey.ID, Secret: []byte("guess")}} {
			elapse(2 * reloadInterval)
			o.notify(EncodeEnvelope(key, Envelope{Origin: 5, PID: 1, Transaction: 200, Index: 1}))
			synctest.Wait()
			if got := o.diary.story(); got != "hint" {
				t.Errorf("the sink was told: %s", got)
			}
		}
	})
}

// What others notify while a frame arrives in parts neither completes it nor
// interrupts it.
func TestBusJoinsAmongForgeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffline(t)
		genuine := o.payloads(large(1))
		for _, p := range genuine {
			forged := seal(Key{ID: testKey.ID}, &Envelope{Origin: 5, PID: 1, Transaction: 1 << 60, Index: 1}, []string{"S\t1\t1\t9\tx"})
			for _, f := range []string{forged, p[:len(p)-1], p + "x", "S\t1\t1\t2\tx", ""} {
				o.notify(f)
			}
			o.bus.inbox.Notify(Notification{PID: 2, Payload: p})
			o.notify(p)
			o.notify(p) // a replay
		}
		synctest.Wait()
		if got := o.diary.story(); !strings.HasPrefix(got, "missed e1") && !strings.HasPrefix(got, "e1") {
			t.Errorf("the sink was told: %s", got)
		}
		if s := o.bus.Stats(); s.BrokenEntries != 0 || s.Announcements != 1 || s.Replayed != uint64(len(genuine)) {
			t.Errorf("stats %+v", s)
		}
	})
}

// Missed comes at most once a second, at once after a quiet time, and once more
// for what came meanwhile.
func TestBusPacesMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffline(t)
		begun := time.Now()
		for range 45 {
			o.notify("F2\tx")
			elapse(hintInterval / 10)
		}
		elapse(time.Minute)
		synctest.Wait()
		var after []time.Duration
		for _, at := range o.diary.missed {
			after = append(after, at.Sub(begun))
		}
		want := []time.Duration{0, hintInterval, 2 * hintInterval, 3 * hintInterval, 4 * hintInterval, 5 * hintInterval}
		if !reflect.DeepEqual(after, want) {
			t.Errorf("missed after %v, want %v", after, want)
		}
		if s := o.bus.Stats(); s.Missed != 6 || s.Hints != 0 || s.UnknownVersion != 45 {
			t.Errorf("stats %+v", s)
		}
	})
}

// Hints do not hold up what is more urgent.
func TestBusMissedDoesNotWaitForHints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffline(t)
		o.notify("garbage")
		synctest.Wait()
		o.notify("F2\tx")
		synctest.Wait()
		if got := o.diary.story(); got != "hint missed" {
			t.Errorf("the sink was told: %s", got)
		}
	})
}

// The rest of a split entry that was never notified is awaited for a while, and
// nothing of it is held then.
func TestBusGivesUpParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffline(t)
		p := o.payloads(large(1))
		o.notify(p[0])
		elapse(partPatience - time.Second)
		synctest.Wait()
		o.notify(p[1])
		elapse(partPatience - time.Second)
		synctest.Wait()
		if got := o.diary.story(); got != "" {
			t.Fatalf("the sink was told: %s", got)
		}
		elapse(2 * time.Second)
		synctest.Wait()
		if got := o.diary.story(); got != "missed" || o.bus.assembler.text.Cap() != 0 {
			t.Fatalf("the sink was told: %s; %d bytes are held", got, o.bus.assembler.text.Cap())
		}
		// They come nevertheless: that is the entry that was counted.
		for _, rest := range p[2:] {
			o.notify(rest)
		}
		o.publish(large(2))
		elapse(time.Minute)
		synctest.Wait()
		if got := o.diary.story(); got != "e2" || o.bus.Stats().BrokenEntries != 1 {
			t.Fatalf("the sink was told: %s; stats %+v", got, o.bus.Stats())
		}
	})
}

// Parts that wait in the inbox while the sink is stuck are not late.
func TestBusKeepsPartsOverAStuckSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffline(t)
		o.diary.stuck = make(chan struct{})
		p := o.payloads(frame(1, nil, nil), large(1))
		o.notify(p[0])
		o.notify(p[1])
		synctest.Wait()
		elapse(10 * partPatience)
		synctest.Wait()
		for _, rest := range p[2:] {
			o.notify(rest)
		}
		close(o.diary.stuck)
		synctest.Wait()
		if got := o.diary.story(); got != "d1 e1" {
			t.Fatalf("the sink was told: %s", got)
		}
	})
}

// The next listening says that frames may have been missed; nothing else has to.
func TestBusLosesConnectionWithinParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffline(t)
		p := o.payloads(large(1))
		o.notify(p[0])
		o.bus.inbox.Lost(errors.New("gone"))
		o.connect()
		for _, rest := range p[1:] {
			o.notify(rest)
		}
		o.publish(large(2))
		elapse(time.Minute)
		synctest.Wait()
		if got := o.diary.story(); got != "lost listening e2" || o.bus.Stats().BrokenEntries != 1 {
			t.Fatalf("the sink was told: %s; stats %+v", got, o.bus.Stats())
		}
	})
}

// An overflow between parts takes some with it.
func TestBusOverflowsWithinParts(t *testing.T) {
	for _, test := range []struct {
		before, dropped int
		want            string
		broken          uint64
	}{{0, 0, "missed e1 e2", 0}, {0, 1, "missed e2", 1}, {1, 0, "missed e2", 1}, {1, 1, "missed e2", 1}, {1, 3, "missed e2", 1}} {
		synctest.Test(t, func(t *testing.T) {
			o := newOffline(t)
			p := o.payloads(large(1))
			for _, first := range p[:test.before] {
				o.notify(first)
			}
			o.bus.inbox.add(item{kind: itemOverflow})
			for _, rest := range p[test.before+test.dropped:] {
				o.notify(rest)
			}
			o.publish(large(2))
			synctest.Wait()
			if got := o.diary.story(); got != test.want || o.bus.Stats().BrokenEntries != test.broken {
				t.Errorf("%d parts before, %d dropped: the sink was told: %s; stats %+v", test.before, test.dropped, got, o.bus.Stats())
			}
		})
	}
}

// PostgreSQL delivers the parts of concurrent publishers one entry after the
// other, whatever is notified beside them, and in the order of commit.
func TestBusAnnouncesSplitFrames(t *testing.T) {
	t.Parallel()
	s := &diary{}
	b := newBusTest(t, &sink{})
	second := NewBus(b.l, busChannel, b.ring.load, nil)
	run(t, func(ctx context.Context) error { return second.Run(ctx, s) })
	if _, err := second.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.story()
	const publishers, rounds = 3, 20
	var tasks sync.WaitGroup
	for range publishers {
		p := &publisher{t: t, conn: pgtest.Dial(t, b.url), key: testKey}
		tasks.Go(func() {
			for i := range uint64(rounds) {
				if err := p.transact(t.Context(), frame(i, nil, nil), large(i), frame(i, []byte("next"), nil), ephemeral(i, nil)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	forger := pgtest.Dial(t, b.url)
	tasks.Go(func() {
		for range 10 * rounds {
			if _, err := forger.Exec(t.Context(), "select pg_notify($1, $2)", busChannel, "S\t1\t1\t2\tx"); err != nil {
				t.Error(err)
				return
			}
		}
	})
	tasks.Wait()
	const want = 4 * publishers * rounds
	eventually(t, "all frames", func() bool { return second.Stats().Announcements == want && len(b.sink.seen()) == want })
	var frames []string
	for _, entry := range strings.Fields(s.story()) {
		if entry != "hint" {
			frames = append(frames, entry)
		}
	}
	for i := 0; i+3 < len(frames); i += 4 {
		n := frames[i][1:]
		if got := strings.Join(frames[i:i+4], " "); got != "d"+n+" e"+n+" d"+n+" e"+n {
			t.Fatalf("a transaction was announced as %s", got)
		}
	}
	if st := second.Stats(); len(frames) != want || st.BrokenEntries+st.Missed+st.Forged+st.Replayed+st.SkippedEntries != 0 {
		t.Fatalf("%d announced, stats %+v", len(frames), st)
	}
}

// transact notifies announcements in a transaction of their own.
func (p *publisher) transact(ctx context.Context, all ...backlog.Announcement) error {
	tx, err := p.conn.Begin(ctx)
	if err != nil {
		return err
	}
	e := Envelope{Origin: 5, Index: 1, PID: p.conn.PgConn().PID(), Announcements: all}
	if err := tx.QueryRow(ctx, "select pg_current_xact_id()::text::bigint").Scan(&e.Transaction); err != nil {
		return err
	}
	for _, payload := range EncodeTransaction(p.key, e) {
		if _, err := tx.Exec(ctx, "select pg_notify($1, $2)", busChannel, payload); err != nil {
			return err
		}
	}
	return tx.Commit(ctx)
}
