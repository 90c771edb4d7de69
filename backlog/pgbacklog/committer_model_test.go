package pgbacklog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// modelDatabase stores what random transactions commit. A transaction may find
// streams busy, be rolled back, or get lost before or after its commit.
type modelDatabase struct {
	t      *testing.T
	random *rand.Rand

	mu     sync.Mutex // guards the rest
	stored map[string][]string
	keys   map[string]backlog.Position
	// inFlight counts the transactions of a stream.
	inFlight map[string]int
}

func (m *modelDatabase) call(_ context.Context, mode string, take func() ([]*item, time.Duration)) ([]result, error) {
	if m.chance(30) {
		return nil, &notSentError{errLost}
	}
	items, _ := take()
	if len(items) == 0 {
		return nil, nil
	}
	m.enter(items, 1)
	defer m.enter(items, -1)
	elapse(time.Duration(m.number(20)) * time.Millisecond)
	switch {
	case m.chance(20):
		return nil, errLock
	case m.chance(30):
		return nil, errLost
	case m.chance(40):
		return nil, errDisk
	}
	for _, it := range items {
		if string(it.publication.Payload) == "poison" {
			return nil, errData
		}
	}
	results := m.store(mode, items)
	if m.chance(30) {
		return nil, errLost
	}
	return results, nil
}

func (m *modelDatabase) number(n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.random.IntN(n)
}

func (m *modelDatabase) chance(oneOf int) bool { return m.number(oneOf) == 0 }

// enter checks that a stream has one transaction in flight at a time.
func (m *modelDatabase) enter(items []*item, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	scopes := make(map[string]bool)
	for _, it := range items {
		scopes[it.publication.Stream.Scope] = true
	}
	for scope := range scopes {
		if m.inFlight[scope] += n; m.inFlight[scope] > 1 {
			m.t.Errorf("stream %s has %d transactions in flight", scope, m.inFlight[scope])
		}
	}
}

func (m *modelDatabase) store(mode string, items []*item) []result {
	m.mu.Lock()
	defer m.mu.Unlock()
	busy := make(map[string]bool)
	results := make([]result, len(items))
	for i, it := range items {
		scope, key := it.publication.Stream.Scope, it.publication.IdempotencyKey
		if _, ok := busy[scope]; !ok {
			busy[scope] = mode == modeBatch && m.random.IntN(10) == 0
		}
		if busy[scope] {
			results[i].status = statusBusy
			continue
		}
		if first, ok := m.keys[key]; key != "" && ok {
			results[i] = result{statusDuplicate, first}
			continue
		}
		m.stored[scope] = append(m.stored[scope], string(it.publication.Payload))
		results[i].position = backlog.Position{Epoch: 1, Sequence: uint64(len(m.stored[scope]))}
		if key != "" {
			m.keys[key] = results[i].position
		}
	}
	return results
}

// Whatever happens to transactions and callers, every publication is answered
// once, what is answered well is stored at the position told, what is answered
// as certainly not stored is not, and each stream keeps its order.
func TestModel(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runModel(t, seed) })
		})
	}
}

type modelOutcome struct {
	outcome backlog.Outcome
	err     error
	call    bool // which is told no position
}

// sendCall has a call that stores p wait in the lane of its stream.
func sendCall(ctx context.Context, c *committer, p backlog.Publication, done func(backlog.Outcome, error)) {
	it := newItem(p, done)
	it.call = &call{repeatable: p.IdempotencyKey != ""}
	it.deadline, _ = ctx.Deadline()
	if err := c.admit(it); err != nil {
		done(backlog.Outcome{}, err)
		return
	}
	it.stop = context.AfterFunc(ctx, func() { c.withdraw(it, ctx.Err()) })
	c.mu.Lock()
	err := c.enqueueCallLocked(it, p.Stream)
	c.mu.Unlock()
	if err != nil {
		it.stop()
		done(backlog.Outcome{}, err)
	}
}

func runModel(t *testing.T, seed uint64) {
	m := &modelDatabase{
		t: t, random: rand.New(rand.NewPCG(seed, 1)),
		stored: make(map[string][]string), keys: make(map[string]backlog.Position), inFlight: make(map[string]int),
	}
	c, _ := startFake(t, committerConfig{MaxBatchFrames: 8, Lanes: 3, MaxQueuedFrames: 200})
	c.call = m.call

	const publications = 500
	outcomes := make(map[string]modelOutcome)
	var mu sync.Mutex // guards outcomes
	order := make(map[string][]string)
	for i := range publications {
		p := backlog.Publication{
			Stream:  backlog.StreamName{Channel: "c", Scope: fmt.Sprint("s", m.number(6))},
			Payload: fmt.Appendf(nil, "%04d", i),
		}
		payload := string(p.Payload)
		switch {
		case m.chance(60):
			p.Payload = []byte("poison")
		case m.chance(2):
			p.IdempotencyKey = payload
		}
		ctx, cancel := context.Background(), context.CancelFunc(func() {})
		if m.chance(4) {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(m.number(100))*time.Millisecond)
		}
		order[p.Stream.Scope] = append(order[p.Stream.Scope], payload)
		send := c.submit
		call := m.chance(8)
		if call {
			send = func(ctx context.Context, p backlog.Publication, done func(backlog.Outcome, error)) {
				sendCall(ctx, c, p, done)
			}
		}
		send(ctx, p, func(o backlog.Outcome, err error) {
			cancel()
			mu.Lock()
			defer mu.Unlock()
			if _, twice := outcomes[payload]; twice {
				t.Errorf("done was called twice for %s", payload)
			}
			outcomes[payload] = modelOutcome{o, err, call}
		})
		if m.chance(3) {
			elapse(time.Duration(m.number(10)) * time.Millisecond)
		}
	}
	elapse(2 * time.Minute) // longer than any retry
	mu.Lock()
	defer mu.Unlock()
	// What was stored for a caller who had left was stored after its answer.
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(outcomes) != publications {
		t.Errorf("%d of %d publications were answered", len(outcomes), publications)
	}
	for scope, submitted := range order {
		checkModelStream(t, scope, submitted, m.stored[scope], outcomes)
	}
}

func checkModelStream(t *testing.T, scope string, submitted, stored []string, outcomes map[string]modelOutcome) {
	at := make(map[string]uint64)
	last := ""
	for i, payload := range stored {
		if _, twice := at[payload]; twice {
			t.Errorf("%s: %s is stored twice", scope, payload)
		}
		at[payload] = uint64(i + 1)
		if payload < last {
			t.Errorf("%s: %s is stored after %s", scope, payload, last)
		}
		last = payload
	}
	for _, payload := range submitted {
		o := outcomes[payload]
		switch {
		case o.err == nil && o.call && at[payload] == 0:
			t.Errorf("%s: %s was told to be stored and is not", scope, payload)
		case o.err == nil && !o.call && o.outcome.Position.Sequence != at[payload]:
			t.Errorf("%s: %s was told %d and is at %d", scope, payload, o.outcome.Position.Sequence, at[payload])
		case o.err != nil && o.err != backlog.ErrOutcomeUnknown && at[payload] != 0:
			t.Errorf("%s: %s is stored although it ended with %v", scope, payload, o.err)
		}
	}
}
