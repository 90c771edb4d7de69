package service_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// connections opens n connections to a replica: as many clients have.
func connections(t *testing.T, r *servicetest.Replica, n int) []fanfarev1.FanfareServiceClient {
	t.Helper()
	clients := make([]fanfarev1.FanfareServiceClient, n)
	for i := range clients {
		conn, err := r.Connect()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		clients[i] = fanfarev1.NewFanfareServiceClient(conn)
	}
	return clients
}

// openStreams opens n subscriptions at once and waits for every Subscribed.
func openStreams(ctx context.Context, clients []fanfarev1.FanfareServiceClient, n int, request func(i int) *fanfarev1.SubscribeRequest) ([]grpc.ServerStreamingClient[fanfarev1.SubscribeResponse], error) {
	streams := make([]grpc.ServerStreamingClient[fanfarev1.SubscribeResponse], n)
	var g errgroup.Group
	for i := range n {
		g.Go(func() error {
			var err error
			if streams[i], err = clients[i%len(clients)].Subscribe(ctx, request(i)); err != nil {
				return err
			}
			response, err := streams[i].Recv()
			if err == nil && response.GetSubscribed() == nil {
				err = fmt.Errorf("the first response is %v", response)
			}
			return err
		})
	}
	return streams, g.Wait()
}

// One listener connection per replica at 0, 1 and 2,000
// subscribers over 500 channels.
func TestOneListenerConnection(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Notifications}, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		conn := w.sql()
		count := func(when string) {
			t.Helper()
			for _, r := range []*servicetest.Replica{w.a, w.b} {
				var n int
				err := conn.QueryRow(t.Context(), "select count(*) from pg_stat_activity where application_name = $1", "fanfare-listen/"+r.Instance).Scan(&n)
				if err != nil {
					t.Fatal(err)
				}
				if n != 1 {
					t.Errorf("%s: %s has %d listener connections", when, r.Instance, n)
				}
			}
			var others int
			err := conn.QueryRow(t.Context(), `select count(*) from pg_stat_activity where datname = current_database() and
			application_name like 'fanfare-%' and application_name not like 'fanfare-listen/%' and query ilike 'listen %'`).Scan(&others)
			if err != nil || others != 0 {
				t.Errorf("%s: %d other connections listen, %v", when, others, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		channel := func(i int) *fanfarev1.SubscribeRequest {
			return live(stream(fmt.Sprint("channel ", i%500), fmt.Sprint(i)))
		}
		count("without subscribers")
		if _, err := openStreams(ctx, connections(t, w.a, 1), 1, channel); err != nil {
			t.Fatal(err)
		}
		count("with one subscriber")
		if _, err := openStreams(ctx, append(connections(t, w.a, 10), connections(t, w.b, 10)...), 2000, channel); err != nil {
			t.Fatal(err)
		}
		count("with 2,000 subscribers")
	})
}

// statementStatistics makes a server count statements; see queriesAtServer.
var statementStatistics = []string{"shared_preload_libraries=pg_stat_statements", "pg_stat_statements.track=all"}

// countQueries returns what tells how often the backlog has been read: counted by
// the server where there is one of the test's own, otherwise by the hub.
func (w *world) countQueries() func() int {
	if w.db.Server == nil {
		return func() int {
			stats := w.a.Hub.Stats()
			return int(stats.Loads + stats.Pages)
		}
	}
	conn := w.sql()
	w.exec(conn, "create extension pg_stat_statements")
	return func() int { return queriesAtServer(w.t, conn) }
}

// queriesAtServer returns how often statements that read the backlog have been
// executed.
func queriesAtServer(t *testing.T, conn *pgx.Conn) (n int) {
	t.Helper()
	err := conn.QueryRow(t.Context(), `select coalesce(sum(calls), 0) from pg_stat_statements
		where dbid = (select oid from pg_database where datname = current_database()) and toplevel
		and (query like '%channel_frames%' or query like '%stream_states%') and query not like '%pg_stat_statements%'`).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// 5,000 subscribers of 200 streams that come back at once cause at
// most 40 queries of the backlog; in process, where a load is done before many can
// wait for it, at most one for each stream.
func TestReconnectingHerd(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		db = db.OnOwnServer(t, statementStatistics...)
		r := servicetest.Start(t, db.URL, wholeBacklog, func(c *servicetest.Config) {
			// The janitor looks at the backlog, too.
			c.JanitorInterval = time.Hour
		})
		queries := (&world{t: t, db: db, a: r}).countQueries()
		const subscribers, streams = 5000, 200
		last := make([]*fanfarev1.Position, streams)
		name := func(i int) string { return fmt.Sprint("scope ", i%streams) }
		for i := range streams {
			last[i] = publishMany(t, r, stream("herd", name(i)), 20, numbered)[9]
		}
		before := queries()
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		subscriptions, err := openStreams(ctx, connections(t, r, 20), subscribers, func(i int) *fanfarev1.SubscribeRequest {
			return after(stream("herd", name(i)), last[i%streams])
		})
		if err != nil {
			t.Fatal(err)
		}
		var g errgroup.Group
		for _, s := range subscriptions {
			g.Go(func() error {
				for next := uint64(11); next <= 20; {
					response, err := s.Recv()
					if err != nil {
						return err
					}
					for _, f := range response.GetFrames() {
						if f.GetPosition().GetSequence() != next {
							return fmt.Errorf("sequence %d where %d is due", f.GetPosition().GetSequence(), next)
						}
						next++
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		allowed := 40
		if db.Server == nil {
			allowed = streams
		}
		if n := queries() - before; n < 1 || n > allowed {
			t.Errorf("%d subscribers caused %d queries of the backlog, at most %d are allowed", subscribers, n, allowed)
		} else {
			t.Logf("%d subscribers caused %d queries of the backlog", subscribers, n)
		}
	})
}
