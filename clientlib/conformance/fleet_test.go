package conformance_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// programDir is where the tests build programs. It is removed at their end.
var programDir string

var makeProgramDir = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "fanfare-conformance-")
	programDir = dir
	return dir, err
})

// built builds a program and returns its path.
func built(t *testing.T, name, source string) string {
	t.Helper()
	dir, err := makeProgramDir()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, name)
	build := exec.Command("go", "build", "-o", program, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return program
}

// fleet is two replicas of the real program over one PostgreSQL database. Each
// keeps its address over restarts.
type fleet struct {
	t        *testing.T
	program  string
	database string
	// flags are those of the replicas beside the usual ones.
	flags    []string
	replicas []*replica
}

type replica struct {
	address string
	process *servicetest.Process // nil while there is none
	client  fanfarev1.FanfareServiceClient
}

func newFleet(t *testing.T, program string, flags ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, program: program, database: pgtest.NewDatabase(t), flags: flags}
	for range 2 {
		address := pgtest.FreeAddress(t)
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithConnectParams(quickly), grpc.WithPerRPCCredentials(bearer(token(t, time.Hour))))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		f.replicas = append(f.replicas, &replica{address: address, client: fanfarev1.NewFanfareServiceClient(conn)})
	}
	t.Cleanup(func() {
		for _, r := range f.replicas {
			if r.process == nil {
				continue
			}
			r.process.Kill()
			if t.Failed() {
				t.Logf("log of %s:\n%s", r.address, r.process.Log())
			}
		}
	})
	f.start()
	return f
}

// quickly finds a replica that is back.
var quickly = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1, MaxDelay: 10 * time.Millisecond},
	MinConnectTimeout: time.Second,
}

func (f *fleet) addresses() (all []string) {
	for _, r := range f.replicas {
		all = append(all, r.address)
	}
	return all
}

// start starts the replicas that do not run.
func (f *fleet) start() {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	for _, r := range f.replicas {
		if r.process != nil {
			continue
		}
		command := exec.Command(f.program, append([]string{"serve", "--grpc", r.address, "--http", "off", "--drain-delay", "200ms", "--replicas", "2"}, f.flags...)...)
		command.Env = append(withoutFanfare(os.Environ()), "FANFARE_STORE="+f.database)
		process, err := servicetest.StartProcess(command)
		if err != nil {
			f.t.Fatal(err)
		}
		r.process = process
		if _, err := process.AwaitReady(ctx); err != nil {
			f.t.Fatal(err)
		}
	}
}

func withoutFanfare(env []string) []string {
	return slices.DeleteFunc(env, func(variable string) bool { return strings.HasPrefix(variable, "FANFARE_") })
}

// named returns the replicas that a step means.
func (f *fleet) named(step replicaStep, channel string) []*replica {
	f.t.Helper()
	if step.All {
		return f.running()
	}
	for _, r := range f.running() {
		got, err := r.client.GetStream(f.t.Context(), &fanfarev1.GetStreamRequest{Channel: channel, Scope: step.Serving})
		if err != nil {
			f.t.Fatal(err)
		}
		if got.GetStream().GetSubscribers() > 0 {
			return []*replica{r}
		}
	}
	f.t.Fatalf("no replica has a subscription of scope %q", step.Serving)
	return nil
}

func (f *fleet) running() (running []*replica) {
	for _, r := range f.replicas {
		if r.process != nil {
			running = append(running, r)
		}
	}
	return running
}

func (f *fleet) kill(replicas []*replica) {
	for _, r := range replicas {
		r.process.Kill()
		r.process = nil
	}
}

// drain has replicas end as at a deployment.
func (f *fleet) drain(replicas []*replica) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	for _, r := range replicas {
		if err := r.process.Signal(syscall.SIGTERM); err != nil {
			f.t.Fatal(err)
		}
	}
	for _, r := range replicas {
		if err := r.process.AwaitEnd(ctx); err != nil {
			f.t.Fatal(err)
		}
		r.process = nil
	}
}
