package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fanfare-io/fanfare/backlog"
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
	c := startCrowd(t, address)
	for n := range kills {
		if n%4 == 3 {
			kill(t, serve(), rand.N(60*time.Millisecond)) // while it starts, or just ready
		}
		p := serve()
		p.awaitReady()
		c.load.awaitConfirmed(t, 1+rand.N(5000))
		kill(t, p, rand.N(5*time.Millisecond))
	}
	last := serve()
	last.awaitReady()
	servicetest.Check(t, c.finish(t), servicetest.Unbroken)
	t.Logf("%d kills, %d frames acknowledged", kills, c.load.confirmed.Load())
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

// crowdStreams is how many streams a crowd uses.
const crowdStreams = 4

// crowd publishes to and subscribes to a server that comes and goes.
type crowd struct {
	recorder *servicetest.Recorder
	client   fanfarev1.FanfareServiceClient
	load     *killLoad

	followers     [crowdStreams][]*servicetest.Follower
	following     errgroup.Group
	stopFollowing context.CancelFunc
}

func startCrowd(t *testing.T, address string) *crowd {
	t.Helper()
	// A server is back within milliseconds; so are its clients.
	quick := grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.2, MaxDelay: 50 * time.Millisecond},
		MinConnectTimeout: time.Second,
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(quick))
	if err != nil {
		t.Fatal(err)
	}
	c := &crowd{recorder: servicetest.NewRecorder(), client: fanfarev1.NewFanfareServiceClient(conn)}
	following, stop := context.WithCancel(context.Background())
	c.stopFollowing = stop
	c.load = startKillLoad(c.recorder, c.client)
	t.Cleanup(func() {
		c.load.abort()
		c.stopFollowing()
		_ = c.following.Wait()
		conn.Close()
	})
	for n := range crowdStreams {
		c.follow(following, fmt.Sprint("steady ", n), n, 0)
		c.follow(following, fmt.Sprint("restless ", n), n, 200*time.Millisecond)
	}
	return c
}

func crowdStream(n int) backlog.StreamName {
	return backlog.StreamName{Channel: "load", Scope: fmt.Sprint(n)}
}

// follow adds a follower of a stream, until ctx ends.
func (c *crowd) follow(ctx context.Context, name string, stream int, reconnectEvery time.Duration) {
	f := c.recorder.Follower(name, crowdStream(stream), servicetest.FollowerConfig{
		Pick:           func() fanfarev1.FanfareServiceClient { return c.client },
		ReconnectEvery: reconnectEvery,
	})
	c.followers[stream] = append(c.followers[stream], f)
	c.following.Go(func() error { return f.Run(ctx) })
}

// finish ends the publishing, waits until everybody has everything, somebody who
// comes late included, and returns what was seen.
func (c *crowd) finish(t *testing.T) servicetest.Run {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.load.finish(); err != nil {
		t.Fatal(err)
	}
	for n := range crowdStreams {
		c.follow(ctx, fmt.Sprint("late ", n), n, 0)
		stream := crowdStream(n)
		answer, err := c.client.GetStream(ctx, &fanfarev1.GetStreamRequest{Channel: stream.Channel, Scope: stream.Scope})
		if err != nil {
			t.Fatal(err)
		}
		head := answer.GetStream().GetHead()
		for _, f := range c.followers[n] {
			if err := f.AwaitLast(ctx, backlog.Position{Epoch: head.GetEpoch(), Sequence: head.GetSequence()}); err != nil {
				t.Fatal(err)
			}
		}
	}
	cancel()
	c.stopFollowing()
	if err := c.following.Wait(); err != nil {
		t.Fatal(err)
	}
	return c.recorder.Run()
}
