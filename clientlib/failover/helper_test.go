package failover_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/clientlib/failover"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// patience bounds every wait of these tests.
const patience = 30 * time.Second

// inLongForm reports whether tests take the time that the acceptance needs.
func inLongForm() bool { return os.Getenv("FANFARE_LONG") != "" }

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(testRun(func() int { return pgtest.Run(m) }), goleak.Cleanup(func(code int) {
		servicetest.RemoveProgram()
		os.Exit(code)
	}))
}

// testRun is what goleak wants of a testing.M.
type testRun func() int

func (r testRun) Run() int { return r() }

// patient is a context that ends with the test's patience.
func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// migrated returns the URL of a new database with the schema.
func migrated(t testing.TB) string {
	t.Helper()
	return migratedOn(t, pgtest.NewDatabase(t))
}

// migratedOn gives a database the schema.
func migratedOn(t testing.TB, url string) string {
	t.Helper()
	if err := pgbacklog.Migrate(patient(t), url, pgbacklog.DefaultSchema, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	return url
}

// testHub is a hub in this process.
type testHub struct {
	*servicetest.Replica
	socket net.Listener
}

// socketIn is where a test's hub serves.
func socketIn(t testing.TB) string {
	t.Helper()
	// Not t.TempDir: a socket's path may have about a hundred bytes.
	dir, err := os.MkdirTemp("", "fanfare-hub-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "hub.sock")
}

// startHub starts a hub on a socket.
func startHub(t testing.TB, database, path string, options ...func(*servicetest.Config)) *testHub {
	t.Helper()
	return serveOn(t, database, listenAt(t, path), options...)
}

// serveOn starts a hub on what listens already.
func serveOn(t testing.TB, database string, socket net.Listener, options ...func(*servicetest.Config)) *testHub {
	t.Helper()
	h := &testHub{Replica: servicetest.Start(t, database, options...), socket: socket}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = h.GRPC.Serve(h.socket)
	}()
	t.Cleanup(func() {
		h.GRPC.Stop()
		<-served
	})
	return h
}

// die ends the hub as a crash does: its socket stays, and nobody serves there.
func (h *testHub) die(t testing.TB) {
	t.Helper()
	h.socket.(*socketListener).dies = true
	if err := h.Stop(); err != nil {
		t.Error(err)
	}
}

// listenAt listens on a socket, instead of whoever did before. As that of a server it
// gets its name when somebody listens: before, it would look like a dead one's.
func listenAt(t testing.TB, path string) net.Listener {
	t.Helper()
	lis, err := net.ListenUnix("unix", &net.UnixAddr{Name: path + "-new", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	lis.SetUnlinkOnClose(false)
	if err := os.Rename(path+"-new", path); err != nil {
		t.Fatal(err)
	}
	return &socketListener{UnixListener: lis, path: path}
}

// socketListener removes its socket when it is closed, unless it dies.
type socketListener struct {
	*net.UnixListener
	path string
	dies bool
	once sync.Once
}

func (l *socketListener) Close() error {
	l.once.Do(func() {
		if !l.dies {
			os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}

// leaveStaleSocket leaves a socket as a killed process does.
func leaveStaleSocket(t testing.TB, path string) {
	t.Helper()
	lis := listenAt(t, path)
	lis.(*socketListener).dies = true
	if err := lis.Close(); err != nil {
		t.Fatal(err)
	}
}

// worker is a Conn and what it told.
type worker struct {
	*failover.Conn
	fanfarev1.FanfareServiceClient
	t testing.TB
	// scope is that of its stream.
	scope string

	mu      sync.Mutex // guards what follows
	reasons []failover.Reason
}

// newWorker makes a worker of the hub on a socket, which is closed when the test ends.
func newWorker(t testing.TB, path, database string, options ...func(*failover.Config)) *worker {
	t.Helper()
	w := &worker{t: t, scope: "s"}
	cfg := failover.Config{
		Hub:      "unix://" + path,
		Database: database,
		Logger:   slog.New(slog.DiscardHandler),
		OnFailover: func(reason failover.Reason, _ error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.reasons = append(w.reasons, reason)
		},
	}
	for _, o := range options {
		o(&cfg)
	}
	conn, err := failover.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	w.Conn, w.FanfareServiceClient = conn, fanfarev1.NewFanfareServiceClient(conn)
	return w
}

// told are the reasons that OnFailover was called with.
func (w *worker) told() []failover.Reason {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]failover.Reason(nil), w.reasons...)
}

// mustHaveLeft fails unless the worker has left the hub once, for a reason.
func (w *worker) mustHaveLeft(reason failover.Reason) {
	w.t.Helper()
	eventually(w.t, "leave the hub", func() bool { return len(w.told()) > 0 })
	if told := w.told(); len(told) != 1 || told[0] != reason {
		w.t.Errorf("left the hub for %q, want %q", told, reason)
	}
	if s := w.State(); s.Hub || s.Reason != reason || s.Err == nil || s.Since.IsZero() {
		w.t.Errorf("the state is %+v", s)
	}
}

// mustUseHub fails if the worker has left the hub.
func (w *worker) mustUseHub() {
	w.t.Helper()
	if !w.UsesHub() || len(w.told()) > 0 {
		w.t.Errorf("left the hub: %+v", w.State())
	}
}

// publish publishes a frame to the worker's stream.
func (w *worker) publish(payload string) *fanfarev1.Position {
	w.t.Helper()
	request := publishRequest(payload)
	request.Frame.Scope = w.scope
	answer, err := w.Publish(patient(w.t), request)
	if err != nil {
		w.t.Fatalf("publish %q: %v", payload, err)
	}
	return answer.GetPosition()
}

func publishRequest(payload string) *fanfarev1.PublishRequest {
	return &fanfarev1.PublishRequest{Frame: &fanfarev1.NewFrame{Channel: "c", Scope: "s", Payload: []byte(payload)}}
}

// reader is one Subscribe of a worker's stream.
type reader struct {
	fanfarev1.FanfareService_SubscribeClient
	t testing.TB
	// position is the last one seen.
	position *fanfarev1.Position
	waiting  []*fanfarev1.Frame
}

// subscribe subscribes after a position, nil for the oldest frame, and waits for
// Subscribed.
func (w *worker) subscribe(after *fanfarev1.Position) *reader {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	request := &fanfarev1.SubscribeRequest{Channel: "c", Scope: w.scope}
	if after != nil {
		request.Start = &fanfarev1.SubscribeRequest_After{After: after}
	}
	call, err := w.Subscribe(ctx, request)
	if err != nil {
		w.t.Fatalf("subscribe: %v", err)
	}
	r := &reader{FanfareService_SubscribeClient: call, t: w.t}
	first, err := r.Recv()
	if err != nil || first.GetSubscribed() == nil {
		w.t.Fatalf("subscribe: %v, %v", first, err)
	}
	r.position = first.GetSubscribed().GetResumeAfter()
	return r
}

// want reads frames until all of payloads have come, in order, and nothing between.
func (r *reader) want(payloads ...string) {
	r.t.Helper()
	for _, want := range payloads {
		if got := string(r.next().GetPayload()); got != want {
			r.t.Fatalf("got %.100q, want %q", got, want)
		}
	}
}

// wantAllUpTo reads every frame after the reader's position, up to one.
func (r *reader) wantAllUpTo(payload string) {
	r.t.Helper()
	for {
		before := r.position.GetSequence()
		frame := r.next()
		if got := frame.GetPosition().GetSequence(); got != before+1 {
			r.t.Fatalf("got sequence %d after %d", got, before)
		}
		if string(frame.GetPayload()) == payload {
			return
		}
	}
}

// next reads the next frame.
func (r *reader) next() *fanfarev1.Frame {
	r.t.Helper()
	for len(r.waiting) == 0 {
		response, err := r.Recv()
		if err != nil {
			r.t.Fatal(err)
		}
		if gap := response.GetGap(); gap != nil {
			r.t.Fatal(gap)
		}
		r.waiting = response.GetFrames()
	}
	frame := r.waiting[0]
	r.waiting, r.position = r.waiting[1:], frame.GetPosition()
	return frame
}

// end reads to the end of the call.
func (r *reader) end() error {
	r.t.Helper()
	for {
		response, err := r.Recv()
		if errors.Is(err, io.EOF) {
			r.t.Fatal("the call ended well")
		}
		if err != nil {
			return err
		}
		for _, frame := range response.GetFrames() {
			r.position = frame.GetPosition()
		}
	}
}

// census are the application_names of connections that listen in a database.
func census(t testing.TB, database string) []string {
	t.Helper()
	return query[string](t, database, "select application_name from pg_stat_activity where datname = current_database() and application_name like 'fanfare-listen/%' order by 1")
}

// connections counts all of Fanfare's in a database.
func connections(t testing.TB, database string) int {
	t.Helper()
	return len(query[int](t, database, "select pid from pg_stat_activity where datname = current_database() and application_name like 'fanfare-%'"))
}

func query[T any](t testing.TB, database, sql string) []T {
	t.Helper()
	conn := pgtest.Dial(t, database)
	defer conn.Close(context.Background()) //nolint:errcheck // a connection for one statement
	rows, err := conn.Query(patient(t), sql)
	if err != nil {
		t.Fatal(err)
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatal(err)
	}
	return values
}

// own reports whether a connection is a worker's own.
func own(name string) bool { return strings.HasPrefix(name, "fanfare-listen/own:") }
