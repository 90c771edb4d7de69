package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/backlog"
)

// modelRun is a random run over the naive store. The first stream is plain:
// whatever happens to the others and to the bus, its clients see every durable
// frame from the first to the last, once, without a gap for those.
type modelRun struct {
	*rig
	random  *rand.Rand
	streams []*modelStream
	ops     []func()
	// next is the payload of what is published next.
	next atomic.Int64
	// shuffled is true if ephemeral frames may be announced in another order than
	// that of their commits, which no bus does.
	shuffled bool
	// slow counts subscriptions that were ended as slow, told those that were told of
	// ephemeral frames that they may have missed, ephemeral what was delivered.
	slow, told, ephemeral atomic.Int64
}

type modelStream struct {
	name                  backlog.StreamName
	closes, trims, losses atomic.Int64
	// log has the stream's ephemeral frames.
	log ephemeralLog
}

func TestModel(t *testing.T) {
	rounds := 400
	if testing.Short() {
		rounds = 150
	}
	for name, faults := range map[string]string{
		"announcements": "drop double shuffle forge",
		"listening":     "kill restart",
		"closes":        "close kill shuffle",
		"trims":         "trim drop",
		"losses":        "lose kill",
		"nothing lost":  "close trim lag hint fail double",
		"everything":    "drop double shuffle forge kill restart close trim lose hint fail lag",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			newModelRun(t, seed, faults).run(rounds)
		})
	}
}

func newModelRun(t *testing.T, seed uint64, faults string) *modelRun {
	m := &modelRun{
		rig: newRig(t, Config{
			TailFrames: 12, TailBytes: 4 << 10, MaxTailBytes: 24 << 10, PageFrames: 7, MaxPageBytes: 16 << 10,
			Linger: 5 * time.Millisecond, ReReadInterval: 20 * time.Millisecond,
		}),
		random:   rand.New(rand.NewPCG(seed, 1)),
		shuffled: strings.Contains(faults, "shuffle"),
	}
	m.store.backlog = 1 << 40
	for i := range 4 {
		m.streams = append(m.streams, &modelStream{name: streamName(i)})
	}
	for range 8 {
		m.ops = append(m.ops, m.publishSome)
	}
	m.addFaults(faults)
	return m
}

func (m *modelRun) addFaults(names string) {
	faults := map[string]func(){
		"drop":    func() { m.bus.setFilter(func() int { return rand.IntN(2) }) },
		"double":  func() { m.bus.setFilter(func() int { return 1 + rand.IntN(2) }) },
		"shuffle": func() { m.bus.hold(); m.publishSome(); m.publishSome(); m.bus.release(true) },
		"lag": func() {
			m.bus.hold()
			m.publishSome()
			m.close()
			m.pause()
			m.publishSome()
			m.bus.release(false)
		},
		"forge":   m.forge,
		"kill":    func() { m.bus.kill(); m.publishSome(); m.bus.listen() },
		"restart": func() { m.bus.kill(); m.store.restart(); m.publishSome(); m.bus.listen() },
		"close":   m.close,
		"trim":    m.trim,
		"lose":    m.lose,
		"hint":    m.bus.sinkHint,
		"fail":    func() { m.store.setFail(backlog.ErrUnavailable); m.pause(); m.store.setFail(nil) },
	}
	for name, fault := range faults {
		if slices.Contains(strings.Fields(names), name) {
			m.ops = append(m.ops, fault)
		}
	}
	m.ops = append(m.ops, func() { m.bus.setFilter(nil) })
}

// any returns a random stream; changed only one that may be closed, trimmed or
// lose frames.
func (m *modelRun) any(changed bool) *modelStream {
	first := 0
	if changed {
		first = 1
	}
	return m.streams[first+m.random.IntN(len(m.streams)-first)]
}

func (m *modelRun) publishSome() {
	for range 1 + m.random.IntN(20) {
		s, payload := m.any(false), fmt.Sprint(m.next.Add(1))
		switch m.random.IntN(6) {
		case 0:
			m.bus.publishPointer(s.name, payload)
		case 1, 2:
			m.publishEphemeral(s, payload)
		default:
			m.bus.publish(s.name, payload)
		}
	}
}

func (m *modelRun) close() {
	s := m.any(true)
	s.closes.Add(1)
	m.closeLogged(s)
	if m.random.IntN(2) == 0 {
		m.publishSome()
	}
}

func (m *modelRun) trim() {
	s := m.any(true)
	s.trims.Add(1)
	m.store.trim(s.name, m.random.IntN(20))
}

func (m *modelRun) lose() {
	s := m.any(true)
	m.bus.kill()
	if n := m.store.losable(s.name); n > 0 {
		for _, other := range m.streams[1:] {
			other.losses.Add(1)
		}
		m.store.lose(s.name, 1+m.random.IntN(n))
	}
	if m.random.IntN(2) == 0 {
		m.publishSome()
	}
	m.bus.listen()
}

// losable is how many frames an open stream may lose.
func (f *fakeStore) losable(name backlog.StreamName) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.streams[name]; s != nil && !s.current.closed {
		return min(5, len(s.current.rows))
	}
	return 0
}

// forge announces what was not committed. Only pointers come close: a carried
// frame or a close that is next in line when it is looked at is believed, since
// authentic announcements are.
func (m *modelRun) forge() {
	s := m.any(false)
	head := m.store.head(s.name)
	origin := m.bus.Current().Origin
	own := head.Epoch ^ origin
	kind := backlog.AnnouncementKind(1 + m.random.IntN(3))
	sequence := head.Sequence + 1 + uint64(m.random.IntN(5))
	if kind != backlog.AnnouncePointer {
		sequence += 1 << 20
	}
	m.bus.forge(backlog.Announcement{
		Kind: kind, Stream: s.name, OwnEpoch: own, Origin: origin, RowID: "forged",
		Frame: backlog.Frame{Position: backlog.Position{Epoch: own ^ origin, Sequence: sequence}, Payload: []byte("forged")},
	})
}

func (m *modelRun) pause() { <-time.After(time.Duration(m.random.IntN(2000)) * time.Microsecond) }

func (m *modelRun) run(rounds int) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	for i := range 16 {
		c := &modelClient{modelRun: m, stream: m.streams[i%len(m.streams)], random: rand.New(rand.NewPCG(m.random.Uint64(), uint64(i)))}
		group.Go(func() error {
			if err := c.follow(ctx); err != nil {
				return fmt.Errorf("client %d of %v at %s, %d frames, last notices %v: %w", i, c.stream.name, c.position, c.frames, c.notices, err)
			}
			return nil
		})
	}
	for range rounds {
		m.ops[m.random.IntN(len(m.ops))]()
		m.pause()
	}
	m.bus.setFilter(nil)
	for _, s := range m.streams {
		m.bus.publish(s.name, "final")
	}
	if err := group.Wait(); err != nil {
		m.t.Error(err)
	}
	m.t.Logf("%d ephemeral frames delivered, %d times told that some may be missing, %d slow", m.ephemeral.Load(), m.told.Load(), m.slow.Load())
}

// modelClient follows a stream to the final frame, with pauses, and resumes
// from its last position whenever it likes.
type modelClient struct {
	*modelRun
	stream   *modelStream
	random   *rand.Rand
	position backlog.Position
	frames   int
	notices  []Notice
}

func (c *modelClient) follow(ctx context.Context) error {
	start := After(backlog.Position{})
	for {
		sub, subscribed, err := subscribe(ctx, c.hub, c.stream.name, start)
		if errors.Is(err, backlog.ErrUnavailable) || errors.Is(err, backlog.ErrOtherServer) {
			continue
		}
		if err != nil {
			return err
		}
		final, err := c.read(ctx, sub, subscribed)
		if errors.Is(err, ErrSlowSubscriber) {
			c.slow.Add(1)
			c.position, err = sub.Position(), nil
		}
		sub.Close()
		switch {
		case errors.Is(err, io.EOF):
			start = After(c.position)
			if c.random.IntN(2) == 0 {
				start, c.position = Oldest(), backlog.Position{}
			}
		case err != nil || final:
			return err
		default:
			start = After(c.position)
		}
	}
}

// read reads for a while, or to the final frame.
func (c *modelClient) read(ctx context.Context, sub *Subscription, subscribed Subscribed) (final bool, err error) {
	r := &reader{rig: c.rig, name: c.stream.name, sub: sub, subscribed: subscribed, position: subscribed.ResumeAfter, loose: c.shuffled || c.stream != c.streams[0]}
	seen, order := c.stream.log.follow(), &modelOrder{told: -1}
	if subscribed.Resumed && r.position.Sequence != c.position.Sequence {
		return false, fmt.Errorf("resumed after %s, asked for %s", r.position, c.position)
	}
	c.notices = nil
	for range c.random.IntN(60) {
		readCtx, cancel := context.WithTimeout(ctx, time.Duration(1+c.random.IntN(30))*time.Millisecond)
		frames := len(r.payloads)
		d, err := r.sub.Next(readCtx, 1+c.random.IntN(300))
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			continue
		}
		if errors.Is(err, ErrSlowSubscriber) && sub.Position().Sequence != r.position.Sequence {
			return false, fmt.Errorf("ended as slow at %s, frames at %s", sub.Position(), r.position)
		}
		if err != nil {
			return false, err
		}
		if err := r.take(d); err != nil {
			return false, err
		}
		if err := c.checkNotice(d.Notice); err != nil {
			return false, err
		}
		if err := c.checkEphemeral(seen, r, d.Notice); err != nil {
			return false, err
		}
		if err := c.checkOrder(order, d); err != nil {
			return false, err
		}
		c.position = d.Last
		c.frames += len(r.payloads) - frames
		if n := len(r.payloads); n > 0 && r.payloads[n-1] == "final" {
			if err := c.complete(); err != nil {
				return false, err
			}
			return true, c.accounted(ctx, seen, r)
		}
		if c.random.IntN(8) == 0 {
			c.stall()
		}
	}
	return false, nil
}

func (c *modelClient) stall() { <-time.After(time.Duration(c.random.IntN(5000)) * time.Microsecond) }

// checkNotice checks that a gap has a cause.
func (c *modelClient) checkNotice(n Notice) error {
	if n == nil {
		return nil
	}
	c.notices = append(c.notices, n)
	g, ok := n.(Gap)
	if !ok {
		return nil
	}
	if g.Reason == GapEphemeralMaybeMissed && (c.bus.outages.Load() > 0 || c.hub.Stats().Missed > 0) {
		c.told.Add(1)
		return nil
	}
	closed, trimmed, lost := c.stream.closes.Load() > 0, c.stream.trims.Load() > 0, c.stream.losses.Load() > 0
	if (g.Reason == GapTrimmed && trimmed) || (g.Reason == GapEpochChanged && (closed || lost)) || (g.Reason == GapAhead && (lost || closed)) {
		return nil
	}
	return fmt.Errorf("gap without a cause: %+v (%s)", g, g.Reason)
}

// complete checks that a client of the plain stream has seen everything.
func (c *modelClient) complete() error {
	if c.stream != c.streams[0] {
		return nil
	}
	if head := c.store.head(c.stream.name); head != c.position || uint64(c.frames) != head.Sequence {
		return fmt.Errorf("%d frames, head %s", c.frames, head)
	}
	return nil
}
