package listener

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

func TestMain(m *testing.M) {
	code := pgtest.Run(m)
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// patience bounds every wait for something that must happen, on machines that stand
// still for seconds.
const patience = time.Minute

// form is the first in tests as they are run by default, and the second in their long
// forms, which run alone on a quiet machine and may check times.
func form[T any](short, long T) T {
	if os.Getenv("FANFARE_LONG") != "" {
		return long
	}
	return short
}

// eventually waits until condition holds.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	within(t, patience, what, condition)
}

func within(t testing.TB, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %s for %s", limit, what)
		}
	}
}

// run runs f until the test ends, and fails the test if it fails.
func run(t testing.TB, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("Run: %v", err)
				}
			case <-time.After(patience):
				t.Error("Run did not return")
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// logBuffer collects log lines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *logBuffer) lines() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Split(strings.TrimSpace(b.b.String()), "\n")
}

func (b *logBuffer) count(part string) int {
	n := 0
	for _, line := range b.lines() {
		if strings.Contains(line, part) {
			n++
		}
	}
	return n
}

// start runs a listener.
func start(t testing.TB, config Config) (*Listener, *logBuffer) {
	t.Helper()
	logs := &logBuffer{}
	config.Logger = slog.New(slog.NewTextHandler(logs, nil))
	if config.Instance == "" {
		config.Instance = "test"
	}
	l, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	run(t, l.Run)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the listener's log:\n%s", strings.Join(logs.lines(), "\n"))
		}
	})
	return l, logs
}

func ensure(t testing.TB, l *Listener, name string) backlog.Listening {
	t.Helper()
	listening, err := l.Ensure(t.Context(), name)
	if err != nil {
		t.Fatalf("Ensure(%q): %v", name, err)
	}
	return listening
}

// hears waits until a consumer of a notify channel has heard a payload. What is
// notified to a connection that is then lost is notified again.
func (r *recorder) hears(t testing.TB, l *Listener, conn *pgx.Conn, name, payload string) {
	t.Helper()
	for deadline := time.Now().Add(patience); !r.has(payload); {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %q", patience, payload)
		}
		listening := ensure(t, l, name)
		l.Release(name)
		notify(t, conn, name, payload)
		eventually(t, fmt.Sprintf("%q, or another connection", payload), func() bool {
			return r.has(payload) || l.Current().Number > listening.Number
		})
	}
}

// reasonOf is why Ensure fails, once that is told to contain a part: within the time of
// one Ensure a busy machine may not get that far.
func reasonOf(t testing.TB, l *Listener, name, part string) (err error) {
	t.Helper()
	eventually(t, "Ensure to fail because of "+part, func() bool {
		if _, err = l.Ensure(t.Context(), name); err == nil {
			t.Fatal("Ensure did not fail")
		}
		return strings.Contains(strings.ToLower(err.Error()), part)
	})
	return err
}

func notify(t testing.TB, conn *pgx.Conn, name, payload string) {
	t.Helper()
	pgtest.Exec(t, conn, "select pg_notify($1, $2)", name, payload)
}

// killListeners ends the listeners' sessions in the database of conn.
func killListeners(t testing.TB, conn *pgx.Conn) int {
	t.Helper()
	return pgtest.Query[int](t, conn, `select count(pg_terminate_backend(pid)) from pg_stat_activity
		where application_name like 'fanfare-listen/%' and datname = current_database()`)
}

// listeners counts the listeners' sessions in the database of conn.
func listeners(t testing.TB, conn *pgx.Conn) int {
	t.Helper()
	return pgtest.Query[int](t, conn, `select count(*) from pg_stat_activity
		where application_name like 'fanfare-listen/%' and datname = current_database()`)
}

// recorder is a Consumer that remembers.
type recorder struct {
	mu       sync.Mutex
	payloads []string
	at       []time.Time
	ups      []Connected
	losses   int
	block    func() // called by Notify, for consumers that break their promise
}

func (r *recorder) Listening(c Connected) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ups = append(r.ups, c)
}

func (r *recorder) Lost(error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.losses++
}

func (r *recorder) Notify(n Notification) {
	if r.block != nil {
		r.block()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.payloads = append(r.payloads, n.Payload)
	r.at = append(r.at, time.Now())
}

func (r *recorder) has(payload string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.payloads, payload)
}

func (r *recorder) lifes() (ups, losses int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ups), r.losses
}

func attach(t testing.TB, l *Listener, name string) *recorder {
	t.Helper()
	r := &recorder{}
	detach, err := l.Attach(name, r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(detach)
	return r
}

func median(d []time.Duration) time.Duration {
	d = slices.Clone(d)
	slices.Sort(d)
	return d[len(d)/2]
}

// crashBackend kills a server process hard, which makes the postmaster end all
// others and recover.
func crashBackend(t testing.TB, url string) {
	t.Helper()
	pid := pgtest.Query[int](t, pgtest.Dial(t, url), "select pg_backend_pid()")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// elapse lets the clock of a synctest bubble, which no test waits for, run on.
func elapse(d time.Duration) { <-time.After(d) }
