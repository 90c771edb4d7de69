package service_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/listener"
	"github.com/fanfare-io/fanfare/service"
	"github.com/fanfare-io/fanfare/service/hub"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// startPolling starts a replica that does without LISTEN and reads its streams
// again at an interval.
func startPolling(t *testing.T, db servicetest.Database, instance string, interval time.Duration) *servicetest.Replica {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	logger := slog.New(slog.DiscardHandler)
	if err := pgbacklog.Migrate(ctx, db.URL, pgbacklog.DefaultSchema, logger); err != nil {
		t.Fatal(err)
	}
	store, err := pgbacklog.Open(ctx, pgbacklog.Config{URL: db.URL, Schema: pgbacklog.DefaultSchema, Instance: instance, Logger: logger, Backlog: new(int64(1 << 40))})
	if err != nil {
		t.Fatal(err)
	}
	poll := listener.NewPoll(listener.PollConfig{Interval: interval, Origin: func(ctx context.Context) (uint64, error) {
		loaded, err := store.Load(ctx, 0, nil)
		return loaded.Origin, err
	}})
	h := hub.New(poll, store, service.EncodeFrame, hub.Config{AnnouncesNothing: true, ReReadInterval: interval, StatusNotices: true, Logger: logger})
	server := service.New(store, h, poll, service.Config{
		RefuseEphemeral: true, BusKind: service.BusPoll, MaxFrameBytes: store.MaxFrameBytes(), Logger: logger,
	})
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &servicetest.Replica{
		Instance: instance, Addr: socket.Addr().String(), Store: store, Bus: poll, Hub: h,
		Server: server, GRPC: grpc.NewServer(server.ServerOptions()...),
	}
	server.Register(r.GRPC)
	if r.Conn, err = r.Connect(); err != nil {
		t.Fatal(err)
	}
	r.Client = fanfarev1.NewFanfareServiceClient(r.Conn)
	var runs errgroup.Group
	running, stop := context.WithCancel(context.Background())
	for _, run := range []func(context.Context) error{
		store.Run, h.Run, server.Run, func(ctx context.Context) error { return poll.Run(ctx, h) },
	} {
		runs.Go(func() error { return run(running) })
	}
	runs.Go(func() error {
		if err := r.GRPC.Serve(socket); !errors.Is(err, grpc.ErrServerStopped) {
			return err
		}
		return nil
	})
	t.Cleanup(func() {
		r.GRPC.Stop()
		stop()
		if err := runs.Wait(); err != nil {
			t.Errorf("replica %s: %v", instance, err)
		}
		store.Close()
		_ = r.Conn.Close()
	})
	return r
}

// Without LISTEN, durable frames of all replicas and of SQL arrive in order and
// once, across restarts of the server, closes are seen, and ephemeral frames are
// refused. No connection listens.
func TestPollMode(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Outages, servicetest.SQL}, func(t *testing.T, db servicetest.Database) {
		db = db.OnOwnServer(t)
		const interval = 100 * time.Millisecond
		w := &world{t: t, db: db, a: startPolling(t, db, "poll-a", interval), b: startPolling(t, db, "poll-b", interval)}
		p := w.polled(5)
		for _, mode := range []string{"fast", "immediate"} {
			p.awaitFrames(40)
			db.Server.Restart(mode)
		}
		p.awaitFrames(40)
		p.finish()

		conn := w.sql()
		var listening int
		err := conn.QueryRow(t.Context(), `select count(*) from pg_stat_activity
			where application_name like 'fanfare-listen%' or query ilike '%listen %' and pid <> pg_backend_pid()`).Scan(&listening)
		if err != nil || listening != 0 {
			t.Errorf("%d connections listen, %v", listening, err)
		}

		s := stream("poll", "closes")
		publish(t, w.a, newFrame(s, "last"))
		ends := []*reader{subscribe(t, w.a, fromOldest(s)), subscribe(t, w.b, fromOldest(s))}
		for _, r := range ends {
			r.take(1)
			r.untilCaughtUp()
		}
		if _, err := w.a.Client.CloseStream(t.Context(), &fanfarev1.CloseStreamRequest{Channel: s.Channel, Scope: s.Scope}); err != nil {
			t.Fatal(err)
		}
		for _, r := range ends {
			if code := r.end(); code != codes.OK || r.notices[len(r.notices)-1].GetClosed() == nil {
				t.Errorf("after the close: %s, %v", code, r.notices)
			}
		}

		_, err = w.a.Client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: ephemeral(s, "x")})
		if status.Code(err) != codes.FailedPrecondition || infoOf(err).GetReason() != "EPHEMERAL_UNAVAILABLE" {
			t.Errorf("an ephemeral frame is answered with %v", err)
		}
	})
}

// Without LISTEN ephemeral frames that an application announces by SQL reach
// nobody. Whoever subscribes to such a stream is told, once, and so is who had
// subscribed before it became one.
func TestPollModeMissesEphemeralFrames(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Notifications, servicetest.SQL}, func(t *testing.T, db servicetest.Database) {
		r := startPolling(t, db, "poll", 100*time.Millisecond)
		w := &world{t: t, db: db, a: r, b: r}
		marked := stream("poll", "marked")
		early := subscribe(t, w.b, live(marked))
		w.exec(w.sql(), "select fanfare.publish_ephemeral('poll', 'marked', 'by SQL')")
		late := subscribe(t, w.b, live(marked))
		for name, r := range map[string]*reader{"before": early, "after": late} {
			if gap := r.untilGap(); gap.GetReason() != fanfarev1.GapReason_GAP_REASON_EPHEMERAL_MAYBE_MISSED {
				t.Errorf("subscribed %s the stream was marked: %v", name, gap)
			}
		}
		publish(t, w.a, newFrame(marked, "marker"))
		for name, r := range map[string]*reader{"before": early, "after": late} {
			gaps := 0
			if got := r.payloads(1)[0]; got != "marker" {
				t.Errorf("subscribed %s the stream was marked: got %q", name, got)
			}
			for _, m := range r.notices {
				if m.GetGap() != nil {
					gaps++
				}
			}
			if gaps != 1 {
				t.Errorf("subscribed %s the stream was marked: told %d times", name, gaps)
			}
		}
	})
}

// polled is traffic through both replicas and SQL, with followers on both.
type polled struct {
	*world
	recorder              *servicetest.Recorder
	streams               int
	followers             []*servicetest.Follower
	following, publishing errgroup.Group
	sent                  chan struct{} // one for each frame that was confirmed
	enough, leave         context.CancelFunc
}

func (w *world) polled(streams int) *polled {
	w.t.Helper()
	p := &polled{world: w, recorder: servicetest.NewRecorder(), streams: streams, sent: make(chan struct{}, 1<<16)}
	follow, leave := context.WithTimeout(context.Background(), 2*patience)
	send, enough := context.WithCancel(context.Background())
	p.leave, p.enough = leave, enough
	w.t.Cleanup(func() { enough(); leave() })
	for i, replica := range []*servicetest.Replica{w.a, w.b} {
		for j := range 2 * streams {
			f := p.recorder.Follower(fmt.Sprint("follower ", i, "/", j), p.stream(j), servicetest.FollowerConfig{
				Pick: func() fanfarev1.FanfareServiceClient { return replica.Client },
			})
			p.followers = append(p.followers, f)
			p.following.Go(func() error { return f.Run(follow) })
		}
	}
	for i, replica := range []*servicetest.Replica{w.a, w.b, w.a} {
		p.publishing.Go(func() error {
			for n := 0; send.Err() == nil; n++ {
				if _, err := p.publish(replica, fmt.Sprint("publisher ", i), n); err != nil {
					return err
				}
				pauseFor(send, 5*time.Millisecond)
			}
			return nil
		})
	}
	return p
}

func (p *polled) stream(i int) backlog.StreamName { return stream("poll", fmt.Sprint(i%p.streams)) }

// publish publishes the n-th frame of a publisher until it is confirmed.
func (p *polled) publish(replica *servicetest.Replica, publisher string, n int) (backlog.Position, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	f := newFrame(p.stream(n), fmt.Sprint(publisher, " ", n))
	f.IdempotencyKey = fmt.Sprint(publisher, " ", n)
	for {
		attempt := p.recorder.Publishing(publisher, f)
		answer, err := replica.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: f})
		switch {
		case err == nil:
			attempt.Confirmed(position(answer.GetPosition()), answer.GetDuplicate())
			p.sent <- struct{}{}
			return position(answer.GetPosition()), nil
		case ctx.Err() != nil:
			return backlog.Position{}, err
		case status.Code(err) == codes.Unavailable: // nothing was stored
			attempt.Refused()
		}
		pauseFor(ctx, 20*time.Millisecond)
	}
}

// awaitFrames waits until n frames more have been confirmed.
func (p *polled) awaitFrames(n int) {
	p.t.Helper()
	timeout := time.After(patience)
	for i := range n {
		select {
		case <-p.sent:
		case <-timeout:
			p.t.Fatalf("%d frames of %d were published within %s", i, n, patience)
		}
	}
}

// finish ends the traffic and checks the guarantees.
func (p *polled) finish() {
	p.t.Helper()
	p.enough()
	if err := p.publishing.Wait(); err != nil {
		p.t.Error(err)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	last := make([]backlog.Position, p.streams)
	for i := range last {
		var err error
		if last[i], err = p.publish(p.a, "last", i); err != nil {
			p.t.Fatal(err)
		}
	}
	for i, f := range p.followers {
		if err := f.AwaitLast(ctx, last[i%p.streams]); err != nil {
			p.t.Error(err)
		}
	}
	p.leave()
	if err := p.following.Wait(); err != nil {
		p.t.Error(err)
	}
	servicetest.Check(p.t, p.recorder.Run(), servicetest.Unbroken)
}
