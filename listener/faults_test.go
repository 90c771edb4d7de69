package listener

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// POSTGRES.md 19, 20: a connection that is dead in any direction looks alive
// until somebody asks. Default times, since they are the promise.
func TestHalfOpenConnection(t *testing.T) {
	for name, directions := range map[string]pgtest.Direction{
		"both": pgtest.BothWays, "to server": pgtest.ToServer, "to client": pgtest.ToClient,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.NewDatabase(t)
			proxy := pgtest.Proxy(t, url)
			l, _ := start(t, Config{URL: proxy.URL(url)})
			r := attach(t, l, "a")
			before := ensure(t, l, "a")
			proxy.Blackhole(directions)
			within(t, form(patience, 8*time.Second), "the loss to be noticed", func() bool { return l.Current().Number == 0 })
			proxy.Restore()
			within(t, form(patience, 10*time.Second), "the next listening", func() bool { return l.Current().Number > before.Number })
			r.hears(t, l, pgtest.Dial(t, url), "a", "after")
		})
	}
}

// Symptom: a dead connection was noticed only after 8 s and more. Cause: it was
// met by another command than the ping, which had a timeout of its own.
func TestHalfOpenConnectionMeetsAnyCommand(t *testing.T) {
	for name, test := range map[string]struct {
		// interval is the time until the next ping, and the probe that goes before it.
		interval time.Duration
		command  func(*Listener)
	}{
		"probe":  {100 * time.Millisecond, func(*Listener) {}},
		"listen": {time.Hour, func(l *Listener) { go func() { _, _ = l.Ensure(context.Background(), "b") }() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.NewDatabase(t)
			proxy := pgtest.Proxy(t, url)
			l, _ := start(t, Config{
				URL: proxy.URL(url), Probe: prober(url),
				PingInterval: test.interval, PingTimeout: 200 * time.Millisecond, CommandTimeout: time.Minute,
			})
			ensure(t, l, "a")
			killListeners(t, pgtest.Dial(t, url))
			eventually(t, "a connection that has not been probed", func() bool { return l.Current().Number >= 2 })
			number := l.Current().Number
			proxy.Blackhole(pgtest.ToServer)
			test.command(l)
			// Before CommandTimeout, and the ping an hour later.
			within(t, 40*time.Second, "the loss to be noticed", func() bool { return l.Current().Number == 0 })
			proxy.Restore()
			eventually(t, "the next listening", func() bool { return l.Current().Number > number })
		})
	}
}

// POSTGRES.md 20: slow is not dead.
func TestSlowNetworkIsNoLoss(t *testing.T) {
	t.Parallel()
	url := pgtest.NewDatabase(t)
	proxy := pgtest.Proxy(t, url)
	proxy.Delay(300 * time.Millisecond)
	l, _ := start(t, Config{URL: proxy.URL(url), PingInterval: 200 * time.Millisecond})
	r := attach(t, l, "a")
	first := ensure(t, l, "a")
	db := pgtest.Dial(t, url)
	for i := range 3 {
		marker := fmt.Sprint(i)
		notify(t, db, "a", marker)
		eventually(t, "a notification over a slow network", func() bool { return r.has(marker) })
	}
	if got := l.Current(); got != first {
		t.Fatalf("listening %+v after delays, want still %+v", got, first)
	}
}

// S52: every kind of error means reconnect; none is fatal to the process.
func TestEveryErrorMeansReconnect(t *testing.T) {
	url := pgtest.NewDatabase(t)
	w := newWire(t, url)
	l, _ := start(t, Config{URL: w.url(url), PingInterval: 100 * time.Millisecond, PingTimeout: 500 * time.Millisecond, HealthyAfter: time.Nanosecond})
	r := attach(t, l, "a")
	db := pgtest.Dial(t, url)
	breaks := map[string]func(*wireLink){
		"end of file":                func(k *wireLink) { _ = k.client.Close() },
		"reset":                      func(k *wireLink) { _ = k.client.(*net.TCPConn).SetLinger(0); _ = k.client.Close() },
		"end of file in mid-message": func(k *wireLink) { k.raw([]byte{'A', 0, 0, 1, 0, 'x', 'y'}); _ = k.client.Close() },
		"stops in mid-message":       func(k *wireLink) { k.raw([]byte{'A', 0, 0, 1, 0, 'x', 'y'}) },
		"garbage":                    func(k *wireLink) { k.raw([]byte("HTTP/1.1 502 Bad Gateway\r\n\r\n")) },
		"message of impossible size": func(k *wireLink) { k.raw([]byte{'A', 0xff, 0xff, 0xff, 0xff}) },
		"TLS alert":                  func(k *wireLink) { k.raw([]byte{21, 3, 3, 0, 2, 2, 40}); _ = k.client.Close() },
		"admin shutdown":             func(k *wireLink) { k.write(fatal("57P01")); _ = k.client.Close() },
		"crash shutdown":             func(k *wireLink) { k.write(fatal("57P02")); _ = k.client.Close() },
		"cannot connect now":         func(k *wireLink) { k.write(fatal("57P03")); _ = k.client.Close() },
		"idle session timeout":       func(k *wireLink) { k.write(fatal("57P05")); _ = k.client.Close() },
		"too many connections":       func(k *wireLink) { k.write(fatal("53300")); _ = k.client.Close() },
		"an answer to no question": func(k *wireLink) {
			k.write(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
			k.write(fatal("XX000"))
		},
		"a broken notification queue": func(k *wireLink) { k.write(fatal("58P01")) },
	}
	for name, breakIt := range breaks {
		before := ensure(t, l, "a")
		l.Release("a")
		w.each(breakIt)
		eventually(t, "the next listening after: "+name, func() bool { return l.Current().Number > before.Number })
		r.hears(t, l, db, "a", name)
	}
}

// A server that cannot be connected to for a while, for any reason, is tried
// again.
func TestEveryConnectErrorIsRetried(t *testing.T) {
	url := pgtest.NewDatabase(t)
	w := newWire(t, url)
	l, logs := start(t, Config{URL: w.url(url)})
	ensure(t, l, "a")
	for _, code := range []string{"57P03", "53300", "28000", "28P01", "3D000", "42501", "XX000"} {
		before := l.Current()
		w.set(nil, func(m pgproto3.BackendMessage) pgproto3.BackendMessage {
			if _, ok := m.(*pgproto3.ReadyForQuery); ok {
				return fatal(code)
			}
			return m
		})
		w.each(func(k *wireLink) { _ = k.client.Close() })
		eventually(t, "the refusal to be logged or known", func() bool {
			err := l.State().Err
			return err != nil && strings.Contains(err.Error(), code)
		})
		w.set(nil, nil)
		eventually(t, "recovery from "+code, func() bool { return l.Current().Number > before.Number })
	}
	if logs.count("channel reconnect a") == 0 {
		t.Fatal("nothing was logged")
	}
}

// S159, POSTGRES.md 24: LISTEN fails with 58P01 for a while. Nothing is
// acknowledged, the queue's usage is asked for, and it recovers by itself.
func TestListenFailsForAWhile(t *testing.T) {
	t.Parallel()
	url := pgtest.NewDatabase(t)
	w := newWire(t, url)
	var usages, listens atomic.Int64
	w.set(func(sql string) []pgproto3.BackendMessage {
		switch {
		case isListen(sql):
			listens.Add(1)
			return refuse("58P01", "could not access status of transaction 4711")
		case strings.HasPrefix(sql, "select pg_notification_queue_usage()"):
			usages.Add(1)
		}
		return nil
	}, nil)
	l, logs := start(t, Config{URL: w.url(url), EnsureTimeout: time.Second})
	begun := time.Now()
	if err := reasonOf(t, l, "a", "58p01"); !errors.Is(err, ErrNotListening) {
		t.Fatalf("Ensure = %v, want ErrNotListening", err)
	}
	eventually(t, "another LISTEN", func() bool { return listens.Load() >= 2 })
	if l.Current().Number != 0 {
		t.Fatal("listening although LISTEN failed")
	}
	// Attempts become rare after the first second.
	n, u := listens.Load(), usages.Load()
	if took := time.Since(begun); n > 15+int64(took/time.Second) || u < n-1 || u > n {
		t.Fatalf("%d LISTENs and %d questions for the usage in %s", n, u, took)
	}
	if logs.count("could not access status of transaction 4711") == 0 {
		t.Fatal("the server's message is not in the log")
	}
	w.set(nil, nil)
	// The pause before the next attempt may be longer than one Ensure waits.
	eventually(t, "recovery", func() bool {
		_, err := l.Ensure(t.Context(), "a")
		return err == nil
	})
}

// The first LISTEN of a connection goes with the question for the origin. Which of
// them fails is told, with what helps.
func TestFirstRoundTripFails(t *testing.T) {
	url := pgtest.NewDatabase(t)
	lost, _ := start(t, Config{URL: url, OriginSQL: "select gone.origin()", EnsureTimeout: 300 * time.Millisecond})
	if err := reasonOf(t, lost, "a", "origin"); !errors.Is(err, ErrNotListening) || !strings.Contains(err.Error(), "has the schema been migrated") {
		t.Errorf("Ensure without a schema = %v", err)
	}

	w := newWire(t, url)
	var usages atomic.Int64
	w.set(func(sql string) []pgproto3.BackendMessage {
		switch {
		case isListen(sql):
			return append([]pgproto3.BackendMessage{
				&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("origin")}}},
				&pgproto3.DataRow{Values: [][]byte{[]byte("5")}},
				&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")},
			}, refuse("58P01", "could not access status of transaction 4711")...)
		case strings.HasPrefix(sql, "select pg_notification_queue_usage()"):
			usages.Add(1)
		}
		return nil
	}, nil)
	deaf, _ := start(t, Config{URL: w.url(url), OriginSQL: "select 5", EnsureTimeout: 300 * time.Millisecond})
	if err := reasonOf(t, deaf, "a", "4711"); !errors.Is(err, ErrNotListening) || strings.Contains(err.Error(), "origin") {
		t.Errorf("Ensure where LISTEN fails = %v", err)
	}
	if deaf.Current().Number != 0 || usages.Load() == 0 {
		t.Errorf("listening %d although LISTEN failed, %d questions for the usage of the queue", deaf.Current().Number, usages.Load())
	}
	w.set(nil, nil)
	eventually(t, "recovery", func() bool { return deaf.Current() == backlog.Listening{Number: 1, Origin: 5} })
}

// A failing LISTEN for one more channel must not leave the others unheard.
func TestLaterListenFails(t *testing.T) {
	url := pgtest.NewDatabase(t)
	w := newWire(t, url)
	l, _ := start(t, Config{URL: w.url(url)})
	r := attach(t, l, "a")
	ensure(t, l, "a")
	var failed atomic.Bool
	w.set(func(sql string) []pgproto3.BackendMessage {
		if isListen(sql) && failed.CompareAndSwap(false, true) {
			return refuse("XX000", "out of luck")
		}
		return nil
	}, nil)
	if got := ensure(t, l, "b"); got.Number != 2 {
		t.Fatalf("b is listened to on connection %d, want the second", got.Number)
	}
	ensure(t, l, "a")
	notify(t, pgtest.Dial(t, url), "a", "heard")
	eventually(t, "a notification", func() bool { return r.has("heard") })
}

// A pooler may give the session to somebody else, or something may reset it: the
// next ping notices that it does not listen any more.
func TestLostRegistrationIsNoticed(t *testing.T) {
	url := pgtest.NewDatabase(t)
	w := newWire(t, url)
	l, _ := start(t, Config{URL: w.url(url), PingInterval: 50 * time.Millisecond})
	ensure(t, l, "a")
	var swallowed atomic.Bool
	w.set(func(sql string) []pgproto3.BackendMessage {
		if strings.Contains(sql, `listen "b"`) && swallowed.CompareAndSwap(false, true) {
			return []pgproto3.BackendMessage{&pgproto3.CommandComplete{CommandTag: []byte("LISTEN")}, &pgproto3.ReadyForQuery{TxStatus: 'I'}}
		}
		return nil
	}, nil)
	ensure(t, l, "b")
	eventually(t, "the next listening", func() bool { return l.Current().Number >= 2 })
}

// S55, POSTGRES.md 25: of two hosts the first is a standby. The listener goes to
// the primary; alone with a standby it listens to nobody and says why.
func TestStandbyIsRefused(t *testing.T) {
	t.Parallel()
	primary := pgtest.Start(t)
	standby := primary.Standby()
	host := func(u string) string { return strings.Split(strings.TrimPrefix(u, "postgres://postgres@"), "/")[0] }
	both := fmt.Sprintf("postgres://postgres@%s,%s/postgres?sslmode=disable", host(standby.URL("")), host(primary.URL("")))
	l, _ := start(t, Config{URL: both, OriginSQL: "select inet_server_port()"})
	if got := ensure(t, l, "a"); fmt.Sprint(got.Origin) != strings.Split(host(primary.URL("")), ":")[1] {
		t.Fatalf("listening at port %d, want the primary's, %s", got.Origin, host(primary.URL("")))
	}

	alone, logs := start(t, Config{URL: standby.URL("postgres"), EnsureTimeout: 3 * time.Second})
	begun := time.Now()
	if err := reasonOf(t, alone, "a", "in recovery"); !errors.Is(err, ErrNotListening) {
		t.Fatalf("Ensure at a standby = %v, want ErrNotListening", err)
	}
	if n, limit := len(logs.lines()), int(time.Since(begun)/time.Second)+6; n > limit {
		t.Fatalf("%d log lines in %s", n, time.Since(begun))
	}
	// The old primary goes, the standby is promoted: both find it.
	primary.Stop("immediate")
	pgtest.Exec(t, pgtest.Dial(t, standby.URL("postgres")), "select pg_promote()")
	eventually(t, "the switch to the new primary", func() bool { return alone.Current().Number == 1 && l.Current().Number == 2 })
}

// A demoted server keeps its connections; the ping asks.
func TestDemotionIsNoticed(t *testing.T) {
	url := pgtest.NewDatabase(t)
	w := newWire(t, url)
	l, _ := start(t, Config{URL: w.url(url), PingInterval: 50 * time.Millisecond})
	ensure(t, l, "a")
	w.set(func(sql string) []pgproto3.BackendMessage {
		if !strings.HasPrefix(sql, "select pg_is_in_recovery(), pg_notification_queue_usage()") {
			return nil
		}
		return []pgproto3.BackendMessage{
			&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("a")}, {Name: []byte("b")}, {Name: []byte("c")}}},
			&pgproto3.DataRow{Values: [][]byte{[]byte("t"), []byte("0"), []byte("1")}},
			&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")},
			&pgproto3.ReadyForQuery{TxStatus: 'I'},
		}
	}, nil)
	eventually(t, "the loss", func() bool {
		s := l.State()
		return s.Reconnects > 0 || errors.Is(s.Err, errRecovery)
	})
	w.set(nil, nil)
	ensure(t, l, "a")
}

// S54, POSTGRES.md 23: timeouts of the role do not apply.
func TestTimeoutsOfTheRole(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	db := pgtest.Dial(t, server.URL("postgres"))
	pgtest.Exec(t, db, `create role fanfare login`)
	for _, setting := range []string{"idle_session_timeout = '500ms'", "statement_timeout = '1ms'", "idle_in_transaction_session_timeout = '200ms'", "lock_timeout = '1ms'", "client_encoding = 'LATIN1'"} {
		pgtest.Exec(t, db, "alter role fanfare set "+setting)
	}
	url := strings.Replace(server.URL("postgres"), "postgres@", "fanfare@", 1)
	l, _ := start(t, Config{URL: url, PingInterval: 2 * time.Second})
	r := attach(t, l, "a")
	first := ensure(t, l, "a")
	idle := time.NewTimer(1500 * time.Millisecond)
	<-idle.C // what is tested is that idleness does nothing
	notify(t, db, "a", "grüße")
	eventually(t, "a notification", func() bool { return r.has("grüße") })
	if got := l.Current(); got != first {
		t.Fatalf("listening %+v, want still %+v", got, first)
	}
}

// POSTGRES.md 56: no connection is left for the listener.
func TestTooManyConnections(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, "max_connections=5", "superuser_reserved_connections=0", "max_wal_senders=0")
	url := server.URL("postgres")
	l, logs := start(t, Config{URL: url, EnsureTimeout: 300 * time.Millisecond})
	ensure(t, l, "a")
	db := pgtest.Dial(t, url)
	killListeners(t, db)
	var all []*pgx.Conn
	eventually(t, "all connections to be taken", func() bool {
		conn, err := pgx.Connect(t.Context(), url)
		if err == nil {
			all = append(all, conn)
		}
		killListeners(t, db)
		return len(all) == 4
	})
	eventually(t, "the refusal", func() bool { return logs.count("53300") > 0 || strings.Contains(fmt.Sprint(l.State().Err), "53300") })
	for _, conn := range all {
		if err := conn.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "recovery", func() bool { return l.Current().Number > 1 })
}
