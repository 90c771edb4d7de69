package failover_test

import (
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// Scenario S109, symptom: when the service went, every client process connected to the
// database by itself, until the application's own requests were refused. Workers of a
// hub that dies leave room: those that find none go on asking for the hub.
func TestACrowdOfWorkersLeavesConnectionsForOthers(t *testing.T) {
	const crowd, allowed, kept = 12, 27, 5
	server := pgtest.Start(t, "max_connections=30", "superuser_reserved_connections=3")
	database := migratedOn(t, server.NewDatabase(t))
	path := socketIn(t)
	leaveStaleSocket(t, path)
	workers := make([]*worker, crowd)
	refusals := make([]error, crowd)
	var calls sync.WaitGroup
	for i := range workers {
		workers[i] = newWorker(t, path, database)
		calls.Go(func() { _, refusals[i] = workers[i].Publish(patient(t), publishRequest("a")) })
	}
	calls.Wait()
	var own, refused int
	for i, err := range refusals {
		switch {
		case err == nil && !workers[i].UsesHub():
			own++
		case status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "are kept for others"):
			refused++
		default:
			t.Errorf("worker %d: %v", i, err)
		}
	}
	if own == 0 || refused == 0 || len(census(t, database)) != own {
		t.Errorf("%d serve themselves, %d are refused; listening: %q", own, refused, census(t, database))
	}
	// This one of the application's is counted, too.
	if n := query[int](t, database, "select sum(numbackends)::int from pg_stat_database")[0]; n > allowed-kept+1 {
		t.Errorf("%d connections of %d are taken", n, allowed)
	}
	startHub(t, database, path)
	for i, w := range workers {
		w.publish("b")
		if w.UsesHub() != (refusals[i] != nil) {
			t.Errorf("worker %d: %+v", i, w.State())
		}
	}
}
