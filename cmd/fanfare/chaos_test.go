package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// Two replicas on one server of PostgreSQL serve publishers and subscribers of all
// kinds while everything between and below them is broken, in every way that
// docs/reliability.md lists. Afterwards no guarantee has been. The faults follow
// from the seed, FANFARE_CHAOS_SEED, and the time, FANFARE_CHAOS_TIME: make chaos
// sets both.
func TestChaosCampaign(t *testing.T) {
	t.Parallel() // it mostly waits
	seed, length := chaosSettings(t)
	c := newChaosRun(t, seed, length)
	for i, round := range planChaos(seed, length) {
		c.round(i, round)
	}
	c.finish()
	run := c.recorder.Run()
	verdicts := servicetest.Judge(run, servicetest.UnbrokenExcept(mayHaveGaps))
	c.printReport(run, verdicts)
	servicetest.Report(t, verdicts)
	c.checkReport(run)
}

// chaosSettings are a minute of faults that are always the same, or those of the
// environment.
func chaosSettings(t *testing.T) (seed uint64, length time.Duration) {
	t.Helper()
	seed, length = 1, time.Minute
	var err error
	if text := os.Getenv("FANFARE_CHAOS_TIME"); text != "" {
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
		seed = rand.Uint64N(1_000_000)
	}
	if text := os.Getenv("FANFARE_CHAOS_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	return seed, length
}

// chaosRun is one campaign.
type chaosRun struct {
	t        *testing.T
	ctx      context.Context
	seed     uint64
	length   time.Duration
	db       servicetest.Database
	recorder *servicetest.Recorder
	replicas [2]*chaosReplica
	// resources are what faults use, by name.
	resources map[string]*sync.Mutex

	traffic errgroup.Group
	// stopTraffic ends what publishes.
	stopTraffic context.CancelFunc
	publishing  context.Context

	following     errgroup.Group
	stopFollowing context.CancelFunc
	followCtx     context.Context
	followers     []*chaosFollower

	mu     sync.Mutex // guards what follows
	faults map[string]int
}

// chaosPatience bounds every wait for something that faults delay: those of a round
// may keep a replica from starting one after the other.
const chaosPatience = 3 * time.Minute

// memoryBound is the most that a replica may use: the program itself, and what the
// frames of the campaign's streams take, which are far from the bounds of the
// tails together.
func memoryBound() int64 {
	if raceDetector() {
		return 2 << 30 // shadow memory
	}
	return 256 << 20
}

func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

func newChaosRun(t *testing.T, seed uint64, length time.Duration) *chaosRun {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*length+5*time.Minute)
	t.Cleanup(cancel)
	c := &chaosRun{
		t: t, ctx: ctx, seed: seed, length: length,
		db:        servicetest.NewPostgreSQL(t),
		recorder:  servicetest.NewRecorder(),
		resources: map[string]*sync.Mutex{},
		faults:    map[string]int{},
	}
	c.publishing, c.stopTraffic = context.WithCancel(ctx)
	c.followCtx, c.stopFollowing = context.WithCancel(ctx)
	for i, name := range []string{"a", "b"} {
		c.replicas[i] = newChaosReplica(t, name, c.db)
		if err := c.replicas[i].start(ctx, t); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(c.stop)
	c.startTraffic()
	c.traffic.Go(c.sampleMemory)
	return c
}

// stop ends what runs, at the end or when the test has failed.
func (c *chaosRun) stop() {
	c.stopTraffic()
	c.stopFollowing()
	_ = c.traffic.Wait() // finish tells of errors
	_ = c.following.Wait()
}

// round injects faults as they are due, and then, when all is well again, those
// that must not concern anybody else.
func (c *chaosRun) round(i int, r chaosRound) {
	begun := time.Now()
	var under sync.WaitGroup
	for _, f := range r.faults {
		c.pause(f.at - time.Since(begun))
		under.Go(func() { c.inject(f) })
	}
	under.Wait()
	if err := c.settle(fmt.Sprint("round ", i)); err != nil {
		c.t.Errorf("not well after the faults of round %d: %v", i, err)
		return
	}
	if err := c.closeWatched(i); err != nil {
		c.t.Errorf("a stream that is closed when all is well, in round %d: %v", i, err)
	}
	c.isolate(r)
}

// isolate has a window.
func (c *chaosRun) isolate(r chaosRound) {
	w := servicetest.Window{From: c.recorder.Moment()}
	var under sync.WaitGroup
	for _, f := range r.isolating {
		switch f.kind.name {
		case "subscriber stalled":
			w.Stalled = append(w.Stalled, c.stalled(f).Name())
		default:
			w.Held = append(w.Held, c.heldStream(f), createdStream(f))
		}
		under.Go(func() { c.inject(f) })
	}
	c.pause(r.window)
	w.To = c.recorder.Moment()
	c.recorder.Window(w)
	under.Wait()
}

// inject does a fault when nothing else uses what it needs.
func (c *chaosRun) inject(f chaosFault) {
	uses := slices.Clone(f.kind.uses)
	for _, p := range f.kind.replicaParts {
		uses = append(uses, partOf(p, f.replica))
	}
	slices.Sort(uses) // one order, so that no two wait for each other
	for _, name := range uses {
		m := c.resource(name)
		m.Lock()
		defer m.Unlock()
	}
	begun := c.recorder.Moment()
	if err := f.kind.inject(c, f); err != nil {
		c.t.Errorf("fault %s: %v", f, err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults[f.kind.name]++
	c.t.Logf("%8.3f to %8.3f s: %s", begun.Seconds(), c.recorder.Moment().Seconds(), f)
}

func (c *chaosRun) resource(name string) *sync.Mutex {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.resources[name] == nil {
		c.resources[name] = &sync.Mutex{}
	}
	return c.resources[name]
}

// settle waits until a frame on each stream has reached everybody who stays, and
// looks how many listener connections there are then: while a network loses the end
// of one, the server still has it beside the next.
func (c *chaosRun) settle(marker string) error {
	ctx, cancel := context.WithTimeout(c.ctx, 2*patience)
	defer cancel()
	for _, s := range chaosStreams() {
		content, err := c.publishMarker(ctx, s, marker)
		if err != nil {
			return fmt.Errorf("publish to %s: %w", s, err)
		}
		for _, f := range c.followers {
			if f.Stream() == s && f.stays {
				if err := f.AwaitFrame(ctx, content); err != nil {
					return err
				}
			}
		}
	}
	connections, err := c.db.ListenerConnections(ctx)
	for replica, n := range connections {
		c.recorder.Sample(replica, n)
	}
	return err
}

// finish ends the traffic and waits until everybody has the last frame of each
// stream, and one more who reads all of it.
func (c *chaosRun) finish() {
	c.stopTraffic()
	if err := c.traffic.Wait(); err != nil {
		c.t.Errorf("publish: %v", err)
	}
	ctx, cancel := context.WithTimeout(c.ctx, chaosPatience)
	defer cancel()
	for _, s := range chaosStreams() {
		content, err := c.publishMarker(ctx, s, "last")
		if err != nil {
			c.t.Errorf("publish the last frame of %s: %v", s, err)
			return
		}
		c.follow("late", s, servicetest.FollowerConfig{})
		for _, f := range c.followers {
			if f.Stream() == s {
				if err := f.AwaitLastFrame(ctx, content); err != nil {
					c.t.Error(err)
				}
			}
		}
	}
	c.stopFollowing()
	if err := c.following.Wait(); err != nil {
		c.t.Errorf("follow: %v", err)
	}
}

// sampleMemory records what the replicas use, until the traffic ends.
func (c *chaosRun) sampleMemory() error {
	for c.publishing.Err() == nil {
		for _, r := range c.replicas {
			if bytes, err := r.process().Memory(); err == nil { // it may have been killed
				c.recorder.SampleMemory(r.name, bytes, memoryBound())
			}
		}
		pauseFor(c.publishing, 500*time.Millisecond)
	}
	return nil
}

func (c *chaosRun) pause(d time.Duration) { pauseFor(c.ctx, d) }

func pauseFor(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// await waits for a condition; tests of faults call it on goroutines of their own.
func (c *chaosRun) await(what string, condition func() bool) error {
	ctx, cancel := context.WithTimeout(c.ctx, chaosPatience)
	defer cancel()
	for !condition() {
		if pauseFor(ctx, 20*time.Millisecond); ctx.Err() != nil {
			return fmt.Errorf("waited for %s: %w", what, ctx.Err())
		}
	}
	return nil
}

// call calls a replica until that works.
func (c *chaosRun) call(what string, replica int, call func(ctx context.Context, client fanfarev1.FanfareServiceClient) error) error {
	var failed error
	err := c.await(what, func() bool {
		ctx, cancel := context.WithTimeout(c.ctx, patience/3)
		defer cancel()
		failed = call(ctx, c.replicas[replica].dialled[0])
		return failed == nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", err, failed)
	}
	return nil
}
