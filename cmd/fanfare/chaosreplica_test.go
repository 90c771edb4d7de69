package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// serveVariable makes this test binary the program, with the race detector if the
// tests have it. It then ends with its standard input, which the test holds:
// replicas do not outlive a test that was killed.
const serveVariable = "TEST_BINARY_IS_FANFARE"

func init() {
	if os.Getenv(serveVariable) == "" {
		return
	}
	os.Unsetenv(serveVariable)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(exitFailed)
	}()
	main()
}

// nowhere is an address where nothing ever listens.
const nowhere = "127.0.0.1:1"

// chaosClientGroups is how many connections clients have to each replica.
const chaosClientGroups = 3

// chaosReplica is a place for a replica, in which one process follows another. All
// that goes in and out goes through proxies.
type chaosReplica struct {
	name                  string
	pool, listen, clients *pgtest.ProxyServer
	// dialled are the clients' connections, through the proxy. Those of every other group
	// have one session for all their subscriptions.
	dialled [chaosClientGroups]fanfarev1.FanfareServiceClient
	url     string

	mu      sync.Mutex // guards what follows
	current *servicetest.Process
	started []*servicetest.Process
}

func newChaosReplica(t *testing.T, name string, db servicetest.Database) *chaosReplica {
	r := &chaosReplica{
		name:    name,
		url:     db.URL,
		pool:    pgtest.Proxy(t, db.URL),
		listen:  pgtest.Proxy(t, db.URL),
		clients: pgtest.Proxy(t, nowhere),
	}
	for i := range r.dialled {
		r.dialled[i] = dialQuickly(t, r.clients.Addr())
		if i%2 == 1 {
			r.dialled[i] = servicetest.NewSessions(r.dialled[i])
		}
	}
	t.Cleanup(func() {
		if p := r.process(); p != nil {
			p.Kill()
		}
		if t.Failed() {
			for i, log := range r.logs() {
				t.Logf("log of replica %s-%d:\n%s", r.name, i, log)
			}
		}
	})
	return r
}

// start starts a process, and has clients find it when it is ready. One that ends
// before, whatever is wrong with the database, has failed, and another is started,
// as whoever runs replicas would.
func (r *chaosReplica) start(ctx context.Context, t *testing.T) error {
	ctx, cancel := context.WithTimeout(ctx, chaosPatience)
	defer cancel()
	for {
		p, err := r.launch(t)
		if err != nil {
			return err
		}
		address, err := p.AwaitReady(ctx)
		if err == nil {
			r.clients.SetTarget(t, address)
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		t.Errorf("%s: %v", r.name, err)
		pauseFor(ctx, 100*time.Millisecond)
	}
}

func (r *chaosReplica) launch(t *testing.T) (*servicetest.Process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command := exec.Command(program, "serve", "--store", r.pool.URL(r.url), "--listen-database-url", r.listen.URL(r.url),
		"--grpc", "127.0.0.1:0", "--http", "off", "--drain-delay", "200ms", "--replicas", "2",
		"--backlog", "1000000000", "--instance", r.nextInstance())
	own := func(variable string) bool { return strings.HasPrefix(variable, "FANFARE_") } // of the tests
	command.Env = append(slices.DeleteFunc(os.Environ(), own), serveVariable+"=1")
	stdin, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { stdin.Close() })
	p, err := servicetest.StartProcess(command)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current, r.started = p, append(r.started, p)
	return p, nil
}

// nextInstance tells apart the processes in pg_stat_activity.
func (r *chaosReplica) nextInstance() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprint(r.name, "-", len(r.started))
}

func (r *chaosReplica) process() *servicetest.Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// kill ends the process as a crash does.
func (r *chaosReplica) kill(t *testing.T) {
	r.process().Kill()
	r.clients.SetTarget(t, nowhere) // somebody else may get the port
}

// drain ends it as a shutdown does.
func (r *chaosReplica) drain(ctx context.Context, t *testing.T) error {
	p := r.process()
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, chaosPatience)
	defer cancel()
	err := p.AwaitEnd(ctx)
	r.clients.SetTarget(t, nowhere)
	return err
}

// logs returns what each process has written.
func (r *chaosReplica) logs() (logs []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.started {
		logs = append(logs, p.Log())
	}
	return logs
}
