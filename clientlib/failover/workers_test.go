package failover_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/clientlib/failover"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// startWorkers starts n workers of a hub and waits until they have subscribed.
func startWorkers(t testing.TB, n int, cfg workerConfig) []*startedWorker {
	t.Helper()
	workers := make([]*startedWorker, n)
	for i := range workers {
		cfg.Name = fmt.Sprintf("worker %d, session %t", i, cfg.Session)
		workers[i] = startWorker(t, cfg)
	}
	for _, w := range workers {
		w.awaitLine(workerReady)
	}
	return workers
}

// Eight worker processes share a hub: one connection listens. The hub is killed under
// load: each worker has a connection of its own then, and with the next hub there are
// nine. Nothing is lost and nothing comes twice, for anybody.
func TestTheHubIsKilledUnderEightWorkers(t *testing.T) {
	t.Parallel()
	database, path := migrated(t), socketIn(t)
	hub := serveHub(t, database, path)
	cfg := workerConfig{Hub: "unix://" + path, Database: database, Streams: 4, Publishes: true}
	workers := startWorkers(t, 4, cfg)
	cfg.Session = true
	workers = append(workers, startWorkers(t, 4, cfg)...)
	awaitPublished(workers...)
	if names := census(t, database); len(names) != 1 || own(names[0]) {
		t.Errorf("with a hub these listen: %q", names)
	}
	if err := hub.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, w := range workers {
		w.await("on its own", func(string) bool { return len(w.moved()) > 0 })
	}
	awaitPublished(workers...)
	if names := census(t, database); len(names) != 8 || !own(names[0]) || !own(names[7]) {
		t.Errorf("without a hub these listen: %q", names)
	}
	serveHub(t, database, path)
	awaitPublished(workers...)
	if names := census(t, database); len(names) != 9 {
		t.Errorf("with another hub these listen: %q", names)
	}
	finish(t, database, workers...)
	for _, w := range workers {
		if moved := w.moved(); len(moved) != 1 || moved[0] != string(failover.Lost) {
			t.Errorf("%s left the hub for %q", w.cfg.Name, moved)
		}
	}
}

// A process without a hub works the same, on one connection that listens.
func TestAProcessWithoutAHub(t *testing.T) {
	t.Parallel()
	database := migrated(t)
	workers := startWorkers(t, 1, workerConfig{Database: database, Mode: failover.OwnOnly, Streams: 4, Publishes: true})
	awaitPublished(workers...)
	if names := census(t, database); len(names) != 1 || !own(names[0]) {
		t.Errorf("listening: %q", names)
	}
	finish(t, database, workers...)
}

// A worker stands still while its siblings work. The hub gives it up and the siblings
// see nothing. When it goes on, it serves itself and has missed nothing.
func TestAWorkerThatStandsStill(t *testing.T) {
	t.Parallel()
	database, path := migrated(t), socketIn(t)
	h := startHub(t, database, path, func(cfg *servicetest.Config) {
		cfg.Backlog = new(int64(1 << 40))
		cfg.Service.Keepalive, cfg.Service.KeepaliveTimeout = time.Second, 4*time.Second // siblings answer in it
	})
	cfg := workerConfig{Hub: "unix://" + path, Database: database, Streams: 2, Publishes: true}
	siblings := startWorkers(t, 2, cfg)
	cfg.Name, cfg.Publishes = "still", false
	still := startWorker(t, cfg)
	still.awaitLine(workerReady)

	still.signal(syscall.SIGSTOP)
	eventually(t, "give up the worker", func() bool {
		answer, err := h.Client.GetStream(patient(t), &fanfarev1.GetStreamRequest{Channel: workerStream(0).Channel, Scope: workerStream(0).Scope})
		return err == nil && answer.GetStream().GetSubscribers() == uint32(len(siblings))
	})
	awaitPublished(siblings...)
	for _, s := range siblings {
		if moved := s.moved(); len(moved) > 0 {
			t.Errorf("%s left the hub for %q", s.cfg.Name, moved)
		}
	}
	still.signal(syscall.SIGCONT)
	still.await("on its own", func(string) bool { return len(still.moved()) > 0 })
	finish(t, database, append(siblings, still)...)
	for _, s := range siblings {
		if moved := s.moved(); len(moved) > 0 {
			t.Errorf("%s left the hub for %q", s.cfg.Name, moved)
		}
	}
	if moved := still.moved(); len(moved) != 1 {
		t.Errorf("it left the hub for %q", moved)
	}
}

// The hub stands still: nothing comes, and nothing breaks. The pings find out, within
// 15 s.
func TestAHubThatStandsStill(t *testing.T) {
	if !inLongForm() {
		t.Run("subscribe", subscribeWhileTheHubStandsStill)
		return
	}
	t.Parallel()
	database, path := migrated(t), socketIn(t)
	hub := serveHub(t, database, path)
	workers := startWorkers(t, 2, workerConfig{Hub: "unix://" + path, Database: database, Streams: 2, Publishes: true})
	awaitPublished(workers...)
	if err := hub.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for _, w := range workers {
		w.await("on its own", func(string) bool { return len(w.moved()) > 0 })
	}
	awaitPublished(workers...)
	// What it had been sent, it may publish yet.
	if err := hub.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	awaitPublished(workers...)
	finish(t, database, workers...)
}

// A subscription that begins while the hub stands still finds out after the ack
// timeout, for all of its process.
func subscribeWhileTheHubStandsStill(t *testing.T) {
	database, path := migrated(t), socketIn(t)
	hub := serveHub(t, database, path)
	w := newWorker(t, path, database, func(cfg *failover.Config) { cfg.AckTimeout = 500 * time.Millisecond })
	r := w.subscribe(nil)
	if err := hub.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// The signal takes its time: some may be answered yet.
	for err := error(nil); err == nil; {
		call, failed := w.Subscribe(patient(t), &fanfarev1.SubscribeRequest{Channel: "c", Scope: "s"})
		if failed != nil {
			t.Fatal(failed)
		}
		if _, err = call.Recv(); err != nil && status.Code(err) != codes.Unavailable {
			t.Errorf("the new subscription ended with %v", err)
		}
	}
	if err := r.end(); status.Code(err) != codes.Unavailable {
		t.Errorf("the old subscription ended with %v", err)
	}
	w.mustHaveLeft(failover.NotAcknowledged)
	w.publish("a")
	w.subscribe(r.position).want("a")
}
