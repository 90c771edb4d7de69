package service_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/net/http2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// Scenario S107, symptom: a server ran out of memory after days. Cause: the buffer
// of a client that neither read nor left grew without a bound. Ten subscribers do
// not read while ephemeral frames of 50 kB flow: memory stays within the tail and
// what is in flight to each, they are ended with a reason and their position, and
// the others get everything.
func TestMemoryOfSubscribersThatDoNotRead(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, func(c *servicetest.Config) {
			c.Service.WriteTimeout = form(2*time.Second, 30*time.Second)
			c.Service.UntakenTimeout = time.Hour // they read on
		})
		s := stream("unread", "")
		at := publish(t, w.a, newFrame(s, string(stamped(0, stampBytes))))
		ctx, cancel := context.WithTimeout(t.Context(), form(patience, 10*time.Minute))
		defer cancel()
		request := func(int) *fanfarev1.SubscribeRequest { return live(s) }
		readers, err := openTallies(ctx, dials(t, w.b.Addr, 2), 2, request)
		if err != nil {
			t.Fatal(err)
		}
		stalled, err := openTallies(ctx, dials(t, w.b.Addr, 10, narrow), 10, request)
		if err != nil {
			t.Fatal(err)
		}
		base := heapBytes()
		const size = 50_000
		frames, rate := form(300, 3600), form(400, 20) // frames, and a second
		pace := time.NewTicker(time.Second / time.Duration(rate))
		defer pace.Stop()
		var most uint64
		for i := 1; i <= frames; i++ {
			<-pace.C
			announce(t, w.a, ephemeral(s, string(stamped(uint64(i), size))))
			for _, r := range readers {
				if err := r.readTo(int64(i)); err != nil {
					t.Fatal(err)
				}
			}
			if i%50 == 0 {
				most = max(most, heapBytes())
			}
		}
		// A tail of 4 MiB, and for each: the window, as much between window and handler,
		// and a frame.
		bound := uint64(4<<20 + len(stalled)*(2*64<<10+size))
		t.Logf("%d kB of frames: the heap grew from %d to at most %d kB; the bound is %d", frames*size>>10, base>>10, most>>10, bound>>10)
		if most > base+bound+2<<20 {
			t.Errorf("the heap grew from %d to %d kB", base>>10, most>>10)
		}
		eventually(t, "those who do not read are ended", func() bool { return w.b.Hub.Subscribers(s) == len(readers) })
		for _, sub := range stalled {
			isSlow(t, sub.readToEnd(), position(at))
			if n := sub.count.Load(); n == 0 || n != int64(sub.number) {
				t.Errorf("it got %d frames, the last of them is number %d", n, sub.number)
			}
		}
	})
}

// mostConnections is how many a replica with the default configuration may have:
// 16 for publishing, 2 for loads, 4 for pages, and the listener's.
const mostConnections = 16 + 2 + 4 + 1

// Scenario S108, symptom: PostgreSQL ran out of connections. Cause: one for each
// subscriber, channel or scope, or one more at each reconnect. A replica with very
// many subscribers has at most its pools' maximum and one listener's connection,
// at every moment, also while its connections are killed.
func TestConnectionsOfManySubscribers(t *testing.T) {
	needs := servicetest.Needs{servicetest.SQL, servicetest.Outages}
	servicetest.OnEachStore(t, needs, func(t *testing.T, db servicetest.Database) {
		subscribers := form(500, 5000)
		streams, channels := subscribers/2, subscribers/10
		name := func(i int) backlog.StreamName {
			return stream(fmt.Sprint("many ", i%channels), fmt.Sprint(i%streams))
		}
		r := servicetest.Start(t, db.URL, wholeBacklog)
		w := &world{t: t, db: db, a: r, b: r}
		ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
		defer cancel()

		census := newCensus(ctx, w)
		load, endLoad := context.WithCancel(ctx)
		defer endLoad()
		var loading errgroup.Group
		for i := range 30 {
			loading.Go(func() error { return useConnections(load, r, name(i)) })
		}
		subs, err := openTallies(ctx, dials(t, r.Addr, 20), subscribers, func(i int) *fanfarev1.SubscribeRequest { return live(name(i)) })
		if err != nil {
			t.Fatal(err)
		}
		conn := w.sql()
		for round := range 6 {
			pattern := "fanfare-listen/%"
			if round%2 == 1 {
				pattern = "fanfare-%"
			}
			census.kill(conn, pattern)
			eventually(t, "it listens and publishes again", func() bool {
				_, err := r.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: newFrame(stream("other", ""), "x")})
				return err == nil && r.Bus.Current().Number > 0
			})
		}
		endLoad()
		if err := loading.Wait(); err != nil {
			t.Error(err)
		}
		publishEverywhere(ctx, t, r, streams, name)
		for i, sub := range subs {
			if err := sub.readTo(1); err != nil {
				t.Fatalf("subscriber %d: %v", i, err)
			}
		}
		most, listeners := census.end()
		t.Logf("%d subscribers of %d streams: at most %d connections, of listeners %d", subscribers, streams, most, listeners)
		if most > mostConnections || listeners > 1 {
			t.Errorf("it had %d connections, %d of them listeners'; at most %d and 1 are allowed", most, listeners, mostConnections)
		}
	})
}

// useConnections publishes and reads until ctx ends. What fails because
// connections are killed is as it must be.
func useConnections(ctx context.Context, r *servicetest.Replica, s backlog.StreamName) error {
	other := stream("load", s.Scope)
	for ctx.Err() == nil {
		_, err := r.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: newFrame(other, "x")})
		if err == nil {
			_, err = r.Client.ReadFrames(ctx, &fanfarev1.ReadFramesRequest{Channel: other.Channel, Scope: other.Scope})
		}
		if err == nil {
			_, err = r.Client.PublishBatch(ctx, &fanfarev1.PublishBatchRequest{Frames: []*fanfarev1.NewFrame{newFrame(other, "x")}})
		}
		switch status.Code(err) {
		case codes.OK, codes.Unavailable, codes.Unknown, codes.Canceled:
		default:
			return err
		}
	}
	return nil
}

// census counts a replica's connections all the time.
type census struct {
	w               *world
	done            atomic.Bool
	counting        errgroup.Group
	most, listeners int
}

func newCensus(ctx context.Context, w *world) *census {
	w.t.Helper()
	c := &census{w: w}
	conn := w.sql()
	// What has been killed may be seen until it has cleaned up.
	w.exec(conn, "create table killed (pid int primary key)")
	c.counting.Go(func() error {
		for !c.done.Load() {
			var all, listeners int
			err := conn.QueryRow(ctx, `select count(*), count(*) filter (where application_name like 'fanfare-listen/%') from pg_stat_activity
				where datname = current_database() and application_name like 'fanfare-%/' || $1 and pid not in (select pid from killed)`, w.b.Instance).Scan(&all, &listeners)
			if err != nil {
				return err
			}
			c.most, c.listeners = max(c.most, all), max(c.listeners, listeners)
		}
		return nil
	})
	return c
}

// kill terminates the replica's connections whose names are like pattern.
func (c *census) kill(conn *pgx.Conn, pattern string) {
	c.w.t.Helper()
	const which = `select pid from pg_stat_activity where datname = current_database() and application_name like $1`
	c.w.exec(conn, "with victims as materialized ("+which+") insert into killed select pid from victims on conflict do nothing", pattern)
	c.w.exec(conn, "select pg_terminate_backend(pid) from killed")
}

// end returns the most connections that were seen at once.
func (c *census) end() (all, listeners int) {
	c.w.t.Helper()
	c.done.Store(true)
	if err := c.counting.Wait(); err != nil {
		c.w.t.Error(err)
	}
	return c.most, c.listeners
}

// Scenario S113, symptom: connections that said nothing, or next to nothing,
// stayed for ever. Cause: the timeouts were off for all, because streams last
// long. Connections that do not finish their handshake are cut within the timeout
// for it, and one that stops within a call's header within that of a keepalive,
// while a stream that is older than both goes on.
func TestConnectionsThatSayNothing(t *testing.T) {
	alongside(t)
	// The store has no part in it.
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.File}, func(t *testing.T, db servicetest.Database) {
		r := servicetest.Start(t, db.URL, wholeBacklog)
		s := stream("live", "")
		sub := subscribe(t, r, live(s))
		kinds := map[string]struct {
			begin []byte        // what is said at once
			pause time.Duration // between further bytes; 0: none come
			limit time.Duration
		}{
			"nothing":            {nil, 0, 10 * time.Second},
			"a byte in a while":  {nil, 2 * time.Second, 10 * time.Second},
			"no settings":        {[]byte(http2.ClientPreface), 0, 10 * time.Second},
			"half a call header": {halfHeader(t), 5 * time.Second, 40 * time.Second},
		}
		if !inLongForm() {
			delete(kinds, "half a call header")
		}
		each := form(50, 500)
		var cut errgroup.Group
		for kind, k := range kinds {
			for range each {
				cut.Go(func() error {
					took, err := untilCut(r.Addr, k.begin, k.pause, 3*k.limit)
					if err != nil {
						return fmt.Errorf("one that says %s: %w after %s", kind, err, took)
					}
					// The timeout, and the unpunctuality of a busy machine.
					if limit := k.limit + form(20*time.Second, 3*time.Second); took > limit {
						return fmt.Errorf("one that says %s was cut after %s", kind, took)
					}
					return nil
				})
			}
		}
		began := time.Now()
		allCut := make(chan error, 1)
		go func() { allCut <- cut.Wait() }()
		for waiting := true; waiting; {
			select {
			case err := <-allCut:
				waiting = false
				if err != nil {
					t.Error(err)
				}
			default:
				publish(t, r, newFrame(s, "x"))
				sub.take(1)
			}
		}
		t.Logf("%d connections were cut within %s", each*len(kinds), time.Since(began))
		sub.silent("marker", func() { publish(t, r, newFrame(s, "marker")) })
	})
}

// halfHeader is how a connection begins that opens a call and does not finish its
// header.
func halfHeader(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&b, nil)
	if err := errors.Join(framer.WriteSettings(), framer.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1, make([]byte, 100))); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()[:b.Len()-100]
}

// untilCut connects, says what it is told to, and a byte in each pause, and
// returns when the connection was cut by the server, which must be before limit.
func untilCut(address string, begin []byte, pause, limit time.Duration) (time.Duration, error) {
	began := time.Now()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return 0, err
	}
	defer conn.Close() //nolint:errcheck // the server has closed it
	if _, err := conn.Write(begin); err != nil {
		return 0, err
	}
	preface := []byte(http2.ClientPreface)
	for b, sent := make([]byte, 1000), 0; ; {
		wait := limit - time.Since(began)
		if pause > 0 {
			wait = min(wait, pause)
		}
		_ = conn.SetReadDeadline(time.Now().Add(wait))
		switch _, err := conn.Read(b); {
		case err == nil: // the server's own settings
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return time.Since(began), nil
		case time.Since(began) >= limit:
			return time.Since(began), errors.New("it was not cut")
		default:
			// In the handshake the next byte of it; in a header any.
			_, _ = conn.Write(preface[sent%len(preface) : sent%len(preface)+1])
			sent++
		}
	}
}

// Scenario S114, symptom: a table of names grew without an end. Cause: a client
// may name what it likes. One that names ever new streams and leaves them again
// leaves no memory in use behind.
func TestNamesWithoutEnd(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		r := servicetest.Start(t, db.URL, wholeBacklog, quickLinger)
		base := goroutines(t, r)
		ctx, cancel := context.WithTimeout(t.Context(), form(patience, 30*time.Minute))
		defer cancel()
		names := form(1000, 100_000)
		use := func(first, last int) {
			t.Helper()
			var g errgroup.Group
			g.SetLimit(200)
			for i := first; i < last; i++ {
				g.Go(func() error {
					sub, err := openTally(ctx, r.Conn, fromOldest(stream(fmt.Sprint("channel ", i), fmt.Sprint("scope ", i))))
					if err == nil {
						sub.cancel()
					}
					return err
				})
			}
			if err := g.Wait(); err != nil {
				t.Fatal(err)
			}
			nothingIsLeft(t, r, base)
		}
		use(0, names/10)
		before := heapBytes()
		use(names/10, names)
		after := heapBytes()
		t.Logf("after %d names %d kB on the heap, after %d %d kB", names/10, before>>10, names, after>>10)
		// In the long form an entry of 100 bytes for each would be found.
		if after > before+before/10+uint64(form(256<<10, 2<<20)) {
			t.Errorf("the heap grew from %d to %d kB", before>>10, after>>10)
		}
	})
}

// The calls of one connection are bounded: a client waits with more, until one
// ends, and other connections are not concerned.
func TestCallsOfAConnection(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		const limit = 50
		r := servicetest.Start(t, db.URL, wholeBacklog, func(c *servicetest.Config) { c.Service.MaxConcurrentStreams = limit })
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		greedy, other := dial(t, r.Addr), dial(t, r.Addr)
		name := func(i int) *fanfarev1.SubscribeRequest { return live(stream("greedy", fmt.Sprint(i))) }
		// The first makes the connection, which tells the client of the limit.
		var subs []*tally
		for i := range limit {
			sub, err := openTally(ctx, greedy, name(i))
			if err != nil {
				t.Fatal(err)
			}
			subs = append(subs, sub)
		}
		short, cancelShort := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancelShort()
		if _, err := openTally(short, greedy, name(limit)); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("call %d of a connection with %d: %v", limit+1, limit, err)
		}
		if n := r.Hub.Stats().Subscribers; n != limit {
			t.Errorf("there are %d subscriptions", n)
		}
		if _, err := openTally(ctx, other, name(limit)); err != nil {
			t.Errorf("a call of another connection: %v", err)
		}
		subs[0].cancel()
		if _, err := openTally(ctx, greedy, name(limit+1)); err != nil {
			t.Errorf("a call after another has ended: %v", err)
		}
	})
}
