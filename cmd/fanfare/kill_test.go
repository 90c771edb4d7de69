package main

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// A server on an embedded store is killed at random moments under heavy
// publishing, sometimes again while it starts, and only started again. Whatever
// was acknowledged is there, nothing is there twice, no sequence is missing, and
// subscribers that resume from the positions they had are told of no gap.
func TestKilledUnderLoad(t *testing.T) {
	kills := 20
	if os.Getenv("FANFARE_LONG") != "" {
		kills = 100
	}
	dir := t.TempDir()
	// An address that stays, so that clients find the next server.
	address := "unix://" + filepath.Join(dir, "fanfare.sock")
	serve := func() *process {
		return startUnreadyProcess(t, "--data-dir", dir, "--grpc", address, "--backlog", "100000000", "--drain-delay", "0")
	}
	client := dialQuickly(t, address)
	traffic := servicetest.StartTraffic(t, func() fanfarev1.FanfareServiceClient { return client })
	for n := range kills {
		if n%4 == 3 {
			kill(t, serve(), rand.N(60*time.Millisecond)) // while it starts, or just ready
		}
		p := serve()
		p.awaitReady()
		traffic.AwaitAcknowledged(1 + rand.Int64N(5000))
		kill(t, p, rand.N(5*time.Millisecond))
	}
	last := serve()
	last.awaitReady()
	traffic.Finish()
	t.Logf("%d kills, %d frames acknowledged", kills, traffic.Acknowledged())
	if strings.Contains(last.stderr.String(), "level=ERROR") {
		t.Error("the last server logged an error")
	}
}

// kill kills a server after a while, which makes the moment one that nothing
// else depends on.
func kill(t *testing.T, p *process, after time.Duration) {
	t.Helper()
	<-time.After(after)
	p.signal(syscall.SIGKILL)
	if err := p.end(); err == nil {
		t.Fatal("the server ended before it was killed")
	}
}

// dialQuickly returns a client that is back as soon as a server is.
func dialQuickly(t *testing.T, address string) fanfarev1.FanfareServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.2, MaxDelay: 50 * time.Millisecond},
		MinConnectTimeout: time.Second,
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return fanfarev1.NewFanfareServiceClient(conn)
}
