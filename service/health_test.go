package service

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// healthWorld is a health service that runs in a synctest bubble.
type healthWorld struct {
	*healthService
	t     *testing.T
	store *fakeStore
	bus   *fakeBus
}

func inHealthWorld(t *testing.T, test func(w *healthWorld)) {
	synctest.Test(t, func(t *testing.T) {
		w := &healthWorld{t: t, store: &fakeStore{}, bus: &fakeBus{}}
		w.healthService = newHealthService(w.store.Ping, w.bus, BusPostgreSQL, slog.New(slog.DiscardHandler))
		w.running(func() { test(w) })
	})
}

// running runs the health service while f does.
func (w *healthWorld) running(f func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- w.run(ctx) }()
	f()
	cancel()
	if err := <-done; err != nil {
		w.t.Error(err)
	}
}

// after lets time pass.
func (w *healthWorld) after(d time.Duration) { <-time.After(d) } // virtual

func (w *healthWorld) want(ready bool) {
	w.t.Helper()
	for _, name := range []string{"", fanfarev1.FanfareService_ServiceDesc.ServiceName} {
		if got := w.status(name); got != ready {
			w.t.Errorf("readiness of %q is %t, want %t", name, got, ready)
		}
	}
	if !w.status(LivenessService) {
		w.t.Error("liveness is not SERVING")
	}
}

func (w *healthWorld) status(name string) bool {
	answer, err := w.Check(w.t.Context(), &grpc_health_v1.HealthCheckRequest{Service: name})
	if err != nil {
		w.t.Error(err)
	}
	return answer.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING
}

func TestReadinessNeedsStoreAndListener(t *testing.T) {
	inHealthWorld(t, func(w *healthWorld) {
		w.want(false)
		w.after(5 * time.Second)
		w.want(false) // the listener has never listened
		w.bus.set(1)
		w.after(200 * time.Millisecond)
		w.want(true)
	})
}

// Symptom: half of all starts took a tenth of a second longer than the other half,
// and so did every recovery. Cause: the bus was looked at every 100 ms. It is ready
// at the moment at which the bus listens.
func TestReadyAsSoonAsTheBusListens(t *testing.T) {
	inHealthWorld(t, func(w *healthWorld) {
		for i := range 20 {
			w.bus.set(0)
			w.after(5*time.Second + time.Duration(7*i)*time.Millisecond)
			w.want(false)
			w.bus.set(uint64(i + 1))
			synctest.Wait()
			w.want(true)
		}
	})
}

// Scenario S162, symptom: readiness stayed good although the database was gone.
// Cause: SERVING was set once at the start.
func TestReadinessFollowsOutages(t *testing.T) {
	inHealthWorld(t, func(w *healthWorld) {
		w.bus.set(1)
		w.after(time.Second)
		w.want(true)
		for name, outage := range map[string]struct{ begin, end func() }{
			"listener": {func() { w.bus.set(0) }, func() { w.bus.set(2) }},
			"store":    {func() { w.store.setErr(errors.New("gone")) }, func() { w.store.setErr(nil) }},
		} {
			outage.begin()
			w.after(3 * time.Second)
			w.want(false)
			outage.end()
			w.after(time.Second)
			w.want(true)
			if w.t.Failed() {
				w.t.Fatalf("with the %s away", name)
			}
		}
	})
}

// Readiness must not move all clients because of a reconnect.
func TestReadinessDoesNotFlapOnABlip(t *testing.T) {
	inHealthWorld(t, func(w *healthWorld) {
		w.bus.set(1)
		w.after(time.Second)
		for i := range 50 {
			w.bus.set(0)
			w.store.setErr(errors.New("gone"))
			for range 5 {
				w.after(100 * time.Millisecond)
				w.want(true)
			}
			w.bus.set(uint64(i + 2))
			w.store.setErr(nil)
			for range 7 {
				w.after(100*time.Millisecond + time.Duration(i)*time.Millisecond)
				w.want(true)
			}
		}
	})
}

// An outage of many short pieces is one as long as nothing was well between.
func TestReadinessComesBackOnlyWhenBothAreWell(t *testing.T) {
	inHealthWorld(t, func(w *healthWorld) {
		w.bus.set(1)
		w.after(time.Second)
		w.bus.set(0)
		w.store.setErr(errors.New("gone"))
		w.after(5 * time.Second)
		w.bus.set(2)
		w.after(time.Second)
		w.want(false)
		w.store.setErr(nil)
		w.after(500 * time.Millisecond)
		w.want(true)
	})
}

func TestDrainWithdrawsReadinessForGood(t *testing.T) {
	inHealthWorld(t, func(w *healthWorld) {
		w.bus.set(1)
		w.after(time.Second)
		w.drain()
		w.want(false)
		w.after(10 * time.Second)
		w.want(false)
	})
}
