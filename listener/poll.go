package listener

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/fanfare-io/fanfare/backlog"
)

// DefaultPollInterval is the default of PollConfig.Interval.
const DefaultPollInterval = time.Second

const (
	// pollTimeout bounds a question; a slower answer counts as a loss.
	pollTimeout = DefaultPingTimeout
	// maxPollRetry is the longest time between questions to a server that does not
	// answer, however long the interval is: until it does, the replica is not ready.
	maxPollRetry = maxDialRetry
)

var errOtherOrigin = errors.New("another server answers than before")

// PollConfig configures a Poll. Origin is required.
type PollConfig struct {
	// Origin asks the server that frames are read from for its origin. It must
	// fail for a server in recovery, whose rows may be older than those read before.
	Origin func(ctx context.Context) (origin uint64, err error)
	// Interval is the time between questions while they are answered. Default 1 s.
	Interval time.Duration
	// Logger gets what operators should see. Nil: nothing is logged.
	Logger *slog.Logger
}

// Poll is the bus of a replica that must do without LISTEN. It announces nothing
// and has no connection of its own: it only knows whether the server that frames
// are read from answers, and whether it is still the same one. So a sink has to
// read its streams again and again by itself, and ephemeral frames, which exist
// in announcements only, must be refused. Its methods may be called from any
// goroutine.
type Poll struct {
	config PollConfig
	logger *slog.Logger

	// Run's goroutine alone uses these.
	logs   throttle
	number uint64 // of the last listening

	// mu guards the fields below. Nothing blocks while it is held.
	mu sync.Mutex
	// told is the listening that the sink knows of.
	told    backlog.Listening
	err     error // why there is none; nil if it is not known
	stopped bool
	// changed is closed and replaced when Ensure may have got an answer.
	changed chan struct{}
}

// NewPoll returns a poll that does nothing until Run.
func NewPoll(cfg PollConfig) *Poll {
	cfg.Interval = cmp.Or(cfg.Interval, DefaultPollInterval)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Poll{config: cfg, logger: cfg.Logger, changed: make(chan struct{})}
}

// Run tells sink, until ctx ends, whether the server answers: every time that it
// does after it did not, and every other origin, is a new listening. Then it
// returns nil. It may be called once.
func (p *Poll) Run(ctx context.Context, sink Sink) error {
	defer p.stop()
	retry := &backoff.ExponentialBackOff{
		InitialInterval: min(p.config.Interval, maxPollRetry), RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: maxPollRetry,
	}
	for {
		origin, err := p.ask(ctx)
		if ctx.Err() != nil {
			return nil
		}
		wait := p.config.Interval
		if err == nil {
			retry.Reset()
			p.answered(sink, origin)
		} else {
			wait = retry.NextBackOff()
			p.failed(sink, err, wait)
		}
		if !pause(ctx, wait) {
			return nil
		}
	}
}

// Ensure returns the current listening once the sink knows of it. It waits until
// ctx ends, and then fails with ErrNotListening. Run must be running.
func (p *Poll) Ensure(ctx context.Context) (backlog.Listening, error) {
	for {
		p.mu.Lock()
		told, err, stopped, changed := p.told, p.err, p.stopped, p.changed
		p.mu.Unlock()
		switch {
		case told.Number != 0:
			return told, nil
		case stopped:
			return backlog.Listening{}, fmt.Errorf("%w: %w", ErrNotListening, errStopped)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if err == nil {
				return backlog.Listening{}, fmt.Errorf("%w: %w", ErrNotListening, context.Cause(ctx))
			}
			return backlog.Listening{}, fmt.Errorf("%w: %w (%w)", ErrNotListening, err, context.Cause(ctx))
		}
	}
}

// Current returns the current listening; Number is 0 if there is none.
func (p *Poll) Current() backlog.Listening {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.told
}

func (p *Poll) ask(ctx context.Context) (uint64, error) {
	bounded, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	origin, err := p.config.Origin(bounded)
	if err != nil && bounded.Err() != nil {
		return 0, fmt.Errorf("no answer within %s: %w", pollTimeout, err)
	}
	return origin, err
}

// answered begins a listening unless there is one of this origin.
func (p *Poll) answered(sink Sink, origin uint64) {
	current := p.Current()
	if current.Number != 0 && current.Origin == origin {
		return
	}
	if current.Number != 0 {
		p.lose(sink, errOtherOrigin)
	}
	p.number++
	l := backlog.Listening{Number: p.number, Origin: origin}
	sink.Listening(l)
	p.tell(l, nil)
	p.logs.log(p.logger, slog.LevelInfo, "channel poll", "listening", l.Number, "origin", l.Origin, "interval", p.config.Interval)
}

func (p *Poll) failed(sink Sink, err error, wait time.Duration) {
	p.lose(sink, err)
	p.logs.log(p.logger, slog.LevelWarn, "channel poll failed", "error", err, "retry_in", wait)
}

// lose ends the listening, if there is one, before the sink is told.
func (p *Poll) lose(sink Sink, err error) {
	listened := p.Current().Number != 0
	p.tell(backlog.Listening{}, err)
	if listened {
		sink.Lost(err)
	}
}

func (p *Poll) tell(l backlog.Listening, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told, p.err = l, err
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Poll) stop() {
	p.tell(backlog.Listening{}, errStopped)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	close(p.changed)
	p.changed = make(chan struct{})
}
