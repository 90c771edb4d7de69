package clientlib

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
)

// Pauses grow to their bound and no further, differ from one client to the next, and
// begin anew after a success.
func TestPausesAreBoundedAndSpread(t *testing.T) {
	c := configure(nil)
	const clients, attempts = 200, 12
	different := map[time.Duration]bool{}
	var first, last time.Duration
	for range clients {
		p := c.newPauses()
		for attempt := range attempts {
			d := p.next(0)
			different[d] = true
			if d < defaultMinBackoff || d > defaultMaxBackoff {
				t.Fatalf("pause %d is %s", attempt, d)
			}
			if attempt == 0 {
				first += d
			}
			if attempt == attempts-1 {
				last += d
			}
		}
		p.reset()
		if d := p.next(0); d > growth*defaultMinBackoff {
			t.Fatalf("the first pause after a success is %s", d)
		}
	}
	if len(different) < clients*attempts*9/10 {
		t.Errorf("of %d pauses only %d differ", clients*attempts, len(different))
	}
	if first/clients > 300*time.Millisecond || last/clients < 2*time.Second {
		t.Errorf("on average the first pause is %s and the last %s", first/clients, last/clients)
	}
}

// A server that says how long to wait is heard, and its clients do not all come back at
// that moment.
func TestAskedPausesAreKeptAndSpread(t *testing.T) {
	c := configure([]Option{WithBackoff(10*time.Millisecond, time.Second)})
	different := map[time.Duration]bool{}
	for range 200 {
		p := c.newPauses()
		for range 10 {
			d := p.next(10 * time.Second)
			if d < 10*time.Second || d > 11*time.Second {
				t.Fatalf("a pause of 10s and up to 1s more is %s", d)
			}
			different[d] = true
		}
	}
	if len(different) < 1800 {
		t.Errorf("of 2000 pauses only %d differ", len(different))
	}
}

func TestBackoffOptionIsMendedNotObeyed(t *testing.T) {
	for _, d := range [][2]time.Duration{{0, 0}, {-1, -1}, {time.Minute, time.Second}} {
		c := configure([]Option{WithBackoff(d[0], d[1])})
		if c.minBackoff <= 0 || c.maxBackoff < c.minBackoff {
			t.Errorf("WithBackoff(%s, %s) gives %s and %s", d[0], d[1], c.minBackoff, c.maxBackoff)
		}
		p := c.newPauses()
		p.next(0) // must not panic
	}
}

// Scenarios S63 and S169, symptom: calls, or lines of the log, at a fixed rate for as
// long as something is wrong. Even where each call is taken and then fails the pauses
// grow, and few failures are logged.
func TestFailuresThatGoOnAreRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(nil)
		r := c.newRecovery()
		logged, calls := 0, 0
		inTenSeconds := 0
		for began := time.Now(); time.Since(began) < 10*time.Minute; calls++ {
			r.acknowledge()
			pause, final := r.after(&Error{Code: codes.Internal})
			if final {
				t.Fatal("INTERNAL is final")
			}
			if r.worthLogging() {
				logged++
			}
			if time.Since(began) < 10*time.Second {
				inTenSeconds++
			}
			elapse(pause)
		}
		if inTenSeconds >= 12 || logged > 10 {
			t.Errorf("%d calls in the first 10 s, %d in all, %d lines in 10 min", inTenSeconds, calls, logged)
		}
	})
}

// A call that lasted, or that brought a frame, begins the series anew.
func TestSuccessResetsThePauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(nil)
		for name, succeed := range map[string]func(r *recovery){
			"a frame": (*recovery).progress,
			"time":    func(*recovery) { elapse(defaultMaxBackoff) },
		} {
			r := c.newRecovery()
			for range 10 {
				r.after(&Error{Code: codes.Unavailable})
			}
			r.acknowledge()
			succeed(&r)
			if pause, _ := r.after(&Error{Code: codes.Unavailable}); pause > growth*defaultMinBackoff {
				t.Errorf("%s: the pause is %s", name, pause)
			}
		}
	})
}

// Scenario S165, symptom: a request that can never succeed was sent for ever.
func TestErrorsThatEndASubscription(t *testing.T) {
	final := map[codes.Code]bool{
		codes.InvalidArgument: true, codes.NotFound: true, codes.PermissionDenied: true, codes.Unauthenticated: true,
		codes.FailedPrecondition: true, codes.Unimplemented: true, codes.AlreadyExists: true,
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		if got := (&Error{Code: code}).endsSubscription(); got != final[code] {
			t.Errorf("%s ends a subscription: %t, want %t", code, got, final[code])
		}
	}
	for _, test := range []struct {
		e    Error
		want bool
	}{
		{Error{Code: codes.ResourceExhausted, Reason: ReasonLimitReached}, true},
		{Error{Code: codes.ResourceExhausted, Reason: ReasonLimitReached, RetryIn: time.Second}, false},
		{Error{Code: codes.ResourceExhausted, Reason: ReasonSlowSubscriber}, false},
	} {
		if got := test.e.endsSubscription(); got != test.want {
			t.Errorf("%v ends a subscription: %t", &test.e, got)
		}
	}
}

// elapse lets virtual time pass, in a bubble of synctest.
func elapse(d time.Duration) { <-time.After(d) }
