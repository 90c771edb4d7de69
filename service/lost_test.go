package service_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// Scenarios S02 and S24, symptom: a frame published the instant after the
// acknowledgement was lost. Cause: "from here on" was looked up after the
// acknowledgement, or the acknowledgement came before the registration.
func TestNothingIsLostAfterSubscribed(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		for i := range 300 {
			s := stream("fresh", fmt.Sprint(i))
			r := subscribe(t, w.b, live(s))
			publish(t, w.a, newFrame(s, "x"))
			if f := r.take(1)[0]; f.GetPosition().GetSequence() != 1 {
				t.Fatalf("round %d: %v", i, f)
			}
			r.cancel()
		}
	})
}

// Acceptance: the seam under silence. One frame at a random moment of a
// subscribe, then nothing more: steady traffic would hide a lost wake-up.
func TestSeamUnderSilence(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		const rounds, parallel = 1000, 10
		var g errgroup.Group
		for p := range parallel {
			g.Go(func() error {
				for i := p; i < rounds; i += parallel {
					if err := silentRound(w, i); err != nil {
						return fmt.Errorf("round %d: %w", i, err)
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}

func silentRound(w *world, round int) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	// Few streams, so that some are resident, some linger and some are new.
	s := stream("silence", fmt.Sprint(round%137, "/", round%3))
	moment := rand.N(3 * time.Millisecond)
	published := make(chan error, 1)
	payload := fmt.Sprint(round)
	go func() {
		// The random moment is what is tested, not a wait for something.
		<-time.After(moment)
		_, err := w.a.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: newFrame(s, payload)})
		published <- err
	}()
	sub, err := w.b.Client.Subscribe(ctx, fromOldest(s))
	if err != nil {
		return err
	}
	seen, err := readUntil(sub, payload, payload)
	if err != nil {
		return fmt.Errorf("published after %s: %w", moment, err)
	}
	if err := <-published; err != nil {
		return err
	}
	// It has come; the marker shows that it does not come again.
	marker := "marker " + payload
	if _, err := w.a.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: newFrame(s, marker)}); err != nil {
		return err
	}
	again, err := readUntil(sub, marker, payload)
	if err == nil && seen+again != 1 {
		err = fmt.Errorf("it came %d times", seen+again)
	}
	return err
}

// readUntil reads until a frame carries last, and counts those that carry
// payload.
func readUntil(sub grpc.ServerStreamingClient[fanfarev1.SubscribeResponse], last, payload string) (count int, err error) {
	for {
		response, err := sub.Recv()
		if err != nil {
			return count, err
		}
		found := false
		for _, f := range response.GetFrames() {
			if string(f.GetPayload()) == payload {
				count++
			}
			found = found || string(f.GetPayload()) == last
		}
		if found {
			return count, nil
		}
	}
}

// Scenario S03, symptom: frames stored between the end of the replay and the
// registration reached nobody. Cause: replay first, register second.
func TestFramesStoredDuringAReplay(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("replay", "")
		payload := func(i int) string { return fmt.Sprintf("%04d", i) + strings.Repeat("x", 4000) }
		publishMany(t, w.a, s, 2000, payload)
		r := subscribe(t, w.b, fromOldest(s))
		got := r.take(100)
		// The reader stalls while more are stored.
		publishMany(t, w.a, s, 50, func(i int) string { return payload(2000 + i) })
		got = append(got, r.take(1950)...)
		contiguous(t, got, 1)
		r.silent("marker", func() { publish(t, w.a, newFrame(s, "marker")) })
	})
}

// Scenario S08, symptom: an empty replay left no position to go live from, and
// what was committed during it was lost. Cause: "no last id" taken for "now".
func TestFramesCommittedDuringASlowLoad(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Outages}, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		proxy := pgtest.Proxy(t, db.URL)
		slow := servicetest.Start(t, proxy.URL(db.URL), func(c *servicetest.Config) {
			wholeBacklog(c)
			c.ListenURL, c.MigrateURL = db.URL, db.URL
		})
		s := stream("slow", "")
		for round, request := range []func() *fanfarev1.SubscribeRequest{
			func() *fanfarev1.SubscribeRequest { return fromOldest(s) },
			func() *fanfarev1.SubscribeRequest { return after(s, publish(t, w.a, newFrame(s, "newest"))) },
		} {
			start := request()
			proxy.Delay(300 * time.Millisecond)
			r := open(t, slow.Client, start)
			want := []string{fmt.Sprint(round, "a"), fmt.Sprint(round, "b"), fmt.Sprint(round, "c")}
			for _, payload := range want {
				publish(t, w.a, newFrame(s, payload))
			}
			got := r.payloads(3)
			proxy.Restore()
			if !slices.Equal(got, want) {
				t.Errorf("round %d: got %q, want %q", round, got, want)
			}
			r.cancel()
		}
	})
}

// Scenario S11, symptom: a frame dropped from a full buffer never showed as a
// gap. Cause: the position moved before the hand-over.
func TestAStalledReaderGetsEverything(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, unhurried)
		s := stream("stall", "")
		publish(t, w.a, newFrame(s, "first"))
		r := subscribe(t, w.b, fromOldest(s))
		r.take(1)
		// Far more than flow control and the tail take in.
		n := form(10_000, 20_000)
		publishMany(t, w.a, s, n, func(i int) string { return fmt.Sprintf("%06d", i) + strings.Repeat("x", 1000) })
		contiguous(t, r.take(n), 2)
		r.silent("marker", func() { publish(t, w.a, newFrame(s, "marker")) })
	})
}

// Scenario S12, symptom: a burst filled a live buffer, and the subscriber was
// evicted, resumed and evicted again. Cause: no way back to the backlog.
func TestBurstsDoNotEvictAReader(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("bursts", "")
		recorder := servicetest.NewRecorder()
		follower := recorder.Follower("slow", s, servicetest.FollowerConfig{
			Pick: func() fanfarev1.FanfareServiceClient { return w.b.Client },
			Rest: time.Millisecond,
		})
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		var g errgroup.Group
		g.Go(func() error { return follower.Run(ctx) })
		var last *fanfarev1.Position
		for burst := range 5 {
			recordedBatch(t, recorder, w.a, s, 4000, burst)
			last = recordedBatch(t, recorder, w.a, s, 1, 100+burst)
		}
		if err := follower.AwaitLast(ctx, position(last)); err != nil {
			t.Error(err)
		}
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		run := recorder.Run()
		servicetest.Check(t, run, servicetest.Unbroken)
		ends := 0
		for _, e := range run.Subscribers[0].Events {
			if e.Kind == servicetest.SawEnd {
				ends++
			}
		}
		if ends > 1 {
			t.Errorf("the reader was sent away %d times", ends-1)
		}
	})
}

// Scenario S16, symptom: rows that a client does not see hid all that came
// after. Cause: the position tracked what was sent instead of what was examined.
func TestOtherStreamsHideNothing(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		mine, other := stream("shared", "mine"), stream("shared", "other")
		start := publish(t, w.a, newFrame(mine, "start"))
		publishMany(t, w.a, other, 5000, numbered)
		publish(t, w.a, newFrame(mine, "stored"))
		r := subscribe(t, w.b, after(mine, start))
		if got := r.payloads(1)[0]; got != "stored" {
			t.Errorf("got %q", got)
		}
		r.silent("live", func() { publish(t, w.a, newFrame(mine, "live")) })
	})
}

// Scenario S18, symptom: a large frame was skipped as deleted. Cause: the
// notification was acted on before the row was visible.
func TestLargeFramesOfManyPublishers(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("large", "")
		const publishers, each = 50, 40
		readers := []*reader{subscribe(t, w.a, live(s)), subscribe(t, w.b, live(s)), subscribe(t, w.b, fromOldest(s))}
		var g errgroup.Group
		for p := range publishers {
			g.Go(func() error {
				replica := []*servicetest.Replica{w.a, w.b}[p%2]
				for i := range each {
					f := newFrame(s, fmt.Sprintf("%d/%d ", p, i)+strings.Repeat("x", 9000))
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					_, err := replica.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: f})
					cancel()
					if err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		for _, r := range readers {
			frames := r.take(publishers * each)
			contiguous(t, frames, 1)
			seen := map[string]bool{}
			for _, f := range frames {
				if len(f.GetPayload()) < 9000 {
					t.Fatalf("a frame of %d bytes", len(f.GetPayload()))
				}
				seen[string(f.GetPayload())] = true
			}
			if len(seen) != publishers*each {
				t.Errorf("%d different frames", len(seen))
			}
		}
	})
}

// Scenario S20, symptom: each event went to whichever stream of a kind took it
// first. Cause: one queue shared by two subscriptions.
func TestSubscriptionsShareNothing(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("shared", "")
		var readers []*reader
		for range 3 {
			readers = append(readers, subscribe(t, w.a, fromOldest(s)))
			conn, err := w.a.Connect()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			readers = append(readers, subscribeWith(t, fanfarev1.NewFanfareServiceClient(conn), fromOldest(s)))
		}
		readers = append(readers, subscribe(t, w.b, fromOldest(s)))
		for i := range 1000 {
			publish(t, w.a, newFrame(s, numbered(i)))
		}
		for _, r := range readers {
			contiguous(t, r.take(1000), 1)
		}
	})
}

// Scenario S24: while the acknowledgement is not due the client waits, and what
// it gives up leaves nothing on the server.
func TestSubscribeWaitsForTheListener(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Outages}, func(t *testing.T, db servicetest.Database) {
		proxy := pgtest.Proxy(t, db.URL)
		r := servicetest.Start(t, db.URL, func(c *servicetest.Config) { c.ListenURL = proxy.URL(db.URL) })
		proxy.Refuse()
		proxy.Cut()
		eventually(t, "the listener is gone", func() bool { return r.Bus.Current().Number == 0 })
		s := stream("waits", "")
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		sub, err := r.Client.Subscribe(ctx, live(s))
		var response *fanfarev1.SubscribeResponse
		if err == nil {
			response, err = sub.Recv()
		}
		if code := status.Code(err); code != codes.DeadlineExceeded && code != codes.Unavailable {
			t.Errorf("without a listener it was answered %v, %v", response, err)
		}
		waiting := open(t, r.Client, live(s))
		proxy.Restore()
		if err := waiting.recv(); err != nil || waiting.subscribed == nil {
			t.Fatalf("after the listener is back: %v", err)
		}
		waiting.silent("live", func() { publish(t, r, newFrame(s, "live")) })
		waiting.cancel()
		eventually(t, "no subscription is left", func() bool { return r.Hub.Subscribers(s) == 0 })
	})
}
