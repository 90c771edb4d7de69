package service_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// A listener's backend is killed under load, again and again. Each
// time the replica listens again and delivers what is published from then on
// within 50 ms at the median, no durable frame is lost, and every subscription of
// a stream that carries ephemeral frames is told.
func TestListenerKilledUnderLoad(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Outages, servicetest.Notifications}, func(t *testing.T, db servicetest.Database) {
		kills, limit := 6, 5*time.Second
		if inLongForm() {
			kills, limit = 50, 50*time.Millisecond
		}
		w := newWorld(t, db)
		finish := w.loaded()
		pulse := w.pulse(stream("killed", "pulse"))
		conn := w.sql()
		var times, ups, dials []time.Duration
		for range kills {
			pulse.awaitLive(w.b.Bus.Current().Number)
			dials = append(dials, w.dialed())
			pause := time.NewTimer(300*time.Millisecond + rand.N(400*time.Millisecond))
			pulse.drainUntil(pause.C) // a connection lives for a while
			before, gaps := w.b.Bus.Current().Number, pulse.gaps
			w.killListener(conn, w.b)
			killed := time.Now()
			pulse.awaitLive(before + 1)
			times = append(times, time.Since(killed))
			ups = append(ups, w.b.Listener.State().Since.Sub(killed))
			for pulse.gaps == gaps {
				pulse.read()
			}
		}
		pulse.finish()
		finish()
		slices.Sort(times)
		slices.Sort(ups)
		slices.Sort(dials)
		median, p90 := times[kills/2], times[kills*9/10]
		t.Logf("%d kills: from the kill to a live frame %s at the median, %s at the 90th percentile, %s at most; at the median it listened after %s, and a connection of an application took %s",
			kills, median, p90, times[kills-1], ups[kills/2], dials[kills/2])
		if median > limit {
			t.Errorf("a live frame came %s after the kill at the median, want at most %s", median, limit)
		}
	})
}

// dialed is how long a new connection takes, without anything of Fanfare.
func (w *world) dialed() time.Duration {
	w.t.Helper()
	begun := time.Now()
	conn, err := pgx.Connect(w.t.Context(), w.db.URL)
	if err != nil {
		w.t.Fatal(err)
	}
	took := time.Since(begun)
	_ = conn.Close(w.t.Context())
	return took
}

// loaded publishes durable frames to ten streams with 100 followers on both
// replicas, until the returned function is called, which checks the guarantees.
func (w *world) loaded() (finish func()) {
	w.t.Helper()
	const streams, followers, publishers = 10, 100, 4
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Minute)
	w.t.Cleanup(cancel)
	recorder := servicetest.NewRecorder()
	name := func(i int) backlog.StreamName { return stream("load", fmt.Sprint(i%streams)) }
	var following, publishing errgroup.Group
	all := make([]*servicetest.Follower, followers)
	for i := range all {
		client := []fanfarev1.FanfareServiceClient{w.a.Client, w.b.Client}[i/streams%2]
		all[i] = recorder.Follower(fmt.Sprint("follower ", i), name(i), servicetest.FollowerConfig{Pick: func() fanfarev1.FanfareServiceClient { return client }})
		following.Go(func() error { return all[i].Run(ctx) })
	}
	send := func(ctx context.Context, publisher string, i int) (backlog.Position, error) {
		f := newFrame(name(i), fmt.Sprint(publisher, " ", i))
		attempt := recorder.Publishing(publisher, f)
		answer, err := w.a.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: f})
		if err == nil {
			attempt.Confirmed(position(answer.GetPosition()), false)
		}
		return position(answer.GetPosition()), err
	}
	enough := make(chan struct{})
	for p := range publishers {
		publishing.Go(func() error {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for i := p; ; i++ {
				select {
				case <-enough:
					return nil
				case <-tick.C:
				}
				if _, err := send(ctx, fmt.Sprint("publisher ", p), i); err != nil {
					return err
				}
			}
		})
	}
	return func() {
		w.t.Helper()
		close(enough)
		if err := publishing.Wait(); err != nil {
			w.t.Error(err)
		}
		last := make([]backlog.Position, streams)
		for i := range streams {
			var err error
			if last[i], err = send(ctx, "last", i); err != nil {
				w.t.Fatal(err)
			}
		}
		for i, f := range all {
			if err := f.AwaitLast(ctx, last[i%streams]); err != nil {
				w.t.Error(err)
			}
		}
		cancel()
		if err := following.Wait(); err != nil {
			w.t.Error(err)
		}
		servicetest.Check(w.t, recorder.Run(), servicetest.Unbroken)
	}
}

// pulse is a stream to which durable and ephemeral frames are published through
// a without a pause, and its subscription on b.
type pulse struct {
	*reader
	w    *world
	stop func()
	// durable is the sequence of the last durable frame; gaps counts those that say
	// that ephemeral frames may have been missed.
	durable uint64
	gaps    int
	seen    int // of reader.notices
	// wasLive is set by read: an ephemeral frame was among what came.
	wasLive bool
}

func (w *world) pulse(s backlog.StreamName) *pulse {
	w.t.Helper()
	announce(w.t, w.a, newFrame(s, "mark"))
	p := &pulse{w: w, reader: subscribe(w.t, w.b, fromOldest(s))}
	p.stop = background(w.t, func(ctx context.Context) error {
		var g errgroup.Group
		for i := range 3 {
			g.Go(func() error {
				for ctx.Err() == nil {
					f := newFrame(s, "pulse")
					f.Ephemeral = i > 0
					if _, err := w.a.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: f}); err != nil && ctx.Err() == nil {
						return err
					}
				}
				return nil
			})
		}
		return g.Wait()
	})
	return p
}

// read takes in one response, and checks that no durable frame is missing.
func (p *pulse) read() {
	p.t.Helper()
	if err := p.recv(); err != nil {
		p.t.Fatalf("the pulse after frame %d: %v", p.durable, err)
	}
	p.wasLive = false
	for _, f := range p.frames {
		if f.GetEphemeral() {
			p.wasLive = true
			continue
		}
		if got := f.GetPosition().GetSequence(); got != p.durable+1 {
			p.t.Fatalf("frame %d follows frame %d", got, p.durable)
		}
		p.durable++
	}
	p.frames = nil
	for _, m := range p.notices[p.seen:] {
		switch {
		case isEphemeralGap(m):
			p.gaps++
		case m.GetGap() != nil:
			p.t.Fatalf("told %v", m)
		}
	}
	p.seen = len(p.notices)
}

// awaitLive reads until a frame that exists in its announcement only has come
// while b listens under a number, at least.
func (p *pulse) awaitLive(number uint64) {
	p.t.Helper()
	for p.read(); !p.wasLive || p.w.b.Bus.Current().Number < number; {
		p.read()
	}
}

// drainUntil reads until a moment has come.
func (p *pulse) drainUntil(moment <-chan time.Time) {
	p.t.Helper()
	for {
		select {
		case <-moment:
			return
		default:
			p.read()
		}
	}
}

// finish stops the pulse and reads it to its end.
func (p *pulse) finish() {
	p.t.Helper()
	p.stop()
	last := publish(p.t, p.w.a, newFrame(backlog.StreamName{Channel: "killed", Scope: "pulse"}, "last"))
	for p.durable < last.GetSequence() {
		p.read()
	}
}
