package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fanfare-io/fanfare/backlog"
)

// The tests of the queues decide how transactions end; what PostgreSQL makes of
// them is tested in the files that use a server.

// fakeTransactions hands each of a committer's transactions to its test.
type fakeTransactions struct {
	t *testing.T
	// dialError, if not nil, is why there is no connection.
	dialError error
	calls     chan *fakeTransaction
	// over is closed when the test ends, so that a failed one does not hang.
	over chan struct{}
}

// fakeTransaction is a transaction in flight.
type fakeTransaction struct {
	mode        string
	items       []*item
	lockTimeout time.Duration
	end         chan fakeEnd
}

type fakeEnd struct {
	results []result
	err     error
}

// startFake runs a committer on fake transactions until the test ends. It must
// be called in a synctest bubble.
func startFake(t *testing.T, cfg committerConfig) (*committer, *fakeTransactions) {
	t.Helper()
	f := &fakeTransactions{t: t, calls: make(chan *fakeTransaction, 100), over: make(chan struct{})}
	c := newCommitter(nil, cfg, slog.New(slog.NewTextHandler(io.Discard, nil)))
	c.call = f.call
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := c.run(ctx); err != nil {
			t.Errorf("run returned %v", err)
		}
	}()
	t.Cleanup(func() {
		close(f.over)
		cancel()
		<-ended
		if c.queued != (load{}) || c.laned != (load{}) || c.calling != (load{}) || c.batch.waiting.len != 0 {
			t.Errorf("left behind: queued %+v, laned %+v, waiting %d", c.queued, c.laned, c.batch.waiting.len)
		}
	})
	return c, f
}

func (f *fakeTransactions) call(_ context.Context, mode string, take func() ([]*item, time.Duration)) ([]result, error) {
	if f.dialError != nil {
		return nil, &notSentError{f.dialError}
	}
	items, lockTimeout := take()
	if len(items) == 0 {
		return nil, nil
	}
	tx := &fakeTransaction{mode, items, lockTimeout, make(chan fakeEnd)}
	f.calls <- tx
	select {
	case end := <-tx.end:
		return end.results, end.err
	case <-f.over:
		return nil, &notSentError{errors.New("the test is over")}
	}
}

// next is the transaction that has been in flight longest; it fails the test if
// there is none.
func (f *fakeTransactions) next() *fakeTransaction {
	f.t.Helper()
	synctest.Wait()
	select {
	case tx := <-f.calls:
		return tx
	default:
		f.t.Fatal("there is no transaction in flight")
		return nil
	}
}

// none fails the test if a transaction is in flight that next has not returned.
func (f *fakeTransactions) none() {
	f.t.Helper()
	synctest.Wait()
	select {
	case tx := <-f.calls:
		f.t.Fatalf("unexpected transaction: %s", tx)
	default:
	}
}

// String names the payloads, for comparisons.
func (tx *fakeTransaction) String() string {
	var payloads []string
	for _, it := range tx.items {
		payloads = append(payloads, string(it.publication.Payload))
	}
	return tx.mode + ": " + strings.Join(payloads, " ")
}

// expect fails the test if the transaction is not the one described as String
// does.
func (tx *fakeTransaction) expect(t *testing.T, want string) *fakeTransaction {
	t.Helper()
	if got := tx.String(); got != want {
		t.Fatalf("transaction %q, want %q", got, want)
	}
	return tx
}

// commit ends the transaction well; items of the streams in busy are busy.
func (tx *fakeTransaction) commit(busy ...string) {
	results := make([]result, len(tx.items))
	for i, it := range tx.items {
		for _, scope := range busy {
			if it.publication.Stream.Scope == scope {
				results[i].status = statusBusy
			}
		}
	}
	tx.end <- fakeEnd{results, nil}
	synctest.Wait()
}

func (tx *fakeTransaction) fail(err error) {
	tx.end <- fakeEnd{nil, err}
	synctest.Wait()
}

// Ends of transactions, as pgx reports them.
var (
	errLost = errors.New("unexpected EOF")
	errLock = serverError("ERROR", "55P03")
	errData = serverError("ERROR", "22021")
	errDisk = serverError("ERROR", "53100")
)

func serverError(severity, code string) error {
	return &pgconn.PgError{Severity: severity, SeverityUnlocalized: severity, Code: code, Message: "test"}
}

// caller records the outcomes of publications by their payload.
type caller struct {
	t *testing.T
	c *committer

	mu       sync.Mutex // guards outcomes
	outcomes map[string]error
}

func newCaller(t *testing.T, c *committer) *caller {
	return &caller{t: t, c: c, outcomes: make(map[string]error)}
}

// publish submits one publication for each payload "scope+number": the scope is
// what comes before the first digit. A payload that ends in k has a key.
func (p *caller) publish(ctx context.Context, payloads ...string) {
	for _, payload := range payloads {
		publication := backlog.Publication{
			Stream:  backlog.StreamName{Channel: "c", Scope: payload[:strings.IndexAny(payload, "0123456789")]},
			Payload: []byte(payload),
		}
		if strings.HasSuffix(payload, "k") {
			publication.IdempotencyKey = payload
		}
		p.c.submit(ctx, publication, func(_ backlog.Outcome, err error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			if _, twice := p.outcomes[payload]; twice {
				p.t.Errorf("done was called twice for %s", payload)
			}
			p.outcomes[payload] = err
		})
	}
}

// expect checks the outcomes of payloads: want is tested with errors.Is.
func (p *caller) expect(want error, payloads ...string) {
	p.t.Helper()
	synctest.Wait()
	for _, payload := range payloads {
		answered, err := p.outcome(payload)
		if !answered {
			p.t.Errorf("%s has no outcome, want %v", payload, want)
		} else if !errors.Is(err, want) {
			p.t.Errorf("%s ended with %v, want %v", payload, err, want)
		}
	}
}

// waiting checks that payloads have no outcome yet.
func (p *caller) waiting(payloads ...string) {
	p.t.Helper()
	synctest.Wait()
	for _, payload := range payloads {
		if answered, err := p.outcome(payload); answered {
			p.t.Errorf("%s ended early with %v", payload, err)
		}
	}
}

// outcome reports whether payload has one yet, and it.
func (p *caller) outcome(payload string) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	err, answered := p.outcomes[payload]
	return answered, err
}

// answered counts the outcomes.
func (p *caller) answered() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.outcomes)
}

// names returns prefix followed by the numbers from first to last.
func names(prefix string, first, last int) []string {
	var s []string
	for i := first; i <= last; i++ {
		s = append(s, fmt.Sprint(prefix, i))
	}
	return s
}

// elapse lets the clock of a synctest bubble, which no test waits for, run on.
func elapse(d time.Duration) { <-time.After(d) }
