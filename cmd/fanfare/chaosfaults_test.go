package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// chaosKinds are all kinds of faults. The order is part of what a seed means.
func chaosKinds() []chaosKind {
	const moment = time.Millisecond
	server := []string{usesServer}
	kinds := []chaosKind{
		{name: "listener's backend killed", uses: server, inject: (*chaosRun).killListener},
		{name: "pool's backends killed", uses: server, inject: (*chaosRun).killPool},
		{name: "all backends killed", uses: server, inject: (*chaosRun).killAll},
		{name: "server restarted, fast", least: moment, most: 2 * time.Second, uses: server, inject: restartServer("fast")},
		{name: "server restarted, immediate", least: moment, most: 2 * time.Second, uses: server, inject: restartServer("immediate")},
		{name: "backend crashed", uses: server, inject: (*chaosRun).crashBackend},
		{name: "reply to a commit lost", least: moment, most: time.Second, replicaParts: []string{usesPool}, inject: (*chaosRun).loseReply},
		{name: "replica killed", least: moment, most: 2 * time.Second, replicaParts: []string{usesProcess}, inject: (*chaosRun).killReplica},
		{name: "replica drained", least: moment, most: 2 * time.Second, replicaParts: []string{usesProcess}, inject: (*chaosRun).drainReplica},
		{name: "replica stopped", least: time.Second, most: 6 * time.Second, replicaParts: []string{usesProcess}, inject: (*chaosRun).stopReplica},
		{name: "notify lock held", least: time.Second, most: 4 * time.Second, uses: server, inject: (*chaosRun).holdNotifyLock},
		{name: "stream closed", uses: []string{"closing"}, inject: (*chaosRun).closeStream},
		{name: "policy changed", least: time.Second, most: 4 * time.Second, uses: []string{"policy"}, inject: (*chaosRun).shrinkBacklog},
		{name: "store's clock stepped", uses: []string{usesServer, partOf(usesProcess, 0), partOf(usesProcess, 1)}, inject: (*chaosRun).stepClock},
	}
	kinds = append(kinds, isolatingKinds()...)
	for _, p := range []struct{ name, part string }{
		{"listener's connection", usesListen}, {"pool's connections", usesPool}, {"clients' connections", usesClients},
	} {
		parts := []string{p.part}
		for _, fault := range networkFaults {
			kinds = append(kinds, chaosKind{name: p.name + " " + fault.name, replicaParts: parts, least: fault.least, most: fault.most,
				inject: func(c *chaosRun, f chaosFault) error { return c.breakNetwork(f, p.part, fault) }})
		}
	}
	return kinds
}

// isolatingKinds are those that must not concern anybody else.
func isolatingKinds() []chaosKind {
	return []chaosKind{
		{name: "stream held", least: time.Second, most: 4 * time.Second, inject: (*chaosRun).holdStream},
		{name: "creation of a stream held", least: time.Second, most: 4 * time.Second, inject: (*chaosRun).holdCreation},
		{name: "subscriber stalled", least: time.Second, most: 8 * time.Second, inject: (*chaosRun).stallSubscriber},
	}
}

// partOf names a part of a replica among what faults use.
func partOf(name string, replica int) string { return fmt.Sprint(name, " of ", replica) }

// networkFault is what happens to a proxy.
type networkFault struct {
	name        string
	least, most time.Duration
	begin       func(p *pgtest.ProxyServer)
}

var networkFaults = []networkFault{
	{"cut", 0, 0, (*pgtest.ProxyServer).Cut},
	{"reset", 0, 0, (*pgtest.ProxyServer).Reset},
	{"blackholed to the server", 500 * time.Millisecond, 9 * time.Second, blackhole(pgtest.ToServer)},
	{"blackholed to the client", 500 * time.Millisecond, 9 * time.Second, blackhole(pgtest.ToClient)},
	{"blackholed", 500 * time.Millisecond, 9 * time.Second, blackhole(pgtest.BothWays)},
	{"delayed", 500 * time.Millisecond, 4 * time.Second, func(p *pgtest.ProxyServer) { p.Delay(100 * time.Millisecond) }},
}

func blackhole(way pgtest.Direction) func(p *pgtest.ProxyServer) {
	return func(p *pgtest.ProxyServer) { p.Blackhole(way) }
}

// breakNetwork does it to connections that are there. Half of the black holes give
// back what they held, half lose it.
func (c *chaosRun) breakNetwork(f chaosFault, part string, fault networkFault) error {
	r := c.replicas[f.replica]
	p := map[string]*pgtest.ProxyServer{usesListen: r.listen, usesPool: r.pool, usesClients: r.clients}[part]
	if err := c.await("connections to break", func() bool { return p.Connections() > 0 }); err != nil {
		return err
	}
	fault.begin(p)
	c.pause(f.lasts)
	if f.lasts > 0 && f.pick%2 == 0 {
		p.Cut()
	}
	p.Restore()
	return nil
}

// loseReply lets a publish through and loses its answer.
func (c *chaosRun) loseReply(f chaosFault) error {
	p := c.replicas[f.replica].pool
	select {
	case <-p.HoldReply(chaosMarked):
	case <-time.After(chaosPatience):
		p.Restore()
		return errors.New("nothing was published")
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
	c.pause(f.lasts)
	p.Cut()
	p.Restore()
	return nil
}

func (c *chaosRun) killListener(f chaosFault) error {
	_, err := c.db.KillBackends(c.ctx, "^fanfare-listen/"+c.replicas[f.replica].name+"-")
	return err
}

func (c *chaosRun) killPool(f chaosFault) error {
	_, err := c.db.KillBackends(c.ctx, "^fanfare-(?!listen)[a-z]+/"+c.replicas[f.replica].name+"-")
	return err
}

func (c *chaosRun) killAll(chaosFault) error {
	_, err := c.db.KillBackends(c.ctx, "")
	return err
}

func restartServer(mode string) func(*chaosRun, chaosFault) error {
	return func(c *chaosRun, f chaosFault) error {
		c.db.Server.Stop(mode)
		c.pause(f.lasts)
		c.db.Server.StartAgain()
		return nil
	}
}

func (c *chaosRun) crashBackend(chaosFault) error { return c.db.CrashBackend(c.ctx) }

func (c *chaosRun) killReplica(f chaosFault) error {
	r := c.replicas[f.replica]
	r.kill(c.t)
	c.pause(f.lasts)
	return r.start(c.ctx, c.t)
}

func (c *chaosRun) drainReplica(f chaosFault) error {
	r := c.replicas[f.replica]
	err := r.drain(c.ctx, c.t)
	if err != nil {
		err = fmt.Errorf("a drained replica ended with %w", err)
	}
	c.pause(f.lasts)
	return errors.Join(err, r.start(c.ctx, c.t))
}

func (c *chaosRun) stopReplica(f chaosFault) error {
	p := c.replicas[f.replica].process()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	c.pause(f.lasts)
	return p.Signal(syscall.SIGCONT)
}

// holdNotifyLock restores the server's settings even when the run is over.
func (c *chaosRun) holdNotifyLock(f chaosFault) error {
	release, err := c.db.HoldNotifyLock(c.ctx)
	if err != nil {
		return err
	}
	c.pause(f.lasts)
	return release()
}

// holdStream holds one that exists.
func (c *chaosRun) holdStream(f chaosFault) error {
	return c.holding(f, func() (func(), error) { return c.db.HoldStream(c.ctx, c.heldStream(f)) })
}

// heldStream is the one that a fault holds: only publishes to it alone wait.
func (c *chaosRun) heldStream(f chaosFault) backlog.StreamName {
	return chaosStream("held", int(f.pick%chaosHeld))
}

// holdCreation creates a stream that somebody publishes to meanwhile, and lets it
// go without having created it.
func (c *chaosRun) holdCreation(f chaosFault) error {
	s := createdStream(f)
	return c.holding(f, func() (func(), error) {
		release, err := c.db.HoldCreation(c.ctx, s)
		if err == nil {
			c.traffic.Go(func() error { return c.publishInto(s) })
		}
		return release, err
	})
}

func createdStream(f chaosFault) backlog.StreamName {
	return backlog.StreamName{Channel: "created", Scope: fmt.Sprint(f.pick)}
}

// holding holds something for as long as the fault lasts. Others may end the
// session that should, before it does.
func (c *chaosRun) holding(f chaosFault, hold func() (release func(), err error)) error {
	var release func()
	var failed error
	err := c.await("a lock", func() bool {
		release, failed = hold()
		return failed == nil
	})
	if err != nil {
		return errors.Join(err, failed)
	}
	c.pause(f.lasts)
	release()
	return nil
}

func (c *chaosRun) stallSubscriber(f chaosFault) error {
	goOn := c.stalled(f).Stall()
	c.pause(f.lasts)
	goOn()
	return nil
}

// closeStream closes a stream that publishers open again, which somebody is told of.
func (c *chaosRun) closeStream(f chaosFault) error {
	s := chaosStream("closing", int(f.pick%chaosClosing))
	renumbered := c.followerOf(s, "steady").Expect("the stream's next numbering", func(e servicetest.Event) bool {
		return e.Kind == servicetest.SawGap && e.Reason == fanfarev1.GapReason_GAP_REASON_EPOCH_CHANGED
	})
	return c.closeUntil(s, f.replica, renumbered)
}

// closeWatched closes a stream when all is well, so that somebody is there and sees it:
// who is away is told of the next numbering alone.
func (c *chaosRun) closeWatched(i int) error {
	s := chaosStream("closing", i%chaosClosing)
	closed := c.followerOf(s, "steady").Expect("the stream's close", func(e servicetest.Event) bool {
		return e.Kind == servicetest.SawClosed
	})
	return c.closeUntil(s, i%len(c.replicas), closed)
}

func (c *chaosRun) closeUntil(s backlog.StreamName, replica int, seen func(context.Context) error) error {
	err := c.call("close a stream", replica, func(ctx context.Context, client fanfarev1.FanfareServiceClient) error {
		answer, err := client.CloseStream(ctx, &fanfarev1.CloseStreamRequest{Channel: s.Channel, Scope: s.Scope})
		if err == nil && answer.GetAlreadyClosed() {
			err = errors.New("it was closed already")
		}
		return err
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.ctx, chaosPatience)
	defer cancel()
	return seen(ctx)
}

// shrinkBacklog leaves the streams of a channel with a few frames until somebody who
// was away has missed some.
func (c *chaosRun) shrinkBacklog(f chaosFault) error {
	away := c.followerOf(chaosStream("shrinking", int(f.pick>>8%chaosShrink)), "away")
	trimmed := away.Expect("a gap", func(e servicetest.Event) bool {
		return e.Kind == servicetest.SawGap && e.Reason == fanfarev1.GapReason_GAP_REASON_TRIMMED
	})
	set := func(policy *fanfarev1.Policy) error {
		policy.Channel = "shrinking"
		return c.call("set a policy", f.replica, func(ctx context.Context, client fanfarev1.FanfareServiceClient) error {
			_, err := client.SetPolicy(ctx, &fanfarev1.SetPolicyRequest{Policy: policy})
			return err
		})
	}
	if err := set(&fanfarev1.Policy{Backlog: new(uint64(f.pick % 4))}); err != nil {
		return err
	}
	c.pause(f.lasts)
	ctx, cancel := context.WithTimeout(c.ctx, chaosPatience)
	defer cancel()
	return errors.Join(trimmed(ctx), set(&fanfarev1.Policy{}))
}

// stepClock steps the clock of the store while nobody serves, by up to ten minutes,
// forwards or backwards.
func (c *chaosRun) stepClock(f chaosFault) error {
	step := time.Duration(f.pick%600+1) * time.Second
	if f.pick>>32%2 == 0 {
		step = -step
	}
	for _, r := range c.replicas {
		r.kill(c.t)
	}
	err := c.db.TryStepClock(c.ctx, step)
	var starting errgroup.Group
	for _, r := range c.replicas {
		starting.Go(func() error { return r.start(c.ctx, c.t) })
	}
	return errors.Join(err, starting.Wait())
}
