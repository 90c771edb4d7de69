package listener

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
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
			within(t, 8*time.Second, "the loss to be noticed", func() bool { return l.Current().Number == 0 })
			proxy.Restore()
			within(t, 10*time.Second, "the next listening", func() bool { return l.Current().Number > before.Number })
			ensure(t, l, "a")
			notify(t, connect(t, url), "a", "after")
			eventually(t, "a notification", func() bool { return r.has("after") })
		})
	}
}

// POSTGRES.md 20: slow is not dead.
func TestSlowNetworkIsNoLoss(t *testing.T) {
	url := pgtest.NewDatabase(t)
	proxy := pgtest.Proxy(t, url)
	proxy.Delay(500 * time.Millisecond)
	l, _ := start(t, Config{URL: proxy.URL(url), PingInterval: 200 * time.Millisecond})
	r := attach(t, l, "a")
	first := ensure(t, l, "a")
	db := connect(t, url)
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
	db := connect(t, url)
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
		within(t, 10*time.Second, "the next listening after: "+name, func() bool { return l.Current().Number > before.Number })
		ensure(t, l, "a")
		l.Release("a")
		notify(t, db, "a", name)
		eventually(t, "a notification after: "+name, func() bool { return r.has(name) })
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
		within(t, 10*time.Second, "recovery from "+code, func() bool { return l.Current().Number > before.Number })
	}
	if logs.count("channel reconnect a") == 0 {
		t.Fatal("nothing was logged")
	}
}

// S159, POSTGRES.md 24: LISTEN fails with 58P01 for a while. Nothing is
// acknowledged, the queue's usage is asked for, and it recovers by itself.
func TestListenFailsForAWhile(t *testing.T) {
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
	if _, err := l.Ensure(t.Context(), "a"); !errors.Is(err, ErrNotListening) || !strings.Contains(err.Error(), "58P01") {
		t.Fatalf("Ensure = %v, want ErrNotListening and the server's error", err)
	}
	if l.Current().Number != 0 {
		t.Fatal("listening although LISTEN failed")
	}
	if n, u := listens.Load(), usages.Load(); n < 2 || n > 15 || u < n-1 || u > n {
		t.Fatalf("%d LISTENs and %d questions for the usage in a second", n, u)
	}
	if logs.count("could not access status of transaction 4711") == 0 {
		t.Fatal("the server's message is not in the log")
	}
	w.set(nil, nil)
	ensure(t, l, "a")
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
	notify(t, connect(t, url), "a", "heard")
	eventually(t, "a notification", func() bool { return r.has("heard") })
}

// POSTGRES.md 26: a transaction pooler hides notifications. The first connection
// ends Run with an error that names it and the option.
func TestTransactionPoolerIsNamed(t *testing.T) {
	url := pgtest.NewDatabase(t)
	w := newWire(t, url)
	w.set(nil, func(m pgproto3.BackendMessage) pgproto3.BackendMessage {
		switch m := m.(type) {
		case *pgproto3.NotificationResponse:
			return nil
		case *pgproto3.BackendKeyData:
			return &pgproto3.BackendKeyData{ProcessID: 7, SecretKey: m.SecretKey}
		}
		return m
	})
	l, err := New(Config{URL: w.url(url), Probe: prober(url), ProbeTimeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ensured := make(chan error, 1)
	go func() { _, err := l.Ensure(context.Background(), "a"); ensured <- err }()
	var deaf *ProbeError
	err = l.Run(t.Context())
	if !errors.As(err, &deaf) || !strings.Contains(err.Error(), "pooler in transaction mode") || !strings.Contains(err.Error(), "--listen-database-url") {
		t.Fatalf("Run = %v, want a ProbeError that names the pooler and the option", err)
	}
	if err := <-ensured; !errors.Is(err, ErrNotListening) {
		t.Fatalf("Ensure = %v, want ErrNotListening", err)
	}
	db := connect(t, url)
	if query[int](t, db, "select count(*) from pg_stat_activity where application_name like 'fanfare-listen/%' and datname = current_database()") != 0 {
		eventually(t, "the connection to end", func() bool {
			return query[int](t, db, "select count(*) from pg_stat_activity where application_name like 'fanfare-listen/%' and datname = current_database()") == 0
		})
	}
}

// A pooler in session mode shows another process id too, and works: one warning.
func TestSessionPoolerIsWarnedOf(t *testing.T) {
	url := pgtest.NewDatabase(t)
	w := newWire(t, url)
	w.set(nil, func(m pgproto3.BackendMessage) pgproto3.BackendMessage {
		if m, ok := m.(*pgproto3.BackendKeyData); ok {
			return &pgproto3.BackendKeyData{ProcessID: 7, SecretKey: m.SecretKey}
		}
		return m
	})
	l, logs := start(t, Config{URL: w.url(url), Probe: prober(url)})
	ensure(t, l, "a")
	if s := l.State(); !s.Pooled || s.ProbeErr != nil {
		t.Fatalf("state %+v, want Pooled and no probe error", s)
	}
	db := connect(t, url)
	for range 2 {
		pinned := query[bool](t, db, `select count(*) = 1 from pg_stat_activity a where application_name like 'fanfare-listen/%' and datname = current_database()`)
		if !pinned {
			t.Fatal("not one listener")
		}
		before := l.Current().Number
		killListeners(t, db)
		eventually(t, "the next listening", func() bool { return l.Current().Number > before })
	}
	if n := logs.count("stands between"); n != 1 {
		t.Fatalf("%d warnings of a pooler, want 1", n)
	}
}

// The two URLs lead to different databases.
func TestOtherDatabaseIsNamed(t *testing.T) {
	url, other := pgtest.NewDatabase(t), pgtest.NewDatabase(t)
	l, err := New(Config{URL: url, Probe: prober(other), ProbeTimeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	var deaf *ProbeError
	if err := l.Run(t.Context()); !errors.As(err, &deaf) || !strings.Contains(err.Error(), "different databases") || !strings.Contains(err.Error(), "--listen-database-url") {
		t.Fatalf("Run = %v, want a ProbeError that names the databases", err)
	}
}

// A probe that could not be committed says nothing about LISTEN: the listener
// works, and the state has the detail until a probe gets through.
func TestProbeThatCannotCommit(t *testing.T) {
	url := pgtest.NewDatabase(t)
	var broken atomic.Bool
	broken.Store(true)
	good := prober(url)
	l, _ := start(t, Config{URL: url, PingInterval: 50 * time.Millisecond, Probe: func(ctx context.Context, name, payload string) error {
		if broken.Load() {
			return errors.New("the pool is away")
		}
		return good(ctx, name, payload)
	}})
	first := ensure(t, l, "a")
	if err := l.State().ProbeErr; err == nil || !strings.Contains(err.Error(), "the pool is away") {
		t.Fatalf("probe error %v, want the pool's", err)
	}
	broken.Store(false)
	eventually(t, "a probe to get through", func() bool { return l.State().ProbeErr == nil })
	if l.Current() != first {
		t.Fatal("probing cost the connection")
	}
}

// Later probes gate nothing, whatever becomes of them.
func TestLaterProbesAreAside(t *testing.T) {
	url, other := pgtest.NewDatabase(t), pgtest.NewDatabase(t)
	var wrong atomic.Bool
	good, bad := prober(url), prober(other)
	l, logs := start(t, Config{URL: url, PingInterval: 50 * time.Millisecond, ProbeTimeout: 100 * time.Millisecond, Probe: func(ctx context.Context, name, payload string) error {
		if wrong.Load() {
			return bad(ctx, name, payload)
		}
		return good(ctx, name, payload)
	}})
	r := attach(t, l, "a")
	ensure(t, l, "a")
	wrong.Store(true)
	db := connect(t, url)
	killListeners(t, db)
	eventually(t, "the next listening", func() bool { return l.Current().Number == 2 })
	eventually(t, "the probe to fail", func() bool { return l.State().ProbeErr != nil })
	notify(t, db, "a", "still heard")
	eventually(t, "a notification", func() bool { return r.has("still heard") })
	if n := l.Current().Number; n != 2 || logs.count("probe did not arrive") != 1 {
		t.Fatalf("connection %d, log %v", n, logs.lines())
	}
	if n := query[int](t, db, "select count(*) from pg_stat_activity where query ilike 'listen %probe%'"); n != 0 {
		t.Fatalf("%d sessions end with a probe's LISTEN", n)
	}
}

// prober notifies through a URL, as a pool would.
func prober(url string) func(context.Context, string, string) error {
	return func(ctx context.Context, name, payload string) error {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(context.Background()) }()
		_, err = conn.Exec(ctx, "select pg_notify($1, $2)", name, payload)
		return err
	}
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
	eventually(t, "the next listening", func() bool { return l.Current().Number == 2 })
}

// S55, POSTGRES.md 25: of two hosts the first is a standby. The listener goes to
// the primary; alone with a standby it listens to nobody and says why.
func TestStandbyIsRefused(t *testing.T) {
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
	if _, err := alone.Ensure(t.Context(), "a"); !errors.Is(err, ErrNotListening) || !strings.Contains(err.Error(), "in recovery") {
		t.Fatalf("Ensure at a standby = %v, want ErrNotListening because of the recovery", err)
	}
	if n, limit := len(logs.lines()), int(time.Since(begun)/time.Second)+6; n > limit {
		t.Fatalf("%d log lines in %s", n, time.Since(begun))
	}
	// The old primary goes, the standby is promoted: both find it.
	primary.Stop("immediate")
	exec(t, connect(t, standby.URL("postgres")), "select pg_promote()")
	within(t, 10*time.Second, "the switch to the new primary", func() bool { return alone.Current().Number == 1 && l.Current().Number == 2 })
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
	server := pgtest.Start(t)
	db := connect(t, server.URL("postgres"))
	exec(t, db, `create role fanfare login`)
	for _, setting := range []string{"idle_session_timeout = '500ms'", "statement_timeout = '1ms'", "idle_in_transaction_session_timeout = '200ms'", "lock_timeout = '1ms'", "client_encoding = 'LATIN1'"} {
		exec(t, db, "alter role fanfare set "+setting)
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
	server := pgtest.Start(t, "max_connections=5", "superuser_reserved_connections=0", "max_wal_senders=0")
	url := server.URL("postgres")
	l, logs := start(t, Config{URL: url, EnsureTimeout: 300 * time.Millisecond})
	ensure(t, l, "a")
	db := connect(t, url)
	killListeners(t, db)
	var all []*pgx.Conn
	eventually(t, "all connections to be taken", func() bool {
		conn, err := pgx.Connect(t.Context(), url)
		if err == nil {
			all = append(all, conn)
			killListeners(t, db)
		}
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

// POSTGRES.md 29: Run returns at once, whatever it is doing.
func TestShutdown(t *testing.T) {
	url := pgtest.NewDatabase(t)
	hole := pgtest.Proxy(t, url)
	hole.Blackhole(pgtest.BothWays)
	silent := pgtest.Proxy(t, url)
	refusing := pgtest.Proxy(t, url)
	refusing.Refuse()
	for name, test := range map[string]struct {
		url   string
		ready func(*Listener) bool
	}{
		"waiting":            {url, func(l *Listener) bool { return l.Current().Number > 0 }},
		"connecting":         {hole.URL(url), func(*Listener) bool { return hole.Connections() > 0 }},
		"pinging a dead one": {silent.URL(url), func(l *Listener) bool { return l.Current().Number > 0 }},
		"in backoff":         {refusing.URL(url), func(l *Listener) bool { return l.State().Err != nil }},
	} {
		l, err := New(Config{URL: test.url, PingInterval: 20 * time.Millisecond, PingTimeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.Run(ctx) }()
		ensured := make(chan error, 1)
		go func() { _, err := l.Ensure(context.Background(), "a"); ensured <- err }()
		eventually(t, "the state to test: "+name, func() bool { return test.ready(l) })
		if name == "pinging a dead one" {
			silent.Blackhole(pgtest.BothWays)
			idle := time.NewTimer(100 * time.Millisecond)
			<-idle.C // a ping has begun by then
		}
		begun := time.Now()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s: Run = %v", name, err)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("%s: the shutdown took %s", name, took)
		}
		<-ensured
		if _, err := l.Ensure(t.Context(), "a"); !errors.Is(err, ErrNotListening) {
			t.Errorf("%s: Ensure after the end = %v", name, err)
		}
		if err := l.Run(t.Context()); err == nil {
			t.Errorf("%s: a second Run did not fail", name)
		}
	}
	db := connect(t, url)
	silent.Restore()
	hole.Restore()
	eventually(t, "all connections to end", func() bool {
		return query[int](t, db, "select count(*) from pg_stat_activity where application_name like 'fanfare-listen/%' and datname = current_database()") == 0
	})
}

// POSTGRES.md 30: whoever gives up waiting leaves nothing behind that blocks.
func TestAbandonedEnsures(t *testing.T) {
	url := pgtest.NewDatabase(t)
	db := connect(t, url)
	l, _ := start(t, Config{URL: url})
	ensure(t, l, "a")
	var callers sync.WaitGroup
	for i := range 200 {
		callers.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i%10)*100*time.Microsecond)
			defer cancel()
			name := fmt.Sprintf("many_%d", i)
			if _, err := l.Ensure(ctx, name); err == nil {
				l.Release(name)
			} else if !errors.Is(err, ErrNotListening) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Ensure = %v, want ErrNotListening and the deadline", err)
			}
		})
	}
	callers.Wait()
	r := attach(t, l, "a")
	ensure(t, l, "a")
	notify(t, db, "a", "alive")
	eventually(t, "a notification", func() bool { return r.has("alive") })
	l.mu.Lock()
	left := len(l.channels)
	l.mu.Unlock()
	if left != 1 {
		t.Fatalf("%d notify channels are wanted, want 1", left)
	}
}

// The listener's TLS settings come from the URL, and a certificate that does not
// fit is an error like others.
func TestServerWithoutTLS(t *testing.T) {
	url := strings.Replace(pgtest.NewDatabase(t), "sslmode=disable", "sslmode=require", 1)
	l, _ := start(t, Config{URL: url, EnsureTimeout: 200 * time.Millisecond})
	_, err := l.Ensure(t.Context(), "a")
	if !errors.Is(err, ErrNotListening) || !strings.Contains(strings.ToLower(err.Error()), "tls") {
		t.Fatalf("Ensure = %v, want ErrNotListening because of TLS", err)
	}
	if l.connection.TLSConfig == nil || l.connection.TLSConfig.MinVersion > tls.VersionTLS13 {
		t.Fatal("the URL's TLS settings were not taken")
	}
}

func TestConfigurationErrors(t *testing.T) {
	for _, url := range []string{"", "postgres://u:s3cret@h:notaport/d", "mysql://u:s3cret@h/d\x7f"} {
		_, err := New(Config{URL: url})
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("New with URL %q: %v, want an error without the password", url, err)
		}
	}
	// Settings of the pool may stand in a URL that both use.
	url := pgtest.NewDatabase(t) + "&pool_max_conns=3&application_name=mine&default_query_exec_mode=exec"
	l, _ := start(t, Config{URL: url, Logger: slog.Default()})
	ensure(t, l, "a")
}
