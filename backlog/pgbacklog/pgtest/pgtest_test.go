package pgtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

// crashVariable makes the test binary start a server, print where it lives and
// die without cleaning up.
const crashVariable = "PGTEST_CRASH"

func TestMain(m *testing.M) {
	code := Run(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func TestDatabasesAreApartAndDropped(t *testing.T) {
	var dropped string
	t.Run("use", func(t *testing.T) {
		a, b := NewDatabase(t), NewDatabase(t)
		if a == b {
			t.Fatal("two databases have one URL")
		}
		conn := Dial(t, a)
		if _, err := conn.Exec(t.Context(), "set fsync_is_on to 1"); err == nil {
			t.Fatal("an unknown setting was accepted")
		}
		if _, err := conn.Exec(t.Context(), "create table x()"); err != nil {
			t.Fatal(err)
		}
		var encoding, fsync string
		if err := conn.QueryRow(t.Context(), "select current_setting('server_encoding'), current_setting('fsync')").Scan(&encoding, &fsync); err != nil {
			t.Fatal(err)
		}
		if encoding != "UTF8" || fsync != "on" {
			t.Fatalf("encoding %s, fsync %s; want UTF8, on", encoding, fsync)
		}
		if n := Query[int](t, Dial(t, b), "select count(*) from pg_class where relname = 'x'"); n != 0 {
			t.Fatal("the second database has the first one's table")
		}
		dropped = a
	})
	if conn, err := pgx.Connect(t.Context(), dropped); err == nil {
		_ = conn.Close(t.Context())
		t.Fatal("the database is still there after its test")
	}
}

func TestServerStopsAndStartsAgain(t *testing.T) {
	s := Start(t, "max_connections=17")
	conn := Dial(t, s.URL("postgres"))
	if n := Query[int](t, conn, "select current_setting('max_connections')::int"); n != 17 {
		t.Fatalf("max_connections is %d, want the test's 17", n)
	}
	if _, err := conn.Exec(t.Context(), "create table kept as select 1"); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"fast", "immediate"} {
		s.Stop(mode)
		if c, err := pgx.Connect(t.Context(), s.URL("postgres")); err == nil {
			_ = c.Close(t.Context())
			t.Fatalf("connected to a server stopped with %s", mode)
		}
		s.StartAgain()
		if n := Query[int](t, Dial(t, s.URL("postgres")), "select count(*) from kept"); n != 1 {
			t.Fatalf("%d rows after a restart (%s), want 1", n, mode)
		}
	}
	_ = s.NewDatabase(t)
}

// Symptom: a server did not start, or not again: its address was in use. Cause: the
// kernel had given its port, free at the moment, to another test.
func TestFreePortsAreNotTheKernels(t *testing.T) {
	first := firstKernelPort
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		if _, err := fmt.Sscan(string(text), &first); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[int]bool{}
	for range 1000 {
		port, err := freePort()
		if err != nil || port >= first || seen[port] {
			t.Fatalf("port %d, %v, seen before: %t; the kernel gives those from %d on", port, err, seen[port], first)
		}
		seen[port] = true
	}
}

// The template was once removed by its own watchdog, whose end of the pipe the
// garbage collector had closed.
func TestTemplateSurvivesCollections(t *testing.T) {
	Start(t)
	for range 3 {
		runtime.GC()
	}
	Start(t)
}

func TestStandbyFollowsAndPromotes(t *testing.T) {
	s := Start(t)
	standby := s.Standby()
	primary, follower := Dial(t, s.URL("postgres")), Dial(t, standby.URL("postgres"))
	if _, err := primary.Exec(t.Context(), "create table followed()"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the standby to follow", func() bool {
		return Query[int](t, follower, "select count(*) from pg_class where relname = 'followed' and pg_is_in_recovery()") == 1
	})
	if _, err := follower.Exec(t.Context(), "select pg_promote()"); err != nil {
		t.Fatal(err)
	}
	if n := Query[int](t, follower, "select count(*) from pg_class where relname = 'followed' and not pg_is_in_recovery()"); n != 1 {
		t.Fatal("the promoted standby is in recovery or lost its table")
	}
}

func TestProxyFaults(t *testing.T) {
	url := NewDatabase(t)
	p := Proxy(t, url)
	conn := Dial(t, p.URL(url))
	if n := Query[int](t, conn, "select 1"); n != 1 {
		t.Fatal("no answer through the proxy")
	}

	for _, way := range []Direction{ToServer, ToClient, BothWays} {
		p.Blackhole(way)
		answer := make(chan error, 1)
		go func() {
			_, err := conn.Exec(context.Background(), "select 1")
			answer <- err
		}()
		select {
		case err := <-answer:
			t.Fatalf("an answer came through a black hole: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		p.Restore()
		if err := <-answer; err != nil {
			t.Fatalf("what was held was lost: %v", err)
		}
	}

	p.Delay(50 * time.Millisecond)
	begun := time.Now()
	Query[int](t, conn, "select 1")
	if took := time.Since(begun); took < 100*time.Millisecond {
		t.Fatalf("a round trip with 50 ms of delay each way took %s", took)
	}
	p.Restore()

	for name, cut := range map[string]func(){"cut": p.Cut, "reset": p.Reset} {
		conn := Dial(t, p.URL(url))
		cut()
		if _, err := conn.Exec(t.Context(), "select 1"); err == nil {
			t.Fatalf("a connection survived a %s", name)
		}
	}
	eventually(t, "the proxy to drop its connections", func() bool { return p.Connections() == 0 })

	p.Refuse()
	if c, err := pgx.Connect(t.Context(), p.URL(url)); err == nil {
		_ = c.Close(t.Context())
		t.Fatal("connected through a refusing proxy")
	}
	p.Restore()
	Dial(t, p.URL(url))
}

// What the trigger asks for is done, on its connection alone the answer is missing,
// and it comes when the proxy is restored or never when it is cut.
func TestProxyHoldsAReply(t *testing.T) {
	url := NewDatabase(t)
	p := Proxy(t, url)
	Exec(t, Dial(t, url), "create table done (what text)")
	for name, test := range map[string]struct {
		end     func()
		answers bool
	}{
		"restored": {p.Restore, true},
		"cut":      {p.Cut, false},
	} {
		conn, other := Dial(t, p.URL(url)), Dial(t, p.URL(url))
		triggered := p.HoldReply(name + " marker")
		Exec(t, conn, "insert into done values ($1)", name+" mark") // not the trigger
		answer := make(chan error, 1)
		go func() {
			_, err := conn.Exec(context.Background(), "insert into done values ($1)", name+" marker")
			answer <- err
		}()
		<-triggered
		eventually(t, "the statement to be done", func() bool {
			return Query[int](t, other, "select count(*) from done where what = $1", name+" marker") == 1
		})
		select {
		case err := <-answer:
			t.Fatalf("%s: an answer came while it was held: %v", name, err)
		default:
		}
		test.end()
		if err := <-answer; (err == nil) != test.answers {
			t.Errorf("%s: the statement ended with %v", name, err)
		}
	}
}

// A trigger is found across the chunks that bytes happen to come in.
func TestProxyFindsATriggerInPieces(t *testing.T) {
	p := &ProxyServer{}
	triggered := p.HoldReply("abcd")
	var l link
	for _, chunk := range []string{"xxab", "c", "abcabc", "d"} {
		if l.holdsReply {
			t.Fatalf("held before %q", chunk)
		}
		p.lookForTrigger(&l, []byte(chunk))
	}
	<-triggered
	if !l.holdsReply {
		t.Error("the trigger was not found")
	}
}

func TestProxyTarget(t *testing.T) {
	for target, want := range map[string]string{
		"127.0.0.1:1":                "127.0.0.1:1",
		"postgres://u@h/d":           "h:5432",
		"postgres://u:p@h:99/d?x=y":  "h:99",
		"postgres://u@[::1]:77/name": "[::1]:77",
	} {
		if got, err := hostPort(target); err != nil || got != want {
			t.Errorf("hostPort(%q) = %q, %v; want %q", target, got, err, want)
		}
	}
}

func TestNoBinaries(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv(binariesVariable, t.TempDir())
	_, err := binaries()
	if err == nil {
		return // installed where distributions install them
	}
	if !errors.Is(err, errNoBinaries) || !strings.Contains(err.Error(), "make test") {
		t.Fatalf("error %v does not say what to run", err)
	}
}

func TestNothingStaysAfterACrash(t *testing.T) {
	if os.Getenv(crashVariable) != "" {
		s, err := launch(nil)
		if err != nil {
			t.Fatal(err)
		}
		base, err := template()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("\n%s %s %s\n", s.place.dir, base.dir, s.URL("postgres"))
		select {} // until it is killed
	}
	child := exec.Command(os.Args[0], "-test.run=^TestNothingStaysAfterACrash$")
	child.Env = append(os.Environ(), crashVariable+"=1")
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var fields []string
	for lines := bufio.NewScanner(out); len(fields) != 3 && lines.Scan(); {
		fields = strings.Fields(lines.Text())
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out)
	_ = child.Wait()
	if len(fields) != 3 {
		t.Fatal("the child started no server")
	}
	eventually(t, "the directories to be removed", func() bool {
		_, errServer := os.Stat(fields[0])
		_, errTemplate := os.Stat(fields[1])
		return os.IsNotExist(errServer) && os.IsNotExist(errTemplate)
	})
	if c, err := pgx.Connect(t.Context(), fields[2]); err == nil {
		_ = c.Close(t.Context())
		t.Fatal("the server outlived its test process")
	}
}

// eventually waits until condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited 20 s for %s", what)
		}
	}
}
