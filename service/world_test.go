package service_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// patience bounds every wait for something that must happen.
const patience = 60 * time.Second

// world is a database with two replicas, which are one and the same where the
// store has one only. Where a test does not say otherwise it publishes through a
// and subscribes through b.
type world struct {
	t       *testing.T
	db      servicetest.Database
	options []func(*servicetest.Config)
	a, b    *servicetest.Replica
}

// wholeBacklog makes everything replayable.
func wholeBacklog(c *servicetest.Config) { c.Backlog = new(int64(1 << 40)) }

// unhurried ends no subscription for being slow: clients run on the same machine, and what
// a test does while one takes nothing may take long there.
func unhurried(c *servicetest.Config) { c.Service.WriteTimeout = 5 * patience }

func newWorld(t *testing.T, db servicetest.Database, options ...func(*servicetest.Config)) *world {
	t.Helper()
	w := &world{t: t, db: db, options: append([]func(*servicetest.Config){wholeBacklog}, options...)}
	w.start()
	return w
}

func (w *world) start() {
	w.t.Helper()
	w.a = servicetest.Start(w.t, w.db.URL, w.options...)
	w.b = w.a
	if w.db.Has(servicetest.Replicas) {
		w.b = servicetest.Start(w.t, w.db.URL, w.options...)
	}
}

// stop stops the replicas.
func (w *world) stop() {
	w.t.Helper()
	for _, r := range []*servicetest.Replica{w.a, w.b} {
		if err := r.Stop(); err != nil {
			w.t.Errorf("replica %s: %v", r.Instance, err)
		}
	}
}

// restart stops the replicas and starts others on the same database.
func (w *world) restart() {
	w.t.Helper()
	w.stop()
	w.start()
}

// successor returns where clients go on when a has been drained: b, or, where b
// is a, a replica that takes its place.
func (w *world) successor() *servicetest.Replica {
	w.t.Helper()
	if w.b == w.a {
		w.restart()
	}
	return w.b
}

// sql opens a connection as an application has it. Needs SQL.
func (w *world) sql() *pgx.Conn {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), w.db.URL)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (w *world) exec(conn *pgx.Conn, sql string, args ...any) {
	w.t.Helper()
	if _, err := conn.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

// killListeners terminates the listeners' backends and returns how many there
// were.
func (w *world) killListeners(conn *pgx.Conn) (n int) {
	w.t.Helper()
	err := conn.QueryRow(w.t.Context(), `select count(pg_terminate_backend(pid)) from pg_stat_activity
		where datname = current_database() and application_name like 'fanfare-listen/%'`).Scan(&n)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func stream(channel, scope string) backlog.StreamName {
	return backlog.StreamName{Channel: channel, Scope: scope}
}

// newFrame is a frame of a stream.
func newFrame(s backlog.StreamName, payload string) *fanfarev1.NewFrame {
	return &fanfarev1.NewFrame{Channel: s.Channel, Scope: s.Scope, Payload: []byte(payload)}
}

func publish(t testing.TB, r *servicetest.Replica, f *fanfarev1.NewFrame) *fanfarev1.Position {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	answer, err := r.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: f})
	if err != nil {
		t.Fatalf("publish to %s/%s: %v", f.GetChannel(), f.GetScope(), err)
	}
	return answer.GetPosition()
}

// publishMany publishes n frames in batches; payload says what the i-th, from 0,
// carries.
func publishMany(t testing.TB, r *servicetest.Replica, s backlog.StreamName, n int, payload func(i int) string) []*fanfarev1.Position {
	t.Helper()
	var positions []*fanfarev1.Position
	for len(positions) < n {
		var batch []*fanfarev1.NewFrame
		for size := 0; len(positions)+len(batch) < n && len(batch) < backlog.MaxBatchFrames && size < 3<<20; {
			f := newFrame(s, payload(len(positions)+len(batch)))
			size += len(f.GetPayload())
			batch = append(batch, f)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		answer, err := r.Client.PublishBatch(ctx, &fanfarev1.PublishBatchRequest{Frames: batch})
		cancel()
		if err != nil {
			t.Fatalf("publish a batch: %v", err)
		}
		for _, result := range answer.GetResults() {
			positions = append(positions, result.GetPosition())
		}
	}
	return positions
}

func numbered(i int) string { return fmt.Sprintf("frame %d", i) }

// Starts.
func fromOldest(s backlog.StreamName) *fanfarev1.SubscribeRequest {
	return &fanfarev1.SubscribeRequest{Channel: s.Channel, Scope: s.Scope}
}

func live(s backlog.StreamName) *fanfarev1.SubscribeRequest {
	return &fanfarev1.SubscribeRequest{Channel: s.Channel, Scope: s.Scope, Start: &fanfarev1.SubscribeRequest_Live{Live: true}}
}

func after(s backlog.StreamName, p *fanfarev1.Position) *fanfarev1.SubscribeRequest {
	return &fanfarev1.SubscribeRequest{Channel: s.Channel, Scope: s.Scope, Start: &fanfarev1.SubscribeRequest_After{After: p}}
}

// reader reads one subscription.
type reader struct {
	t          testing.TB
	stream     grpc.ServerStreamingClient[fanfarev1.SubscribeResponse]
	cancel     context.CancelFunc
	subscribed *fanfarev1.Subscribed
	// frames have arrived and were not taken yet.
	frames []*fanfarev1.Frame
	// notices are all notices but Subscribed and Progress, in order.
	notices []*fanfarev1.SubscribeResponse
}

// subscribe opens a subscription and waits for Subscribed.
func subscribe(t testing.TB, r *servicetest.Replica, request *fanfarev1.SubscribeRequest) *reader {
	t.Helper()
	return subscribeWith(t, r.Client, request)
}

func subscribeWith(t testing.TB, client fanfarev1.FanfareServiceClient, request *fanfarev1.SubscribeRequest) *reader {
	t.Helper()
	r := open(t, client, request)
	response, err := r.stream.Recv()
	if err != nil {
		t.Fatalf("subscribe: %v", err)
	}
	if r.subscribed = response.GetSubscribed(); r.subscribed == nil {
		t.Fatalf("the first response is %v", response)
	}
	return r
}

// open opens a subscription and does not wait.
func open(t testing.TB, client fanfarev1.FanfareServiceClient, request *fanfarev1.SubscribeRequest) *reader {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
	t.Cleanup(cancel)
	s, err := client.Subscribe(ctx, request)
	if err != nil {
		t.Fatalf("subscribe: %v", err)
	}
	return &reader{t: t, stream: s, cancel: cancel}
}

// recv reads one response; Subscribed may be among them if it was opened only.
func (r *reader) recv() error {
	response, err := r.stream.Recv()
	if err != nil {
		return err
	}
	r.frames = append(r.frames, response.GetFrames()...)
	switch n := response.GetNotice().(type) {
	case nil, *fanfarev1.SubscribeResponse_Progress:
	case *fanfarev1.SubscribeResponse_Subscribed:
		r.subscribed = n.Subscribed
	default:
		r.notices = append(r.notices, response)
	}
	return nil
}

// take returns the next n frames.
func (r *reader) take(n int) []*fanfarev1.Frame {
	r.t.Helper()
	for len(r.frames) < n {
		if err := r.recv(); err != nil {
			r.t.Fatalf("after %d of %d frames: %v", len(r.frames), n, err)
		}
	}
	taken := r.frames[:n]
	r.frames = r.frames[n:]
	return taken
}

// payloads returns the payloads of the next n frames.
func (r *reader) payloads(n int) []string {
	r.t.Helper()
	var out []string
	for _, f := range r.take(n) {
		out = append(out, string(f.GetPayload()))
	}
	return out
}

// until reads until a notice is the last that came.
func (r *reader) until(what string, is func(*fanfarev1.SubscribeResponse) bool) *fanfarev1.SubscribeResponse {
	r.t.Helper()
	for len(r.notices) == 0 || !is(r.notices[len(r.notices)-1]) {
		if err := r.recv(); err != nil {
			r.t.Fatalf("waiting for %s after %d frames: %v", what, len(r.frames), err)
		}
	}
	return r.notices[len(r.notices)-1]
}

func (r *reader) untilCaughtUp() {
	r.t.Helper()
	r.until("CaughtUp", func(m *fanfarev1.SubscribeResponse) bool { return m.GetCaughtUp() != nil })
}

func (r *reader) untilGap() *fanfarev1.Gap {
	r.t.Helper()
	return r.until("Gap", func(m *fanfarev1.SubscribeResponse) bool { return m.GetGap() != nil }).GetGap()
}

// end reads to the end of the call and returns its code.
func (r *reader) end() codes.Code {
	for {
		if err := r.recv(); errors.Is(err, io.EOF) {
			return codes.OK
		} else if err != nil {
			return status.Code(err)
		}
	}
}

// silent checks that nothing but marker follows: it publishes marker, which must
// be the next frame.
func (r *reader) silent(marker string, publish func()) {
	r.t.Helper()
	publish()
	if got := r.payloads(1)[0]; got != marker {
		r.t.Errorf("the next frame is %q, want the marker %q", shorten(got), marker)
	}
}

func shorten(s string) string {
	if len(s) > 60 {
		return s[:60] + "…"
	}
	return s
}

// contiguous checks that frames have the sequences from first on.
func contiguous(t testing.TB, frames []*fanfarev1.Frame, first uint64) {
	t.Helper()
	for i, f := range frames {
		if got := f.GetPosition().GetSequence(); got != first+uint64(i) {
			t.Fatalf("frame %d has sequence %d, want %d", i, got, first+uint64(i))
		}
	}
}
