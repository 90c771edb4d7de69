package service_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// Sizes of TestStalledSubscribers in its two forms.
var (
	crowdReaders = form(40, 900)
	crowdStalled = form(10, 100)
	crowdConns   = form(5, 50)
	// crowdRun is how long frames are published with half of the stalled ones back
	// after crowdRest and the others gone for good, which is longer than the write
	// timeout.
	crowdRun  = form(2*time.Second, 60*time.Second)
	crowdRest = form(time.Second, 10*time.Second)
	// crowdTimeout is the write timeout: the default in the long form.
	crowdTimeout = form(4*time.Second, 30*time.Second)
	// crowdPairs are runs of crowdPhase with and without stalled ones.
	crowdPairs = form(0, 15)
	crowdPhase = 6 * time.Second
)

const (
	crowdRate = 200 // frames a second
	crowdSize = 1024
)

// 1,000 subscribers of one stream, 100 of them stalled, 200 frames a second of 1 KiB.
// The others do not notice, the server's memory stays flat, and every stalled one
// either catches up completely when it reads again, or has been ended with a reason
// and a position from which the rest comes. The short form has fewer of everything
// and checks no times.
func TestStalledSubscribers(t *testing.T) {
	alongside(t)
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		c := newCrowd(t, db)
		c.withStalled(crowdRun, true)
		var ratios []float64
		for pair := range crowdPairs {
			var with, without time.Duration
			if pair%2 == 0 {
				with = c.withStalled(crowdPhase, false)
			}
			without = c.phase(crowdPhase, "nobody stalls")
			if pair%2 == 1 {
				with = c.withStalled(crowdPhase, false)
			}
			ratios = append(ratios, float64(with)/float64(without))
		}
		if len(ratios) > 0 {
			slices.Sort(ratios)
			m := ratios[len(ratios)/2]
			t.Logf("p99 with stalled subscribers over p99 without: median %.2f of %.2f", m, ratios)
			if m > 1.25 {
				t.Errorf("stalled subscribers make the others' p99 %.2f times as long", m)
			}
		}
		c.finish()
	})
}

// crowd is a stream's readers, which stay, on a server.
type crowd struct {
	t       *testing.T
	ctx     context.Context
	address string
	// pid is of the server, if that is a process of its own; replica is it otherwise.
	pid     int
	replica *servicetest.Replica
	client  fanfarev1.FanfareServiceClient
	readers []*tally
	reading sync.WaitGroup
	// ended gets how readers end, which they must not before they leave.
	ended chan error
	leave context.CancelFunc
	sent  int64
	// target is the sequence of the last frame, once it is known.
	target atomic.Int64
}

var crowdStream = stream("crowd", "")

func newCrowd(t *testing.T, db servicetest.Database) *crowd {
	t.Helper()
	c := &crowd{t: t}
	if inLongForm() {
		c.address, c.pid = startServer(t, db.URL)
	} else {
		c.replica = servicetest.Start(t, db.URL, wholeBacklog, func(c *servicetest.Config) {
			c.Service.WriteTimeout = crowdTimeout
			// Some of what the stalled ones have missed is no longer in memory.
			c.Hub.TailFrames = 200
		})
		c.address = c.replica.Addr
	}
	ctx, leave := context.WithTimeout(t.Context(), 15*time.Minute)
	t.Cleanup(leave)
	c.ctx, c.leave = ctx, leave
	c.client = fanfarev1.NewFanfareServiceClient(dial(t, c.address))
	var err error
	c.readers, err = openTallies(c.ctx, dials(t, c.address, crowdConns), crowdReaders, func(int) *fanfarev1.SubscribeRequest { return fromOldest(crowdStream) })
	if err != nil {
		t.Fatal(err)
	}
	c.ended = make(chan error, len(c.readers))
	for _, r := range c.readers {
		c.reading.Go(func() { c.ended <- r.readToEnd() })
	}
	return c
}

// awaitReaders waits until the readers have everything that was sent.
func (c *crowd) awaitReaders() {
	c.t.Helper()
	for i, r := range c.readers {
		eventually(c.t, fmt.Sprintf("reader %d has all %d frames", i, c.sent), func() bool {
			select {
			case err := <-c.ended:
				c.t.Fatalf("a reader was ended with %v", err)
			default:
			}
			return r.count.Load() >= c.sent
		})
	}
}

// finish checks that every reader has every frame, and has them leave.
func (c *crowd) finish() {
	c.t.Helper()
	c.awaitReaders()
	c.leave()
	c.reading.Wait()
}

// phase publishes for d and returns the 99th percentile of what the readers saw.
func (c *crowd) phase(d time.Duration, what string) time.Duration {
	c.t.Helper()
	for _, r := range c.readers {
		r.takeLatencies()
	}
	cpu := processorTime(c.pid)
	ctx, cancel := context.WithTimeout(c.ctx, d)
	defer cancel()
	sent, err := steadily(ctx, c.client, crowdStream, false, crowdRate, crowdSize)
	c.sent += sent
	if err != nil {
		c.t.Fatal(err)
	}
	c.awaitReaders()
	var all []uint32
	for _, r := range c.readers {
		all = append(all, r.takeLatencies()...)
	}
	p50, p99, largest := quantiles(all)
	c.t.Logf("%s: %d frames in %s to %d readers: p50 %s, p99 %s, largest %s", what, sent, d, len(c.readers), p50, p99, largest)
	if c.pid != 0 {
		c.t.Logf("the server used %s of the processors", processorTime(c.pid)-cpu)
	}
	return p99
}

// withStalled is a phase in which there are stalled subscribers, too, each of
// which gets everything in the end. If some return, half of them do so during the
// phase.
func (c *crowd) withStalled(d time.Duration, someReturn bool) (p99 time.Duration) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	conns := dials(c.t, c.address, max(1, crowdConns/10), narrow)
	// From now on: what was published before is of other phases.
	stalled, err := openTallies(ctx, conns, crowdStalled, func(int) *fanfarev1.SubscribeRequest { return live(crowdStream) })
	if err != nil {
		c.t.Fatal(err)
	}
	var returned errgroup.Group
	returning := 0
	c.target.Store(math.MaxInt64)
	if someReturn {
		returning = len(stalled) / 2
	}
	for _, s := range stalled[:returning] {
		returned.Go(func() error {
			<-time.After(crowdRest) // the stall that is tested
			return c.follow(ctx, s, conns[0])
		})
	}
	samples := watchMemory(c.pid, someReturn)
	p99 = c.phase(d, fmt.Sprintf("%d stall, of whom %d return", len(stalled), returning))
	samples.stop(c.t)
	// One more frame, which also reaches those who wait for the next one.
	c.sent++
	c.target.Store(c.sent)
	if _, err := c.client.Publish(ctx, &fanfarev1.PublishRequest{Frame: newFrame(crowdStream, string(stamped(0, crowdSize)))}); err != nil {
		c.t.Fatal(err)
	}
	if err := returned.Wait(); err != nil {
		c.t.Errorf("of those who return: %v", err)
	}
	if someReturn && c.replica != nil {
		eventually(c.t, "those who do not return are ended", func() bool { return c.replica.Hub.Subscribers(crowdStream) == len(c.readers)+returning })
	}
	ended := 0
	for _, s := range stalled[returning:] {
		err := s.readRest(c.sent)
		if err != nil {
			ended++
			if err = c.resume(ctx, s, conns[0], err); err == nil {
				err = s.readRest(c.sent)
			}
		}
		if err != nil {
			c.t.Fatalf("a stalled subscriber: %v", err)
		}
	}
	if someReturn && ended != len(stalled)-returning {
		c.t.Errorf("%d of %d that never returned were ended", ended, len(stalled)-returning)
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
	return p99
}

// follow reads until everything has come, and resumes if it is sent away.
func (c *crowd) follow(ctx context.Context, s *tally, conn *grpc.ClientConn) error {
	for int64(s.last) < c.target.Load() {
		err := s.recv()
		if err != nil && inLongForm() {
			return fmt.Errorf("it was sent away: %w", err) // it was back long before the write timeout
		}
		if err != nil {
			err = c.resume(ctx, s, conn, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// resume goes on where a subscription was ended, which must have been for being
// slow, at the last position that it was given.
func (c *crowd) resume(ctx context.Context, s *tally, conn *grpc.ClientConn, err error) error {
	at := s.position()
	info := infoOf(err)
	if info.GetReason() != "SLOW_SUBSCRIBER" || info.GetMetadata()["position"] != position(at).String() {
		return fmt.Errorf("at %s it was ended with %w, %v", position(at), err, info)
	}
	if err := s.open(ctx, conn, after(crowdStream, at)); err != nil {
		return err
	}
	if s.last != at.GetSequence() || !s.notice.GetSubscribed().GetResumed() {
		return fmt.Errorf("resuming after %v was answered %v", at, s.notice)
	}
	return nil
}

// readRest reads until the frame with a sequence has come.
func (t *tally) readRest(sequence int64) error {
	for int64(t.last) < sequence {
		if err := t.recv(); err != nil {
			return err
		}
	}
	return nil
}

// startServer builds the program and runs it as a process of its own, so that
// its memory and its time on a processor are not those of clients, too.
func startServer(t *testing.T, storeURL string) (address string, pid int) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "fanfare")
	if out, err := exec.Command("go", "build", "-o", program, "../cmd/fanfare").CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	command := exec.Command(program, "serve", "--store", storeURL, "--grpc", "127.0.0.1:0", "--http", "off",
		"--drain-delay", "0", "--backlog", "100000000", "--log-level", "error")
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	ready := regexp.MustCompile(`serving on (\S+); try: `)
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if m := ready.FindStringSubmatch(lines.Text()); m != nil {
			return m[1], command.Process.Pid
		}
	}
	t.Fatal("the server has ended before it was ready")
	return "", 0
}

// processorTime is how long a process has used processors; 0 for process 0.
func processorTime(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// utime and stime, in hundredths of a second, are the 14th and 15th field; the
	// second, in parentheses, may contain spaces.
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// residentBytes is the memory of a process.
func residentBytes(pid int) (bytes float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, "VmRSS:"); found {
			kB, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			return kB * 1024, err
		}
	}
	return 0, errors.New("no VmRSS")
}

// memory samples the memory of a process each second.
type memory struct {
	end     chan struct{}
	done    sync.WaitGroup
	samples []float64 // in MiB
	err     error
}

// watchMemory begins to sample, of process 0 or if not wanted nothing.
func watchMemory(pid int, wanted bool) *memory {
	m := &memory{end: make(chan struct{})}
	if pid == 0 || !wanted {
		return m
	}
	m.done.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for m.err == nil {
			select {
			case <-m.end:
				return
			case <-tick.C:
			}
			var bytes float64
			bytes, m.err = residentBytes(pid)
			m.samples = append(m.samples, bytes/(1<<20))
		}
	})
	return m
}

// stop ends the samples. The first third is when tails and windows fill; of what
// follows the second half must not be above the first by more than noise.
func (m *memory) stop(t *testing.T) {
	t.Helper()
	close(m.end)
	m.done.Wait()
	if m.err != nil {
		t.Error(m.err)
	}
	if len(m.samples) == 0 {
		return
	}
	flat := m.samples[len(m.samples)/3:]
	mean := func(values []float64) (sum float64) {
		for _, v := range values {
			sum += v / float64(len(values))
		}
		return sum
	}
	first, second := mean(flat[:len(flat)/2]), mean(flat[len(flat)/2:])
	t.Logf("the server's memory in MiB: %.0f to %.0f; after a third of the time %.0f to %.0f, mean %.1f in the first half, %.1f in the second, %+.2f a second",
		slices.Min(m.samples), slices.Max(m.samples), slices.Min(flat), slices.Max(flat), first, second, (second-first)/float64(len(flat)/2))
	if second > first*1.1+8 {
		t.Errorf("memory grows: %.0f", m.samples)
	}
}
