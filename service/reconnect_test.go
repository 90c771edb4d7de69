package service_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// killListener terminates the backend of a replica's listener, and returns once
// that has been asked for. One that was given up may not have noticed yet.
func (w *world) killListener(conn *pgx.Conn, r *servicetest.Replica) {
	w.t.Helper()
	var n int
	err := conn.QueryRow(w.t.Context(), "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = $1",
		"fanfare-listen/"+r.Instance).Scan(&n)
	if err != nil || n == 0 {
		w.t.Fatalf("%d listeners of %s were killed, %v", n, r.Instance, err)
	}
}

// background runs f until the test ends, or stop is called; f must end with its
// context.
func background(t *testing.T, f func(ctx context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		defer close(ended)
		ended <- f(ctx)
	}()
	stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// asksToRetry reports whether an error says when to try again.
func asksToRetry(err error) bool {
	return slices.ContainsFunc(status.Convert(err).Details(), func(d any) bool {
		_, ok := d.(*errdetails.RetryInfo)
		return ok
	})
}

func isEphemeralGap(m *fanfarev1.SubscribeResponse) bool {
	return m.GetGap().GetReason() == fanfarev1.GapReason_GAP_REASON_EPHEMERAL_MAYBE_MISSED
}

// behindProxy is a world of which b listens through a proxy. What is lost comes by
// the reads after an outage only, not by the regular ones.
func behindProxy(t *testing.T, db servicetest.Database, through *pgtest.ProxyServer, options ...func(*servicetest.Config)) *world {
	t.Helper()
	w := &world{t: t, db: db, options: append([]func(*servicetest.Config){
		wholeBacklog, func(c *servicetest.Config) { c.Hub.ReReadInterval = time.Hour },
	}, options...)}
	w.a = servicetest.Start(t, db.URL, w.options...)
	w.b = servicetest.Start(t, db.URL, append(w.options, func(c *servicetest.Config) { c.ListenURL = through.URL(db.URL) })...)
	return w
}

// watched is a stream that has carried an ephemeral frame, with a subscription on
// b that is used again and again.
type watched struct {
	*reader
	w      *world
	stream backlog.StreamName
}

func (w *world) watched(s backlog.StreamName) *watched {
	w.t.Helper()
	r := &watched{w: w, stream: s, reader: subscribe(w.t, w.b, live(s))}
	r.silent("mark", func() { announce(w.t, w.a, newFrame(s, "mark")) })
	return r
}

// expectAfterOutage expects what was published during an outage, which the
// subscription must be told of, and then an ephemeral frame and a durable one, which
// it publishes.
func (r *watched) expectAfterOutage(when string, meanwhile ...string) {
	r.t.Helper()
	if got := r.payloads(len(meanwhile)); !slices.Equal(got, meanwhile) {
		r.t.Fatalf("%s: got %q, want %q", when, got, meanwhile)
	}
	// What is published before the Gap may come in another order: the store is read
	// as it is when the listener is back.
	for !slices.ContainsFunc(r.notices, isEphemeralGap) {
		if err := r.recv(); err != nil {
			r.t.Fatalf("%s: nobody said that ephemeral frames may have been missed: %v, %v", when, err, r.notices)
		}
	}
	announce(r.t, r.w.a, newFrame(r.stream, "ephemeral after "+when))
	publish(r.t, r.w.a, newFrame(r.stream, "durable after "+when))
	if got, want := r.payloads(2), []string{"ephemeral after " + when, "durable after " + when}; !slices.Equal(got, want) {
		r.t.Fatalf("%s: got %q, want %q", when, got, want)
	}
	r.notices = nil
}

// Scenarios S46 and S49, symptoms: after the database had dropped the connection
// nobody listened again, or only the first time. Causes: a reconnect without
// LISTEN; a broken connection handed out again. Frames of all channels are pushed
// after every loss: nothing is re-read here.
func TestListeningIsRestoredAgainAndAgain(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Outages, servicetest.Notifications}, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, func(c *servicetest.Config) { c.Hub.ReReadInterval = time.Hour })
		conn := w.sql()
		var readers []*watched
		for i := range 3 {
			readers = append(readers, w.watched(stream(fmt.Sprint("restored ", i), "")))
		}
		listeners := func() (n int) {
			err := conn.QueryRow(t.Context(), `select count(*) from pg_stat_activity
				where datname = current_database() and application_name like 'fanfare-listen/%'`).Scan(&n)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		interval := 100 * time.Millisecond
		if inLongForm() {
			interval = 2 * time.Second
		}
		for round := range 10 {
			number := w.b.Bus.Current().Number
			w.killListener(conn, w.b)
			if round%3 == 2 { // twice within 50 ms
				eventually(t, "it listens again", func() bool { return w.b.Bus.Current().Number > number })
				number++
				w.killListener(conn, w.b)
			}
			eventually(t, "it listens again", func() bool { return w.b.Bus.Current().Number > number })
			begun := time.Now()
			for _, r := range readers {
				r.expectAfterOutage(fmt.Sprint("kill ", round))
			}
			if took := time.Since(begun); took > form(30*time.Second, 5*time.Second) {
				t.Errorf("round %d: six frames took %s", round, took)
			}
			rest := time.NewTimer(interval)
			<-rest.C // connections that live for a while are what is tested
		}
		eventually(t, "each replica has one listener", func() bool { return listeners() == 2 })
	})
}

// A listener's connection that is dead in either direction looks
// alive. It is noticed and replaced within 8 s; what was published meanwhile
// arrives, and what may have been missed is told. Where no other connection can be
// had, the replica is not ready meanwhile, and Subscribe says so in time.
func TestListenerInABlackHole(t *testing.T) {
	t.Parallel()
	for name, directions := range map[string]pgtest.Direction{
		"to server": pgtest.ToServer, "to client": pgtest.ToClient, "both": pgtest.BothWays,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servicetest.OnEachStore(t, servicetest.Needs{servicetest.Outages, servicetest.Notifications}, func(t *testing.T, db servicetest.Database) {
				hole := pgtest.Proxy(t, db.URL)
				// New connections go where front leads, the others stay.
				front := pgtest.Proxy(t, hole.Addr())
				w := behindProxy(t, db, front, func(c *servicetest.Config) {
					c.Hub.ListenTimeout = time.Second
					if !inLongForm() {
						c.Listener.PingInterval, c.Listener.PingTimeout = 500*time.Millisecond, time.Second
					}
				})
				changes := watchHealth(t, w.b)
				if ready := <-changes; !ready {
					expectChange(t, changes, true, "at the start")
				}
				r := w.watched(stream("hole", ""))
				inTime := func(what string, condition func() bool) {
					t.Helper()
					begun := time.Now()
					eventually(t, what, condition)
					if took := time.Since(begun); took > form(40*time.Second, 8*time.Second) {
						t.Errorf("%s after %s", what, took)
					} else {
						t.Logf("%s after %s", what, took)
					}
				}

				number := w.b.Bus.Current().Number
				front.SetTarget(t, db.URL)
				hole.Blackhole(directions)
				publish(t, w.a, newFrame(r.stream, "into the hole"))
				inTime("the dead connection is replaced", func() bool { return w.b.Bus.Current().Number > number })
				r.expectAfterOutage("one connection was dead", "into the hole")

				front.SetTarget(t, hole.Addr())
				hole.Restore()
				number = w.b.Bus.Current().Number
				w.killListener(w.sql(), w.b)
				eventually(t, "it listens through the hole again", func() bool { return w.b.Bus.Current().Number > number })
				r.expectAfterOutage("it was killed")
				hole.Blackhole(directions)
				publish(t, w.a, newFrame(r.stream, "while all was dead"))
				inTime("the loss is noticed", func() bool { return w.b.Bus.Current().Number == 0 })
				expectChange(t, changes, false, "in the hole")
				err := open(t, w.b.Client, live(r.stream)).recv()
				if status.Code(err) != codes.Unavailable || !asksToRetry(err) {
					t.Errorf("Subscribe without a listener: %v", err)
				}
				hole.Restore()
				expectChange(t, changes, true, "out of the hole")
				r.expectAfterOutage("all was dead", "while all was dead")
			})
		})
	}
}

// Scenario S52, symptom: some errors of the connection were fatal. Whatever ends
// it, the subscription stays, gets what was published meanwhile, and is told.
func TestEveryLossIsAnOutage(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Outages, servicetest.Notifications}, func(t *testing.T, db servicetest.Database) {
		proxy := pgtest.Proxy(t, db.URL)
		w := behindProxy(t, db, proxy)
		r := w.watched(stream("losses", ""))
		conn := w.sql()
		for name, lose := range map[string]func(){
			"end of file": proxy.Cut,
			"reset":       proxy.Reset,
			"terminated":  func() { w.killListener(conn, w.b) },
		} {
			proxy.Refuse()
			lose()
			eventually(t, "the loss is noticed: "+name, func() bool { return w.b.Bus.Current().Number == 0 })
			publish(t, w.a, newFrame(r.stream, "meanwhile"))
			proxy.Restore()
			eventually(t, "it listens again: "+name, func() bool { return w.b.Bus.Current().Number != 0 })
			r.expectAfterOutage(name, "meanwhile")
		}
	})
}

// Scenario S57, symptom: after a reconnect some parts heard again and others did
// not. Fifty streams and a close that waits all work on both replicas.
func TestEverythingHearsAgain(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Outages, servicetest.Notifications, servicetest.SQL}, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, func(c *servicetest.Config) { c.Hub.ReReadInterval = time.Hour })
		var readers []*reader
		name := func(i int) backlog.StreamName { return stream("everything", fmt.Sprint(i)) }
		for i := range 50 {
			readers = append(readers, subscribe(t, w.a, live(name(i))), subscribe(t, w.b, live(name(i))))
		}
		closing := stream("everything", "closing")
		publish(t, w.a, newFrame(closing, "first"))
		ends := []*reader{subscribe(t, w.a, fromOldest(closing)), subscribe(t, w.b, fromOldest(closing))}
		holder := w.sql()
		w.exec(holder, "begin")
		w.exec(holder, "select fanfare.publish('everything', 'closing', 'held')")
		closed := make(chan error, 1)
		go func() {
			_, err := w.a.Client.CloseStream(context.Background(), &fanfarev1.CloseStreamRequest{Channel: closing.Channel, Scope: closing.Scope})
			closed <- err
		}()
		if n := w.killListeners(w.sql()); n != 2 {
			t.Fatalf("%d listeners were killed", n)
		}
		eventually(t, "both listen again", func() bool { return w.a.Bus.Current().Number > 1 && w.b.Bus.Current().Number > 1 })
		begun := time.Now()
		for i := range 50 {
			publish(t, w.b, newFrame(name(i), "after"))
		}
		for i, r := range readers {
			if got := r.payloads(1)[0]; got != "after" {
				t.Errorf("subscription %d got %q", i, got)
			}
		}
		select {
		case err := <-closed:
			t.Fatalf("the close did not wait: %v", err)
		default:
		}
		w.exec(holder, "commit")
		if err := <-closed; err != nil {
			t.Error(err)
		}
		for _, r := range ends {
			if got := r.payloads(2); got[1] != "held" {
				t.Errorf("got %q before the close", got)
			}
			if code := r.end(); code != codes.OK {
				t.Errorf("the close ended a subscription with %s", code)
			}
		}
		if took := time.Since(begun); took > form(40*time.Second, 10*time.Second) {
			t.Errorf("everything took %s", took)
		}
	})
}

// Scenario S69, symptom: a subscription whose listener was lost was restored and
// cleaned up at once; it led nowhere, and the count of subscribers fell below zero.
func TestSubscriptionsThatMeetALoss(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Outages, servicetest.Notifications}, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		conn := w.sql()
		rounds, acknowledged := 40, 0
		if inLongForm() {
			rounds = 200
		}
		var killed []int32
		for i := range rounds {
			s := stream("meets", fmt.Sprint(i))
			subscribing := make(chan *reader, 1)
			go func() { subscribing <- open(t, w.b.Client, live(s)) }()
			if w.b.Bus.Current().Number != 0 {
				killed = append(killed, w.endListening(conn)...)
			}
			r := <-subscribing
			if i%2 == 0 { // the others leave while the acknowledgement is due, or just sent
				if err := r.recv(); err != nil {
					t.Fatalf("round %d: %v", i, err)
				}
				publish(t, w.a, newFrame(s, "x"))
				r.take(1)
				acknowledged++
			}
			r.cancel()
			if n := w.b.Hub.Stats().Subscribers; n < 0 || n > i+1 {
				t.Fatalf("round %d: %d subscribers", i, n)
			}
		}
		eventually(t, "no subscription is left", func() bool { return w.b.Hub.Stats().Subscribers == 0 })
		// A backend ends some time after it was told to.
		eventually(t, "the replica listens on a connection that nobody kills", func() (spared bool) {
			err := conn.QueryRow(t.Context(), "select count(*) = 1 and not coalesce(bool_or(pid = any($2)), false) from pg_stat_activity where application_name = $1",
				"fanfare-listen/"+w.b.Instance, killed).Scan(&spared)
			return err == nil && spared && w.b.Bus.Current().Number != 0
		})
		r := w.watched(stream("meets", "after"))
		r.silent("after", func() { publish(t, w.a, newFrame(r.stream, "after")) })
		if n := w.b.Hub.Stats().Subscribers; n != 1 || acknowledged == 0 {
			t.Errorf("%d subscribers, want 1; %d were acknowledged before", n, acknowledged)
		}
	})
}

// endListening terminates the backends that b listens on at the moment, if any, and
// returns their process ids.
func (w *world) endListening(conn *pgx.Conn) []int32 {
	w.t.Helper()
	// Not as a condition, which might be tried of other backends before their name is.
	rows, err := conn.Query(w.t.Context(), "select pid from (select pid, pg_terminate_backend(pid) from pg_stat_activity where application_name = $1 offset 0) t", "fanfare-listen/"+w.b.Instance)
	if err != nil {
		w.t.Fatal(err)
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		w.t.Fatal(err)
	}
	return pids
}
