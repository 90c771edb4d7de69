package failover_test

import (
	"net"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/clientlib/failover"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

func drainQuickly(cfg *servicetest.Config) { cfg.Service.DrainDelay = -1 }

// A hub is replaced while publishers and subscribers use it: what drains is waited
// for, and nobody needs a connection of their own.
func TestADrainedHubIsWaitedFor(t *testing.T) {
	t.Parallel()
	database, path := migrated(t), socketIn(t)
	first := startHub(t, database, path, drainQuickly)
	// Long, so that a slow machine passes.
	w := newWorker(t, path, database, func(cfg *failover.Config) { cfg.RestartWait = patience })
	r := w.subscribe(nil)
	w.publish("a")
	r.want("a")
	replaceHub(t, w, first, func() {
		if err := r.end(); status.Code(err) != codes.Unavailable {
			t.Errorf("the subscription ended with %v", err)
		}
	}, func() { startHub(t, database, path) })
	w.subscribe(r.position).want("b")
	w.mustUseHub()
}

// A hub on a port has no socket to take away: it has said that it drains.
func TestADrainedHubOnAPortIsWaitedFor(t *testing.T) {
	t.Parallel()
	database := migrated(t)
	listen := func(address string) net.Listener {
		lis, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		return lis
	}
	lis := listen(pgtest.FreeAddress(t))
	first := serveOn(t, database, lis, drainQuickly)
	w := newWorker(t, "", database, func(cfg *failover.Config) {
		cfg.Hub, cfg.RestartWait = lis.Addr().String(), patience
	})
	r := w.subscribe(nil)
	replaceHub(t, w, first, func() { _ = r.end() }, func() { serveOn(t, database, listen(lis.Addr().String())) })
	w.subscribe(r.position).want("b")
	w.mustUseHub()
}

// A worker that only publishes is never told that its hub drains. It sees that the hub
// has taken its socket away, which one that dies does not.
func TestPublishersWaitForADrainedHub(t *testing.T) {
	t.Parallel()
	database, path := migrated(t), socketIn(t)
	first := startHub(t, database, path, drainQuickly)
	w := newWorker(t, path, database, func(cfg *failover.Config) { cfg.RestartWait = patience })
	w.publish("a")
	replaceHub(t, w, first, func() {}, func() { startHub(t, database, path) })
	w.mustUseHub()
}

// mustReturn has the worker return when the hub says that it is ready.
func (w *worker) mustReturn() {
	w.t.Helper()
	eventually(w.t, "return to the hub", func() bool { return w.ReturnToHub(patient(w.t)) == nil })
}

// replaceHub drains a hub and starts another. A publish that begins when the first has
// gone waits for the second.
func replaceHub(t *testing.T, w *worker, first *testHub, gone, start func()) {
	t.Helper()
	if err := first.Drain(patient(t)); err != nil {
		t.Fatal(err)
	}
	gone()
	published := make(chan error, 1)
	go func() {
		_, err := w.Publish(patient(t), publishRequest("b"))
		published <- err
	}()
	start()
	if err := <-published; err != nil {
		t.Errorf("publish: %v", err)
	}
}

// A hub that drains and does not come back is absent.
func TestADrainedHubThatStaysAway(t *testing.T) {
	t.Parallel()
	database, path := migrated(t), socketIn(t)
	h := startHub(t, database, path, drainQuickly)
	w := newWorker(t, path, database, func(cfg *failover.Config) { cfg.RestartWait = 300 * time.Millisecond })
	r := w.subscribe(nil)
	if err := h.Drain(patient(t)); err != nil {
		t.Fatal(err)
	}
	_ = r.end()
	began := time.Now()
	w.publish("a")
	w.mustHaveLeft(failover.Absent)
	if waited := time.Since(began); waited < 100*time.Millisecond {
		t.Errorf("waited for %s only", waited)
	}
	w.subscribe(r.position).want("a")
}

// Told to, a worker goes back to the hub: its subscriptions resume there, and its own
// connections are closed.
func TestReturnToTheHub(t *testing.T) {
	t.Parallel()
	database, path := migrated(t), socketIn(t)
	leaveStaleSocket(t, path)
	w := newWorker(t, path, database)
	r := w.subscribe(nil)
	w.publish("a")
	r.want("a")
	w.mustHaveLeft(failover.Absent)
	if err := w.ReturnToHub(patient(t)); err == nil || w.UsesHub() {
		t.Errorf("returned to an absent hub: %v", err)
	}
	w.publish("b")
	r.want("b") // nobody noticed

	startHub(t, database, path)
	ended := make(chan error, 1)
	go func() { ended <- r.end() }()
	w.mustReturn()
	if err := <-ended; status.Code(err) != codes.Unavailable {
		t.Errorf("the subscription ended with %v", err)
	}
	if s := w.State(); !s.Hub || s.Reason != "" || s.Err != nil {
		t.Errorf("the state is %+v", s)
	}
	w.publish("c")
	w.subscribe(r.position).want("c")
	eventually(t, "close the own connections", func() bool {
		names := census(t, database)
		return len(names) == 1 && !own(names[0])
	})
	if err := w.ReturnToHub(patient(t)); err != nil {
		t.Errorf("return again: %v", err)
	}
}

// A hub that comes and goes under load, and a worker that is told to return each time
// it can: every guarantee holds.
func TestAFlappingHub(t *testing.T) {
	t.Parallel()
	database, path := migrated(t), socketIn(t)
	all := func(cfg *servicetest.Config) { cfg.Backlog = new(int64(1 << 40)) }
	h := startHub(t, database, path, all, drainQuickly)
	w := newWorker(t, path, database, func(cfg *failover.Config) { cfg.RestartWait = 100 * time.Millisecond })
	traffic := servicetest.StartTraffic(t, func() fanfarev1.FanfareServiceClient { return w })
	for i := range 4 {
		traffic.AwaitAcknowledged(200)
		if i%2 == 0 {
			h.die(t)
		} else if err := h.Drain(patient(t)); err != nil {
			t.Error(err)
		}
		traffic.AwaitAcknowledged(200)
		h = startHub(t, database, path, all, drainQuickly)
		w.mustReturn()
	}
	traffic.Finish()
	if n := len(w.told()); n < 2 {
		t.Errorf("left the hub %d times: nothing was tested", n)
	}
}
