package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrNotListening means that no connection listens to the notify channel now.
// What wraps it says why.
var ErrNotListening = errors.New("not listening")

var errStopped = errors.New("the listener has stopped")

// Notification is what one NOTIFY of a committed transaction carried.
type Notification struct {
	// PID is the id of the server process that notified, as PostgreSQL says.
	PID     uint32
	Payload string
}

// Connected describes a new connection on which LISTEN was executed.
type Connected struct {
	Listening backlog.Listening
	// OldestTransaction is the id of the oldest transaction that was running
	// before LISTEN: whatever is notified from now on comes from it or from later
	// ones.
	OldestTransaction uint64
}

// Consumer is told what happens on one notify channel. Its methods are called
// by the listener's goroutine, one at a time, and must not block.
type Consumer interface {
	// Listening says that LISTEN has been executed on a new connection. What was
	// notified since the one before was lost.
	Listening(c Connected)
	// Notify delivers a notification. It comes between Listening and Lost, in the
	// order of commit.
	Notify(n Notification)
	// Lost says that the connection is gone.
	Lost(err error)
}

// State describes a listener at one instant.
type State struct {
	// Listening has Number 0 while the listener is down.
	Listening backlog.Listening
	// Since is when the listener went up or down; zero before it was ever up.
	Since time.Time
	// Err is the last error; nil if there was none since the listener went up.
	Err error
	// Reconnects counts connections after the first.
	Reconnects uint64
	// QueueUsage is how full the server's notification queue was at the last
	// ping, from 0 to 1. A full one fails every publisher of the cluster.
	QueueUsage float64
	// BackendPID is the id of the server process, 0 while down.
	BackendPID uint32
	// Pooled is true if that id is not the one of the handshake: something stands
	// between the listener and PostgreSQL.
	Pooled bool
	// ProbeErr says why the last probe failed or could not be committed.
	ProbeErr error
}

// Listener keeps one connection that listens to a set of notify channels. Its
// methods may be called from any goroutine.
type Listener struct {
	config     Config
	connection *pgconn.Config
	logger     *slog.Logger
	logs       throttle // used by Run's goroutine alone

	// mu guards the fields below. Nothing blocks while it is held.
	mu       sync.Mutex
	started  bool
	stopped  bool
	channels map[string]*wanted
	// dirty is set when channels differs from what the connection listens to, or
	// an attachment has not been told. Whoever sets it calls interrupt.
	dirty     bool
	interrupt context.CancelFunc // ends the wait in progress; nil if there is none
	state     State
	proven    bool // a probe has come through a pooler
	// changed is closed and replaced whenever Ensure may have got an answer.
	changed chan struct{}
}

// wanted is a notify channel that somebody wants.
type wanted struct {
	references  int // of Ensure
	attachments []*attachment
	// listening is the number of the connection that has executed LISTEN for it.
	listening uint64
}

// attachment is one consumer of one notify channel.
type attachment struct {
	consumer Consumer
	told     bool // of the current connection; used by Run's goroutine alone
	// listening is the number of the connection it has been told of; guarded by
	// Listener.mu.
	listening uint64
}

// New returns a listener that does nothing until Run. The error says what is
// wrong with the configuration.
func New(config Config) (*Listener, error) {
	config = config.withDefaults()
	connection, err := config.connection()
	if err != nil {
		return nil, err
	}
	return &Listener{
		config:     config,
		connection: connection,
		logger:     config.Logger,
		channels:   map[string]*wanted{},
		changed:    make(chan struct{}),
	}, nil
}

// Run connects, listens and reconnects until ctx ends, and then returns nil. A
// *ProbeError means that the first connection cannot receive notifications, and
// that trying again would not help. Run may be called once.
func (l *Listener) Run(ctx context.Context) error {
	l.mu.Lock()
	again := l.started
	l.started = true
	l.mu.Unlock()
	if again {
		return errors.New("the listener has been run before")
	}
	defer l.stop()
	return l.keepConnected(ctx)
}

// Ensure adds a reference to a notify channel and returns once LISTEN has been
// executed for it on the current connection and its consumers know: what commits
// from then on is delivered to them, or that listening ends. It waits until ctx ends, or for
// Config.EnsureTimeout, and then fails with ErrNotListening and without a
// reference. Each success is to be followed by one Release.
func (l *Listener) Ensure(ctx context.Context, notifyChannel string) (backlog.Listening, error) {
	if err := checkNotifyChannel(notifyChannel); err != nil {
		return backlog.Listening{}, err
	}
	l.change(func() { l.wantLocked(notifyChannel).references++ })
	listening, err := l.await(ctx, func() (backlog.Listening, <-chan struct{}) { return l.known(notifyChannel), nil })
	if err != nil {
		l.Release(notifyChannel)
	}
	return listening, err
}

// Release gives a reference back. Without references and consumers the
// listener stops listening to the channel.
func (l *Listener) Release(notifyChannel string) {
	l.change(func() {
		w := l.channels[notifyChannel]
		if w == nil || w.references == 0 {
			return // more often released than ensured
		}
		w.references--
		l.dropUnwantedLocked(notifyChannel)
	})
}

// Attach adds a consumer to a notify channel. It is told of the current
// connection soon, if there is one. A call to the consumer may still be running
// when detach returns; none begins later.
func (l *Listener) Attach(notifyChannel string, c Consumer) (detach func(), err error) {
	if err := checkNotifyChannel(notifyChannel); err != nil {
		return nil, err
	}
	a := &attachment{consumer: c}
	l.change(func() {
		w := l.wantLocked(notifyChannel)
		w.attachments = append(slices.Clone(w.attachments), a)
	})
	return func() {
		l.change(func() {
			w := l.channels[notifyChannel]
			i := -1
			if w != nil {
				i = slices.Index(w.attachments, a)
			}
			if i < 0 {
				return // detached before
			}
			// A copy: the listener's goroutine iterates without the lock.
			w.attachments = slices.Delete(slices.Clone(w.attachments), i, i+1)
			l.dropUnwantedLocked(notifyChannel)
		})
	}, nil
}

// Current returns the current listening; Number is 0 if there is none.
func (l *Listener) Current() backlog.Listening {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Listening
}

// State returns the listener's state.
func (l *Listener) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

func (l *Listener) wantLocked(notifyChannel string) *wanted {
	w := l.channels[notifyChannel]
	if w == nil {
		w = &wanted{}
		l.channels[notifyChannel] = w
	}
	return w
}

func (l *Listener) dropUnwantedLocked(notifyChannel string) {
	if w := l.channels[notifyChannel]; w.references == 0 && len(w.attachments) == 0 {
		delete(l.channels, notifyChannel)
	}
}

// change changes the set of channels and makes the connection follow.
func (l *Listener) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	l.dirty = true
	if l.interrupt != nil {
		l.interrupt()
	}
}

// onChannel returns the current listening if it includes the notify channel.
func (l *Listener) onChannel(notifyChannel string) backlog.Listening {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.channels[notifyChannel]; w != nil && w.listening != 0 && w.listening == l.state.Listening.Number {
		return l.state.Listening
	}
	return backlog.Listening{}
}

// known is onChannel once all consumers of the channel have been told.
func (l *Listener) known(notifyChannel string) backlog.Listening {
	listening := l.onChannel(notifyChannel)
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.channels[notifyChannel]; w != nil {
		for _, a := range w.attachments {
			if a.listening != listening.Number {
				return backlog.Listening{}
			}
		}
	}
	return listening
}

// await waits until current returns a listening. It looks again whenever the
// listener changes, or the channel that current returned is closed.
func (l *Listener) await(ctx context.Context, current func() (backlog.Listening, <-chan struct{})) (backlog.Listening, error) {
	timeout := time.NewTimer(l.config.EnsureTimeout)
	defer timeout.Stop()
	for {
		l.mu.Lock()
		changed, stopped := l.changed, l.stopped
		l.mu.Unlock()
		listening, other := current()
		switch {
		case listening.Number != 0:
			return listening, nil
		case stopped:
			return backlog.Listening{}, fmt.Errorf("%w: %w", ErrNotListening, errStopped)
		}
		select {
		case <-changed:
		case <-other:
		case <-ctx.Done():
			return backlog.Listening{}, l.notListening(context.Cause(ctx))
		case <-timeout.C:
			return backlog.Listening{}, l.notListening(fmt.Errorf("waited %s", l.config.EnsureTimeout))
		}
	}
}

// notListening says why there is no listening, as far as it is known.
func (l *Listener) notListening(cause error) error {
	if err := l.State().Err; err != nil {
		return fmt.Errorf("%w: %w (%w)", ErrNotListening, err, cause)
	}
	return fmt.Errorf("%w: %w", ErrNotListening, cause)
}

func (l *Listener) broadcastLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// up publishes a new connection. Its consumers have been told.
func (l *Listener) up(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.connected.Listening.Number > 1 {
		l.state.Reconnects++
	}
	l.state.Listening = s.connected.Listening
	l.state.Since = time.Now()
	l.state.Err = nil
	l.state.BackendPID = s.backendPID
	l.state.Pooled = s.pooled
}

// admit lets Ensure return for all channels that the connection listens to.
func (l *Listener) admit(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, attachments := range s.listened {
		if w := l.channels[name]; w != nil {
			w.listening = s.connected.Listening.Number
		}
		for _, a := range attachments {
			a.listening = s.connected.Listening.Number
		}
	}
	l.broadcastLocked()
}

// down ends the current connection for everyone who asks. It must precede
// Consumer.Lost, so that nobody told of the loss still sees the connection.
func (l *Listener) down(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.Listening.Number != 0 {
		l.state.Since = time.Now()
	}
	l.state.Listening = backlog.Listening{}
	l.state.BackendPID = 0
	l.state.Err = err
	l.broadcastLocked()
}

func (l *Listener) stop() {
	l.down(errStopped)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	l.broadcastLocked()
}

// names returns the wanted notify channels, for logs.
func (l *Listener) names() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	names := make([]string, 0, len(l.channels))
	for name := range l.channels {
		names = append(names, name)
	}
	slices.Sort(names)
	const few = 8
	if len(names) > few {
		names = append(names[:few], fmt.Sprintf("and %d more", len(names)-few))
	}
	return strings.Join(names, ", ")
}
