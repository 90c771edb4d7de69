package listener

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

const busChannel = "fanfare_test"

// sink is a Sink that remembers.
type sink struct {
	mu        sync.Mutex
	sequences []uint64
	hints     []time.Time
	missed    []time.Time
	events    []string
	gate      chan struct{} // Announce waits for it if not nil
}

func (s *sink) Listening(l backlog.Listening) { s.event(fmt.Sprintf("listening %d", l.Number)) }
func (s *sink) Hears(backlog.StreamName) bool { return true }
func (s *sink) Lost(error)                    { s.event("lost") }

func (s *sink) event(e string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

func (s *sink) Announce(all []backlog.Announcement) {
	if s.gate != nil {
		<-s.gate
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range all {
		s.sequences = append(s.sequences, a.Frame.Position.Sequence)
	}
}

func (s *sink) Hint() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hints = append(s.hints, time.Now())
}

func (s *sink) Missed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missed = append(s.missed, time.Now())
}

func (s *sink) seen() []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]uint64(nil), s.sequences...)
}

func (s *sink) hintTimes() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Time(nil), s.hints...)
}

func (s *sink) missedTimes() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Time(nil), s.missed...)
}

func (s *sink) story() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.events, ", ")
}

// ring is a set of keys that changes.
type ring struct {
	mu    sync.Mutex
	keys  []Key
	err   error
	loads int
	gate  chan struct{} // load waits for it if not nil
}

func (r *ring) load(ctx context.Context) ([]Key, error) {
	r.mu.Lock()
	keys, err, gate := r.keys, r.err, r.gate
	r.loads++
	r.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		r.mu.Lock()
		keys = r.keys
		r.mu.Unlock()
	}
	return keys, err
}

func (r *ring) set(keys ...Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys = keys
}

// publisher notifies signed envelopes over one session, as the database's
// functions do.
type publisher struct {
	t    testing.TB
	conn *pgx.Conn
	key  Key
}

// publish notifies an envelope with frames, in a transaction of its own, and
// returns it.
func (p *publisher) publish(sequences ...uint64) string {
	p.t.Helper()
	var e Envelope
	for _, n := range sequences {
		e.Announcements = append(e.Announcements, frame(n, []byte("payload"), nil))
	}
	return p.send(e)
}

func (p *publisher) send(e Envelope) string {
	p.t.Helper()
	tx, err := p.conn.Begin(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	e.Origin, e.Index, e.PID = 5, 1, p.conn.PgConn().PID()
	if err := tx.QueryRow(p.t.Context(), "select pg_current_xact_id()::text::bigint").Scan(&e.Transaction); err != nil {
		p.t.Fatal(err)
	}
	payload := EncodeEnvelope(p.key, e)
	if _, err := tx.Exec(p.t.Context(), "select pg_notify($1, $2)", busChannel, payload); err != nil {
		p.t.Fatal(err)
	}
	if err := tx.Commit(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	return payload
}

type busTest struct {
	url  string
	l    *Listener
	bus  *Bus
	sink *sink
	ring *ring
	pub  *publisher
	db   *pgx.Conn
	logs *logBuffer
}

func newBusTest(t *testing.T, s *sink) *busTest {
	t.Helper()
	b := &busTest{url: pgtest.NewDatabase(t), sink: s, ring: &ring{keys: []Key{testKey}}, logs: &logBuffer{}}
	b.l, _ = start(t, Config{URL: b.url, OriginSQL: "select 5"})
	b.bus = NewBus(b.l, busChannel, b.ring.load, slog.New(slog.NewTextHandler(b.logs, nil)))
	run(t, func(ctx context.Context) error { return b.bus.Run(ctx, s) })
	b.pub = &publisher{t: t, conn: pgtest.Dial(t, b.url), key: testKey}
	b.db = pgtest.Dial(t, b.url)
	if _, err := b.bus.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

// expect waits until the sink has exactly these sequences.
func (b *busTest) expect(t *testing.T, want ...uint64) {
	t.Helper()
	eventually(t, fmt.Sprintf("sequences %v", want), func() bool { return len(b.sink.seen()) >= len(want) })
	if got := b.sink.seen(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("announced %v, want %v", got, want)
	}
}
