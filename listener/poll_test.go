package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// origins answers a poll's questions as the test says.
type origins struct {
	mu     sync.Mutex
	origin uint64
	err    error
	hangs  bool
	asked  int
}

func (o *origins) ask(ctx context.Context) (uint64, error) {
	o.mu.Lock()
	o.asked++
	origin, err, hangs := o.origin, o.err, o.hangs
	o.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return origin, err
}

func (o *origins) set(origin uint64, err error, hangs bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.origin, o.err, o.hangs = origin, err, hangs
}

// questions returns how many there were since the last call.
func (o *origins) questions() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.asked
	o.asked = 0
	return n
}

// A listening is a time in which one server answers: the sink is told of each,
// and of its end, by every way in which one can end.
func TestPollFollowsTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("connection refused")
		o, s := &origins{err: away}, &sink{}
		p := NewPoll(PollConfig{Origin: o.ask})
		run(t, func(ctx context.Context) error { return p.Run(ctx, s) })
		steps := []struct {
			name  string
			do    func()
			after time.Duration
			want  string
		}{
			{"no server at the start", func() {}, 0, ""},
			{"the server comes", func() { o.set(5, nil, false) }, 2 * time.Second, "listening 1"},
			{"the server stays", func() {}, time.Minute, "listening 1"},
			{"the server goes", func() { o.set(0, away, false) }, time.Second, "listening 1, lost"},
			{"the same comes back", func() { o.set(5, nil, false) }, 3 * time.Second, "listening 1, lost, listening 2"},
			{"another one at once", func() { o.set(6, nil, false) }, time.Second, "listening 1, lost, listening 2, lost, listening 3"},
			{"it does not answer", func() { o.set(0, nil, true) }, time.Second + pollTimeout, "listening 1, lost, listening 2, lost, listening 3, lost"},
			{"it answers", func() { o.set(6, nil, false) }, 2*maxPollRetry + pollTimeout, "listening 1, lost, listening 2, lost, listening 3, lost, listening 4"},
		}
		for _, step := range steps {
			step.do()
			elapse(step.after)
			synctest.Wait()
			if got := s.story(); got != step.want {
				t.Fatalf("%s: the sink was told %q, want %q", step.name, got, step.want)
			}
			told := strings.Count(step.want, "listening")
			up := strings.HasSuffix(step.want, fmt.Sprint("listening ", told)) && told > 0
			if got := p.Current(); (got.Number != 0) != up || up && got != (backlog.Listening{Number: uint64(told), Origin: o.origin}) {
				t.Fatalf("%s: the current listening is %+v after %q", step.name, got, step.want)
			}
		}
	})
}

// S50 for a poll: it asks at its interval, less often while nobody answers, and
// the log is not filled.
func TestPollIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, logs := &origins{origin: 5}, &logBuffer{}
		p := NewPoll(PollConfig{Origin: o.ask, Interval: 100 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(logs, nil))})
		run(t, func(ctx context.Context) error { return p.Run(ctx, &sink{}) })
		elapse(10*time.Second + time.Millisecond)
		if n := o.questions(); n != 101 {
			t.Errorf("%d questions in 10 s at an interval of 100 ms", n)
		}
		o.set(0, errors.New("connection refused"), false)
		elapse(time.Minute)
		if n := o.questions(); n < 20 || n > 50 {
			t.Errorf("%d questions in a minute without an answer", n)
		}
		if n := logs.count("channel poll failed"); n < 20 || n > 65 || logs.count("connection refused") != n {
			t.Errorf("%d lines in a minute without an answer", n)
		}
	})
}

// After one question without an answer the replica was away for about the interval,
// which may be an hour, although the server answered again at once.
func TestPollComesBackSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origins{origin: 5}
		p := NewPoll(PollConfig{Origin: o.ask, Interval: time.Hour})
		run(t, func(ctx context.Context) error { return p.Run(ctx, &sink{}) })
		synctest.Wait()
		o.set(0, errors.New("connection refused"), false)
		elapse(time.Hour + time.Millisecond)
		o.set(5, nil, false)
		elapse(2 * maxPollRetry)
		if p.Current().Number != 2 {
			t.Errorf("%s after the server is back: the current listening is %+v", 2*maxPollRetry, p.Current())
		}
	})
}

// Ensure waits for a listening, says why there is none, and outlives nobody.
func TestPollEnsure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("connection refused")
		o := &origins{err: away}
		p := NewPoll(PollConfig{Origin: o.ask})
		bounded := func(d time.Duration) context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			t.Cleanup(cancel)
			return ctx
		}
		if _, err := p.Ensure(bounded(time.Second)); !errors.Is(err, ErrNotListening) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Ensure before Run = %v", err)
		}
		stop := run(t, func(ctx context.Context) error { return p.Run(ctx, &sink{}) })
		synctest.Wait()
		if _, err := p.Ensure(bounded(time.Second)); !errors.Is(err, ErrNotListening) || !errors.Is(err, away) {
			t.Errorf("Ensure without a server = %v, want ErrNotListening and the reason", err)
		}
		ensured := make(chan error, 1)
		go func() { _, err := p.Ensure(bounded(time.Minute)); ensured <- err }()
		elapse(10 * time.Second)
		o.set(5, nil, false)
		if err := <-ensured; err != nil {
			t.Errorf("Ensure when the server has come = %v", err)
		}
		o.set(0, away, false)
		elapse(2 * time.Second)
		go func() { _, err := p.Ensure(context.Background()); ensured <- err }()
		synctest.Wait()
		stop()
		if err := <-ensured; !errors.Is(err, ErrNotListening) || !errors.Is(err, errStopped) {
			t.Errorf("Ensure at the end of Run = %v", err)
		}
		if p.Current().Number != 0 {
			t.Error("listening after the end of Run")
		}
	})
}

// A real server, restarted: each of its lives is a listening with an origin of
// its own, and nothing ever listens there.
func TestPollOnAServer(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	url := server.URL("postgres")
	ask := func(ctx context.Context) (origin uint64, err error) {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return 0, err
		}
		defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // a connection for one statement
		err = conn.QueryRow(ctx, "select (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint").Scan(&origin)
		return origin, err
	}
	s := &sink{}
	p := NewPoll(PollConfig{Origin: ask, Interval: 20 * time.Millisecond})
	run(t, func(ctx context.Context) error { return p.Run(ctx, s) })
	var last backlog.Listening
	for round, stop := range []string{"", "fast", "immediate"} {
		if stop != "" {
			server.Stop(stop)
			eventually(t, "the loss", func() bool { return p.Current().Number == 0 })
			server.StartAgain()
		}
		l, err := p.Ensure(t.Context())
		if err != nil || l.Number != last.Number+1 || l.Origin == last.Origin {
			t.Fatalf("round %d: listening %+v after %+v, %v", round, l, last, err)
		}
		last = l
	}
	if got, want := s.story(), "listening 1, lost, listening 2, lost, listening 3"; got != want {
		t.Errorf("the sink was told %q, want %q", got, want)
	}
}
