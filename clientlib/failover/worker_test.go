package failover_test

import (
	"bufio"
	"context"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/failover"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// workerVariable makes this test binary a worker process, and is its configuration.
const workerVariable = "TEST_BINARY_IS_WORKER"

func init() {
	text := os.Getenv(workerVariable)
	if text == "" {
		return
	}
	var cfg workerConfig
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		panic(err)
	}
	if err := runWorker(cfg, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// workerConfig is what a worker does: it publishes to Streams streams, if Publishes is
// true, one frame after the other, and follows all of them.
type workerConfig struct {
	Name          string
	Hub, Database string
	Mode          failover.Mode
	Session       bool
	Streams       int
	Publishes     bool
	// Record is the file for what it has seen, a servicetest.Run.
	Record string
}

// Lines that a worker writes, beside "published N" and "moved REASON", and reads:
// workerQuiesce has it publish no more, and workerLast and a position for each stream
// has it wait for these, write its record, and end.
const (
	workerReady    = "ready"
	workerQuiesce  = "quiesce"
	workerQuiet    = "quiet"
	workerLast     = "last"
	publishedEvery = 10
)

func workerStream(i int) backlog.StreamName {
	return backlog.StreamName{Channel: "work", Scope: fmt.Sprint(i)}
}

// now is a moment of a run of several processes: the host's clock since its boot.
func now() servicetest.Tick {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return servicetest.Tick(ts.Nano())
}

// workerProcess is a worker, in its process.
type workerProcess struct {
	cfg    workerConfig
	client *clientlib.Client
	out    io.Writer

	mu sync.Mutex // guards what follows
	// subscribers are what it follows, and reached is closed and replaced when one has
	// got further.
	run     servicetest.Run
	reached chan struct{}
	failed  error
}

func runWorker(cfg workerConfig, in io.Reader, out io.Writer) error {
	w := &workerProcess{cfg: cfg, out: out, reached: make(chan struct{})}
	conn, err := failover.New(failover.Config{
		Hub: cfg.Hub, Database: cfg.Database, Mode: cfg.Mode,
		Logger:     slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		OnFailover: func(r failover.Reason, seen error) { w.say("moved %s", r) },
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	options := []clientlib.Option{clientlib.WithBackoff(5*time.Millisecond, 500*time.Millisecond)}
	if cfg.Session {
		options = append(options, clientlib.WithSession())
	}
	w.client = clientlib.New(conn, options...)
	defer w.client.Close()
	return w.work(bufio.NewScanner(in))
}

func (w *workerProcess) say(format string, args ...any) {
	fmt.Fprintf(w.out, format+"\n", args...)
}

func (w *workerProcess) work(commands *bufio.Scanner) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var following errgroup.Group
	for i := range w.cfg.Streams {
		w.run.Subscribers = append(w.run.Subscribers, servicetest.Subscriber{Name: fmt.Sprint(w.cfg.Name, " ", i), Stream: workerStream(i)})
		following.Go(func() error { return w.fail(w.follow(ctx, i)) })
	}
	if err := w.await(func() bool {
		for _, s := range w.run.Subscribers {
			if len(s.Events) == 0 {
				return false
			}
		}
		return true
	}); err != nil {
		return err
	}
	w.say(workerReady)
	publishing, quiesce := context.WithCancel(ctx)
	defer quiesce()
	var publisher errgroup.Group
	if w.cfg.Publishes {
		publisher.Go(func() error { return w.publish(publishing) })
	}
	for commands.Scan() {
		command, rest, _ := strings.Cut(commands.Text(), " ")
		switch command {
		case workerQuiesce:
			quiesce()
			if err := publisher.Wait(); err != nil {
				return err
			}
			w.say(workerQuiet)
		case workerLast:
			if err := w.awaitLast(strings.Fields(rest)); err != nil {
				return err
			}
			cancel()
			if err := following.Wait(); err != nil {
				return err
			}
			return w.write()
		}
	}
	return fmt.Errorf("%s was left alone", w.cfg.Name)
}

// publish publishes until ctx ends, and finds out what became of each frame.
func (w *workerProcess) publish(ctx context.Context) error {
	for n := 1; ctx.Err() == nil; n++ {
		s := workerStream(rand.N(w.cfg.Streams))
		f := clientlib.NewFrame{
			Stream:  clientlib.Stream(s),
			Payload: fmt.Appendf(nil, "%s/%d %s", w.cfg.Name, n, strings.Repeat("x", rand.N(300))),
		}
		p := servicetest.Publish{Publisher: w.cfg.Name, Stream: s, Began: now(),
			Content: servicetest.ContentOf(&fanfarev1.NewFrame{Payload: f.Payload})}
		// Not ctx: a frame that has been begun is waited for.
		answer, err := w.client.Publish(context.WithoutCancel(ctx), f)
		if err != nil {
			return fmt.Errorf("%s: publish: %w", w.cfg.Name, err)
		}
		p.Ended, p.Result, p.Position = now(), servicetest.Confirmed, backlog.Position(answer.Position)
		w.mu.Lock()
		w.run.Publishes = append(w.run.Publishes, p)
		w.mu.Unlock()
		if n%publishedEvery == 0 {
			w.say("published %d", n)
		}
	}
	return nil
}

// follow records what comes of a stream, until ctx ends.
func (w *workerProcess) follow(ctx context.Context, i int) error {
	sub := w.client.Subscribe(ctx, clientlib.Stream(workerStream(i)), clientlib.Oldest())
	defer sub.Close()
	var asked *clientlib.Position
	for {
		event, err := sub.Next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: stream %d: %w", w.cfg.Name, i, err)
		}
		e := eventOf(event, asked)
		if e.Kind == 0 {
			continue
		}
		at := sub.Position()
		asked = &at
		e.Tick = now()
		w.mu.Lock()
		w.run.Subscribers[i].Events = append(w.run.Subscribers[i].Events, e)
		close(w.reached)
		w.reached = make(chan struct{})
		w.mu.Unlock()
	}
}

// fail has those that wait return an error.
func (w *workerProcess) fail(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = err
	close(w.reached)
	w.reached = make(chan struct{})
	return err
}

// eventOf is what the checker knows an event as; asked is the position that a
// subscription was resumed from, if it was.
func eventOf(event clientlib.Event, asked *clientlib.Position) servicetest.Event {
	switch e := event.(type) {
	case *clientlib.Subscribed:
		s := servicetest.Event{Kind: servicetest.SawSubscribed, Position: backlog.Position(e.ResumeAfter), Resumed: e.Resumed, Start: servicetest.StartOldest}
		if asked != nil {
			s.Start, s.Asked = servicetest.StartAfter, backlog.Position(*asked)
		}
		return s
	case *clientlib.Frame:
		return servicetest.Event{Kind: servicetest.SawFrame, Position: backlog.Position(e.Position),
			Content: servicetest.ContentOf(&fanfarev1.NewFrame{Payload: e.Payload})}
	case *clientlib.Gap:
		return servicetest.Event{Kind: servicetest.SawGap, Position: backlog.Position(e.ResumeAfter), Reason: fanfarev1.GapReason(e.Reason)}
	case *clientlib.CaughtUp:
		return servicetest.Event{Kind: servicetest.SawCaughtUp, Position: backlog.Position(e.Position)}
	case *clientlib.Interrupted:
		return servicetest.Event{Kind: servicetest.SawEnd, Explained: e.Err != nil, Ended: fmt.Sprint(e.Err)}
	default:
		return servicetest.Event{}
	}
}

// awaitLast waits for the last frame of each stream.
func (w *workerProcess) awaitLast(positions []string) error {
	for i, text := range positions {
		last, err := clientlib.ParsePosition(text)
		if err != nil {
			return err
		}
		if err := w.await(func() bool {
			events := w.run.Subscribers[i].Events
			for j := len(events) - 1; j >= 0; j-- {
				if events[j].Kind == servicetest.SawFrame {
					return events[j].Position.Sequence >= last.Sequence
				}
			}
			return false
		}); err != nil {
			return fmt.Errorf("stream %d up to %s: %w", i, text, err)
		}
		w.run.Subscribers[i].Complete = true
	}
	return nil
}

// await waits until a condition of the run is true.
func (w *workerProcess) await(condition func() bool) error {
	deadline := time.After(patience)
	for {
		w.mu.Lock()
		met, reached, err := condition(), w.reached, w.failed
		w.mu.Unlock()
		if met || err != nil {
			return err
		}
		select {
		case <-reached:
		case <-deadline:
			return fmt.Errorf("%s waits for longer than %s", w.cfg.Name, patience)
		}
	}
}

func (w *workerProcess) write() error {
	file, err := os.Create(w.cfg.Record)
	if err != nil {
		return err
	}
	defer file.Close()
	return gob.NewEncoder(file).Encode(w.run)
}
