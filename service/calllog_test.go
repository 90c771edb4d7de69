package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// callLogWorld runs the call log of a server in a synctest bubble.
type callLogWorld struct {
	*Server
	t   *testing.T
	log *lines
}

func inCallLogWorld(t *testing.T, test func(w *callLogWorld)) {
	synctest.Test(t, func(t *testing.T) {
		s, log := loggedServer(t, nil)
		s.logger = slog.New(slog.NewTextHandler(log, nil))
		s.callLog = newCallLog(s.logger)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.callLog.run(ctx) })
		test(&callLogWorld{s, t, log})
		cancel()
		running.Wait()
	})
}

// call ends a call with err, through the interceptor that logs.
func (w *callLogWorld) call(method string, err error) {
	_, _ = w.callLog.unary(w.t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) {
		if err == nil {
			return nil, nil
		}
		return nil, failureOf(err)
	})
}

// logged returns how many lines there are, and of how many failures they tell.
func (w *callLogWorld) logged() (count, failures int) {
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	for _, line := range w.log.all {
		if told := regexp.MustCompile(`failures=(\d+)`).FindStringSubmatch(line); told != nil {
			n, _ := strconv.Atoi(told[1])
			failures += n
			continue
		}
		failures++
	}
	return len(w.log.all), failures
}

const publishMethod = fanfarev1.FanfareService_Publish_FullMethodName

var errAway = fmt.Errorf("%w: %s", backlog.ErrUnavailable, driverText)

// Symptom: publishers that retried while the database was away for a minute filled
// the log, one line for each of their calls. They get one at once, then one every
// few seconds, which count them all.
func TestOutageDoesNotFloodTheLog(t *testing.T) {
	inCallLogWorld(t, func(w *callLogWorld) {
		const publishers, outage, retry = 50, time.Minute, 100 * time.Millisecond
		w.call(publishMethod, errAway)
		if count, _ := w.logged(); count != 1 {
			t.Errorf("the first failure made %d lines at once", count)
		}
		var g sync.WaitGroup
		for i := range publishers {
			g.Go(func() {
				elapse(time.Duration(i) * time.Millisecond)
				for range int(outage / retry) {
					w.call(publishMethod, errAway)
					elapse(retry)
				}
			})
		}
		g.Wait()
		elapse(callLogInterval)
		count, failures := w.logged()
		if most := int(outage/callLogInterval) + 2; count > most || count < most-3 {
			t.Errorf("an outage of %s made %d lines", outage, count)
		}
		if want := 1 + publishers*int(outage/retry); failures != want {
			t.Errorf("the lines tell of %d failures, there were %d", failures, want)
		}
		line, _ := w.log.last()
		for _, want := range []string{"level=WARN", "grpc.method=Publish", "grpc.code=Unavailable", "reason=STORE_UNAVAILABLE", driverText} {
			if !strings.Contains(line, want) {
				t.Errorf("the last line does not have %s: %s", want, line)
			}
		}
		// The next outage is told of at once again.
		elapse(2 * callLogInterval)
		w.call(publishMethod, errAway)
		if again, _ := w.logged(); again != count+1 {
			t.Errorf("the first failure after a while made %d lines", again-count)
		}
	})
}

// What fails in another way, or by another method, does not go under.
func TestEachKindOfFailureIsLogged(t *testing.T) {
	inCallLogWorld(t, func(w *callLogWorld) {
		kinds := []struct {
			method string
			err    error
		}{
			{publishMethod, errAway},
			{fanfarev1.FanfareService_ReadFrames_FullMethodName, errAway},
			{publishMethod, fmt.Errorf("%w: %s", backlog.ErrOutcomeUnknown, driverText)},
			{publishMethod, backlog.ErrPublishQueueFull},
			{publishMethod, backlog.ErrDiskFull},
			{publishMethod, errors.New("a fault")},
		}
		for range 3 {
			for _, kind := range kinds {
				w.call(kind.method, kind.err)
			}
		}
		// The fault of the server each time.
		if count, _ := w.logged(); count != len(kinds)+2 {
			t.Errorf("%d lines for %d kinds of failures", count, len(kinds))
		}
		elapse(callLogInterval)
		synctest.Wait()
		if count, failures := w.logged(); count != 2*len(kinds)+1 || failures != 3*len(kinds) {
			t.Errorf("%d lines tell of %d failures", count, failures)
		}
	})
}

// Faults of the server are all logged while they are few, and bounded when they
// are not.
func TestFaultsAreLoggedWithinBounds(t *testing.T) {
	inCallLogWorld(t, func(w *callLogWorld) {
		for i := range 1000 {
			w.call(publishMethod, fmt.Errorf("fault %d", i))
		}
		if count, _ := w.logged(); count != errorsAtOnce {
			t.Errorf("1000 faults made %d lines at once", count)
		}
		elapse(callLogInterval)
		synctest.Wait()
		count, failures := w.logged()
		line, _ := w.log.last()
		if count != errorsAtOnce+1 || failures != 1000 || !strings.Contains(line, "level=ERROR") || !strings.Contains(line, "fault 999") {
			t.Errorf("%d lines tell of %d failures, the last is %s", count, failures, line)
		}
	})
}

// Every stream of a server that drains ends UNAVAILABLE, as do those that are too
// old: nothing is wrong.
func TestNormalEndsAreNotLogged(t *testing.T) {
	inCallLogWorld(t, func(w *callLogWorld) {
		for range 5000 {
			w.call(fanfarev1.FanfareService_Subscribe_FullMethodName, drainingFailure(time.Second))
			w.call(fanfarev1.FanfareService_Subscribe_FullMethodName, oldAgeFailure(time.Second))
			w.call(publishMethod, nil)
		}
		elapse(callLogInterval)
		synctest.Wait()
		w.call(publishMethod, errAway) // the log works
		if count, _ := w.logged(); count != 1 {
			line, _ := w.log.last()
			t.Errorf("%d lines, the last is %s", count, line)
		}
	})
}

// What was counted when the server ends is told of.
func TestCallLogTellsTheRestAtTheEnd(t *testing.T) {
	var end *callLogWorld
	inCallLogWorld(t, func(w *callLogWorld) {
		end = w
		w.call(publishMethod, errAway)
		w.call(publishMethod, errAway)
	})
	if count, failures := end.logged(); count != 2 || failures != 2 {
		t.Errorf("%d lines tell of %d failures", count, failures)
	}
}

// Frames that a PublishStream refuses are calls of a kind: many streams at once are
// told of together.
func TestRefusedFramesDoNotFloodTheLog(t *testing.T) {
	inCallLogWorld(t, func(w *callLogWorld) {
		const streams, frames = 50, 100
		for range streams {
			p := &pipeline{server: w.Server, stream: publishStreamOf(t.Context())}
			for range frames {
				f := p.refused(1, 0, errAway)
				if f.response.GetError().GetCode() != int32(codes.Unavailable) {
					t.Fatalf("refused with %v", f.response)
				}
			}
		}
		elapse(callLogInterval)
		synctest.Wait()
		if count, failures := w.logged(); count != 2 || failures != streams*frames {
			t.Errorf("%d lines tell of %d failures", count, failures)
		}
	})
}

// publishStreamOf is a PublishStream that has nothing but a context.
func publishStreamOf(ctx context.Context) fanfarev1.FanfareService_PublishStreamServer {
	return &grpc.GenericServerStream[fanfarev1.PublishStreamRequest, fanfarev1.PublishStreamResponse]{
		ServerStream: &stalledStream{ctx: ctx},
	}
}
