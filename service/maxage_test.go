package service_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

func maxStreamAge(d time.Duration) func(*servicetest.Config) {
	return func(c *servicetest.Config) { c.Service.MaxStreamAge = d }
}

// statusDetails are a status's reason and when to retry.
func statusDetails(err error) (reason string, retryIn time.Duration) {
	for _, detail := range status.Convert(err).Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			reason = d.GetReason()
		case *errdetails.RetryInfo:
			retryIn = d.GetRetryDelay().AsDuration()
		}
	}
	return reason, retryIn
}

// ending reads to the end of the call and returns its status.
func (r *reader) ending() error {
	for {
		if err := r.recv(); err != nil {
			return err
		}
	}
}

// endsByAge reads to the end of the call, which must be by age: Closing with the
// position of the last frame that came, if last is nil, and a status that says the
// same.
func (r *reader) endsByAge(t *testing.T, last *fanfarev1.Position) {
	t.Helper()
	err := r.ending()
	if n := len(r.frames); n > 0 && last == nil {
		last = r.frames[n-1].GetPosition()
	}
	reason, retryIn := statusDetails(err)
	if status.Code(err) != codes.Unavailable || reason != "MAX_STREAM_AGE" {
		t.Fatalf("it ended with %v (%s)", err, reason)
	}
	closings := 0
	for _, notice := range r.notices {
		if notice.GetClosing() != nil {
			closings++
		}
	}
	closing := r.notices[len(r.notices)-1].GetClosing()
	if closings != 1 || position(closing.GetResumeAfter()) != position(last) {
		t.Errorf("after %v: %d Closing, the last %v", last, closings, closing)
	}
	if wait := closing.GetRetryIn().AsDuration(); wait <= 0 || wait > time.Second || wait != retryIn {
		t.Errorf("Closing says to retry in %s, the status in %s", wait, retryIn)
	}
}

func TestSubscriptionsEndAtTheirAge(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		const age = time.Second // a busy machine subscribes in it
		r := servicetest.Start(t, db.URL, maxStreamAge(age))
		s := stream("age", "idle")
		last := publish(t, r, newFrame(s, "seen"))
		began := time.Now()
		for range 2 {
			sub := subscribe(t, r, live(s))
			sub.endsByAge(t, last)
			// Not how late: machines are slow.
			if took := time.Since(began); took < age*9/10 {
				t.Errorf("it ended after %s, the age is %s", took, age)
			}
			began = time.Now()
			resumed := subscribe(t, r, after(s, sub.notices[len(sub.notices)-1].GetClosing().GetResumeAfter()))
			if !resumed.subscribed.GetResumed() {
				t.Errorf("resumed with %v", resumed.subscribed)
			}
			resumed.cancel()
		}
	})
}

// A subscription that is ended and resumed hundreds of times is, put together,
// one that was never ended: live, while it replays, and with a client that reads
// slowly or not at all for longer than its calls last.
func TestFollowersResumeThroughTheirAges(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, maxStreamAge(60*time.Millisecond))
		f := newFollowed(t, stream("age", "followed"))
		const stored = 3000
		recordedBatch(t, f.recorder, w.a, f.stream, stored, 0)

		counter := &countingPick{client: w.b.Client}
		kinds := map[string]servicetest.FollowerConfig{
			"live":      {Start: live(f.stream)},
			"replaying": {},
			// A response has dozens of frames while it replays.
			"slow": {Rest: 20 * time.Millisecond},
		}
		for kind, cfg := range kinds {
			for i := range 5 {
				cfg.Pick = counter.pick
				f.start(fmt.Sprint(kind, " ", i), cfg)
			}
		}
		for round := 1; counter.calls() < 200 && f.ctx.Err() == nil; round++ {
			recordedBatch(t, f.recorder, w.a, f.stream, 3, round)
		}
		f.awaitLast(recordedBatch(t, f.recorder, w.a, f.stream, 1, -1))
		f.finish()
	})
}

// countingPick counts the calls that begin.
type countingPick struct {
	client fanfarev1.FanfareServiceClient
	mu     sync.Mutex
	n      int
}

func (c *countingPick) pick() fanfarev1.FanfareServiceClient {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return c.client
}

func (c *countingPick) calls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// A client that takes nothing while its call grows too old finds everything that
// was sent, and Closing behind it, when it reads again.
func TestStalledClientsOfOldCalls(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, maxStreamAge(800*time.Millisecond))
		s := stream("age", "stalled")
		const n = 2000
		publishMany(t, w.a, s, n, func(i int) string { return numbered(i) + strings.Repeat("x", 1000) })
		// Far more than fits between server and client.
		stalled := firstFrames(t, w.b, fromOldest(s))
		// Two calls, one after the other, last longer than one.
		for range 2 {
			open(t, w.b.Client, live(s)).end()
		}
		stalled.endsByAge(t, nil)
		contiguous(t, stalled.frames, 1)
		got := len(stalled.frames)
		if got == 0 || got == n {
			t.Fatalf("%d of %d frames came, so it was not ended while it stalled", got, n)
		}
		for last := stalled.frames[got-1].GetPosition(); got < n; {
			rest := open(t, w.b.Client, after(s, last))
			for got+len(rest.frames) < n && rest.recv() == nil {
			}
			if rest.subscribed != nil && !rest.subscribed.GetResumed() {
				t.Fatalf("after %d frames: %v", got, rest.subscribed)
			}
			contiguous(t, rest.frames, uint64(got)+1)
			if more := len(rest.frames); more > 0 {
				last = rest.frames[more-1].GetPosition()
				got += more
			}
			rest.cancel()
		}
	})
}

// firstFrames opens a subscription and reads its first frames; again where it took
// longer than a call may last.
func firstFrames(t *testing.T, r *servicetest.Replica, request *fanfarev1.SubscribeRequest) *reader {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		sub := open(t, r.Client, request)
		for sub.recv() == nil {
			if len(sub.frames) > 0 {
				return sub
			}
		}
	}
	t.Fatal("no call lasted until its first frames")
	return nil
}

// Every request of a PublishStream that was answered is stored once, and of those
// that were not when the server ended the call, none is: sent again on the next
// call they stand in the stream once, too.
func TestPublishStreamsResumeThroughTheirAges(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, maxStreamAge(50*time.Millisecond))
		s := stream("age", "published")
		next, calls := uint64(0), 0
		for deadline := time.Now().Add(2 * patience); calls < 12 || next < 100 && time.Now().Before(deadline); {
			answered, err := publishUntilTheEnd(t, w.a, s, next)
			if reason, _ := statusDetails(err); reason != "MAX_STREAM_AGE" || status.Code(err) != codes.Unavailable {
				t.Fatalf("call %d ended with %v", calls, err)
			}
			next += answered
			calls++
		}
		if next < 100 {
			t.Fatalf("only %d requests were answered in %d calls", next, calls)
		}
		stored := storedPayloads(t, w.b, s)
		for i, payload := range stored {
			if payload != strconv.Itoa(i) {
				t.Fatalf("frame %d is %q", i, payload)
			}
		}
		if len(stored) != int(next) {
			t.Errorf("%d requests were answered, and %d frames are stored", next, len(stored))
		}
	})
}

// publishUntilTheEnd sends frames numbered from first on until the call ends, and
// returns how many were answered, which must be in order, and how it ended.
func publishUntilTheEnd(t *testing.T, r *servicetest.Replica, s backlog.StreamName, first uint64) (answered uint64, end error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	call, err := r.Client.PublishStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	// Some in flight, rather than as many as there may be: each of them has to be
	// answered after the age.
	room := make(chan struct{}, 50)
	sending.Go(func() {
		for number := first; ; number++ {
			select {
			case room <- struct{}{}:
			case <-ctx.Done():
				return
			}
			err := call.Send(&fanfarev1.PublishStreamRequest{Number: number, Frame: newFrame(s, strconv.FormatUint(number, 10))})
			if err != nil {
				return // io.EOF: the call has ended
			}
		}
	})
	for {
		answer, err := call.Recv()
		if err != nil {
			return answered, err
		}
		if answer.GetPublished() == nil || answer.GetNumber() != first+answered {
			t.Fatalf("after %d answers: %v", answered, answer)
		}
		answered++
		<-room
	}
}

// storedPayloads reads a stream's backlog.
func storedPayloads(t *testing.T, r *servicetest.Replica, s backlog.StreamName) (payloads []string) {
	t.Helper()
	request := &fanfarev1.ReadFramesRequest{Channel: s.Channel, Scope: s.Scope}
	for {
		page, err := r.Client.ReadFrames(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.GetFrames()) == 0 {
			return payloads
		}
		contiguous(t, page.GetFrames(), uint64(len(payloads))+1)
		for _, f := range page.GetFrames() {
			payloads = append(payloads, string(f.GetPayload()))
		}
		request.After = page.GetNext()
	}
}
