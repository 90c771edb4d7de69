package listener

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// POSTGRES.md 29: Run returns at once, whatever it is doing.
func TestShutdown(t *testing.T) {
	url := pgtest.NewDatabase(t)
	hole := pgtest.Proxy(t, url)
	hole.Blackhole(pgtest.BothWays)
	silent := pgtest.Proxy(t, url)
	refusing := pgtest.Proxy(t, url)
	refusing.Refuse()
	var probing atomic.Bool
	probe := func(ctx context.Context, _, _ string) error {
		probing.Store(true)
		<-ctx.Done()
		return ctx.Err()
	}
	for name, test := range map[string]struct {
		url   string
		probe func(ctx context.Context, notifyChannel, payload string) error
		ready func(*Listener) bool
	}{
		"waiting":            {url, nil, func(l *Listener) bool { return l.Current().Number > 0 }},
		"connecting":         {hole.URL(url), nil, func(*Listener) bool { return hole.Connections() > 0 }},
		"probing":            {url, probe, func(*Listener) bool { return probing.Load() }},
		"pinging a dead one": {silent.URL(url), nil, func(l *Listener) bool { return l.Current().Number > 0 }},
		"in backoff":         {refusing.URL(url), nil, func(l *Listener) bool { return l.State().Err != nil }},
	} {
		l, err := New(Config{URL: test.url, Probe: test.probe, PingInterval: 20 * time.Millisecond, PingTimeout: 10 * time.Second})
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
		if took := time.Since(begun); took > form(5*time.Second, time.Second) { // a ping's answer is awaited for 10 s
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
	db := pgtest.Dial(t, url)
	silent.Restore()
	hole.Restore()
	eventually(t, "all connections to end", func() bool { return listeners(t, db) == 0 })
}

// POSTGRES.md 29: so does a bus, also while the keys of a new listening do not come,
// which it asks for before the first frame.
func TestBusShutdown(t *testing.T) {
	url := pgtest.NewDatabase(t)
	l, _ := start(t, Config{URL: url})
	r := &ring{gate: make(chan struct{})}
	b := NewBus(l, busChannel, r.load, nil)
	stop := run(t, func(ctx context.Context) error { return b.Run(ctx, &sink{}) })
	if _, err := b.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the keys to be asked for", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.loads > 0
	})
	begun := time.Now()
	stop()
	if took := time.Since(begun); took > form(10*time.Second, time.Second) { // the keys never come
		t.Errorf("the shutdown took %s", took)
	}
	if b.Current().Number != 0 {
		t.Error("listening after the end")
	}
}

// POSTGRES.md 30: whoever gives up waiting leaves nothing behind that blocks.
func TestAbandonedEnsures(t *testing.T) {
	url := pgtest.NewDatabase(t)
	db := pgtest.Dial(t, url)
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
	if err := reasonOf(t, l, "a", "tls"); !errors.Is(err, ErrNotListening) {
		t.Fatalf("Ensure = %v, want ErrNotListening", err)
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
	l, _ := start(t, Config{URL: url})
	ensure(t, l, "a")
}
