package service_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

func maxSubscriptions(n int) func(*servicetest.Config) {
	return func(c *servicetest.Config) { c.Service.MaxSubscriptions = n }
}

// limitReached reports whether a streaming call was refused because there are as
// many as there may be.
func limitReached(err error) bool {
	reason, retryIn := statusDetails(err)
	return status.Code(err) == codes.ResourceExhausted && reason == "LIMIT_REACHED" && retryIn > 0
}

// holdsExactly checks that a replica serves n streaming calls, and not one more:
// that it counts none that has ended, and forgets none that runs.
func holdsExactly(t *testing.T, r *servicetest.Replica, n int) {
	t.Helper()
	s := stream("limits", "exact")
	var held []*reader
	for range n {
		// Handlers whose subscriptions have ended may be about to return.
		eventually(t, fmt.Sprintf("subscription %d of %d is admitted", len(held)+1, n), func() bool {
			sub := open(t, r.Client, live(s))
			err := sub.recv()
			if err != nil && !limitReached(err) {
				t.Fatal(err)
			}
			if err == nil {
				held = append(held, sub)
			}
			return err == nil
		})
	}
	for range 2 {
		if err := open(t, r.Client, live(s)).recv(); !limitReached(err) {
			t.Errorf("one more than %d ended with %v", n, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	publishing, err := r.Client.PublishStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := publishing.Recv(); !limitReached(err) {
		t.Errorf("a PublishStream beyond the limit ended with %v", err)
	}
	for _, sub := range held {
		sub.cancel()
		sub.end()
	}
	eventuallyEmpty(t, r)
}

// Scenario S69, symptom: a listener's outage made subscriptions begin and end at
// the same moment, and the count of subscriptions was wrong for ever: it fell
// below zero, or the limit let in nobody any more. Cause: clean-up that ran for
// calls that had not been counted yet.
func TestLimitThroughListenerOutages(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Notifications}, func(t *testing.T, db servicetest.Database) {
		const limit, rounds = 10, 20
		w := newWorld(t, db, maxSubscriptions(limit))
		conn := w.sql()
		s := stream("limits", "outages")
		for round := range rounds {
			var subscribing errgroup.Group
			for i := range limit + 2 {
				subscribing.Go(func() error {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					call, err := w.b.Client.Subscribe(ctx, fromOldest(s))
					if err != nil {
						return err
					}
					if i%3 == 0 {
						return nil // it leaves before it is acknowledged
					}
					_, err = call.Recv()
					if err != nil && !limitReached(err) && status.Code(err) != codes.Unavailable {
						return fmt.Errorf("round %d: %w", round, err)
					}
					return nil
				})
			}
			if round%2 == 0 {
				w.killListeners(conn)
			}
			if err := subscribing.Wait(); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "a subscription is admitted again", func() bool {
			sub := open(t, w.b.Client, live(s))
			defer sub.cancel()
			return sub.recv() == nil
		})
		eventuallyEmpty(t, w.b)
		holdsExactly(t, w.b, limit)
	})
}

// eventuallyEmpty waits until a replica knows that all subscriptions have ended.
// What is left of their handlers then is to return.
func eventuallyEmpty(t *testing.T, r *servicetest.Replica) {
	t.Helper()
	eventually(t, "no subscription is left", func() bool { return r.Hub.Stats().Subscribers == 0 })
}

// Scenario S103, symptom: the count of subscriptions crept upwards with every
// stream that was closed while people were connected. Cause: the path of a close
// that skips the count, or a client that leaves at the same moment and counts
// twice.
func TestLimitAfterClosesAndDepartures(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		scopes, each := 20, 5
		if inLongForm() {
			scopes = 1000
		}
		w := newWorld(t, db, maxSubscriptions(scopes*each))
		for range 2 {
			var all []*reader
			for i := range scopes {
				s := stream("limits", fmt.Sprint(i))
				publish(t, w.a, newFrame(s, "x"))
				for range each {
					r := subscribe(t, w.b, fromOldest(s))
					r.take(1)
					all = append(all, r)
				}
			}
			var g errgroup.Group
			g.SetLimit(20)
			var leaving sync.WaitGroup
			leaving.Go(func() {
				for i := 0; i < len(all); i += 2 {
					all[i].cancel()
				}
			})
			for i := range scopes {
				g.Go(func() error {
					_, err := w.a.Client.CloseStream(t.Context(), &fanfarev1.CloseStreamRequest{Channel: "limits", Scope: fmt.Sprint(i)})
					return err
				})
			}
			if err := g.Wait(); err != nil {
				t.Fatal(err)
			}
			leaving.Wait()
			for i, r := range all {
				if code := r.end(); code != codes.OK && (i%2 != 0 || code != codes.Canceled) {
					t.Fatalf("subscription %d ended %s", i, code)
				}
			}
			eventuallyEmpty(t, w.b)
		}
		holdsExactly(t, w.b, scopes*each)
	})
}

// Scenario S114, symptom: a hostile client let the server run out of memory by
// naming ever new streams. It is refused at the limit; those who subscribed before
// get their frames, unary calls work, and when it has gone everything that it
// caused has gone, too.
func TestHostileClientAtTheLimit(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		limit := 200
		if inLongForm() {
			limit = 9_000 // below what one connection may have
		}
		w := newWorld(t, db, maxSubscriptions(limit), func(c *servicetest.Config) { c.Hub.Linger = 1 })
		s := stream("limits", "others")
		other := subscribe(t, w.b, live(s))
		hostile, err := w.b.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer hostile.Close() //nolint:errcheck // closed below
		client := fanfarev1.NewFanfareServiceClient(hostile)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		admitted := 0
		for names := 0; ; names++ {
			call, err := client.Subscribe(ctx, fromOldest(stream(fmt.Sprint("hostile", names), fmt.Sprint(names))))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := call.Recv(); limitReached(err) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			admitted++
		}
		if admitted != limit-1 {
			t.Errorf("%d subscriptions were admitted beside one, the limit is %d", admitted, limit)
		}
		for i := range 100 {
			if err := open(t, client, fromOldest(stream("more", fmt.Sprint(i)))).recv(); !limitReached(err) {
				t.Fatalf("a subscription beyond the limit ended with %v", err)
			}
		}
		if n := w.b.Hub.Stats().Streams; n > limit {
			t.Errorf("%d streams are in memory, the limit of subscriptions is %d", n, limit)
		}
		publish(t, w.b, newFrame(s, "through the replica at its limit"))
		if got := other.payloads(1)[0]; got != "through the replica at its limit" {
			t.Errorf("got %q", got)
		}
		_ = hostile.Close()
		eventually(t, "what the hostile client caused has gone", func() bool {
			stats := w.b.Hub.Stats()
			return stats.Subscribers == 1 && stats.Streams == 1
		})
		other.cancel()
		eventuallyEmpty(t, w.b)
	})
}
