package service_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// watchHealth hands out the changes that a health Watch shows.
func watchHealth(t *testing.T, r *servicetest.Replica) <-chan bool {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	watch, err := grpc_health_v1.NewHealthClient(r.Conn).Watch(ctx, &grpc_health_v1.HealthCheckRequest{
		Service: fanfarev1.FanfareService_ServiceDesc.ServiceName,
	})
	if err != nil {
		t.Fatal(err)
	}
	changes := make(chan bool, 100)
	go func() {
		defer close(changes)
		for {
			answer, err := watch.Recv()
			if err != nil {
				return
			}
			changes <- answer.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING
		}
	}()
	return changes
}

func expectChange(t *testing.T, changes <-chan bool, want bool, when string) {
	t.Helper()
	select {
	case got := <-changes:
		if got != want {
			t.Fatalf("%s: readiness is %t", when, got)
		}
	case <-time.After(patience):
		t.Fatalf("%s: readiness did not change within %s", when, patience)
	}
}

// Scenarios S162 and S163 and acceptance 8, symptoms: readiness stayed good
// although the database was gone; liveness went with it and took every process
// down. Cause: SERVING set once; one status for both.
func TestReadinessFollowsTheDatabase(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Outages}, func(t *testing.T, db servicetest.Database) {
		url := db.URL
		listening, storing := pgtest.Proxy(t, url), pgtest.Proxy(t, url)
		r := servicetest.Start(t, storing.URL(url), func(c *servicetest.Config) {
			c.ListenURL, c.MigrateURL = listening.URL(url), url
		})
		changes := watchHealth(t, r)
		if ready := <-changes; !ready {
			expectChange(t, changes, true, "at the start")
		}
		for _, fault := range []struct {
			name       string
			begin, end func()
		}{
			{"listener refused", func() { listening.Refuse(); listening.Cut() }, listening.Restore},
			{"listener in a black hole", func() { listening.Blackhole(pgtest.BothWays) }, listening.Restore},
			{"pool refused", func() { storing.Refuse(); storing.Cut() }, storing.Restore},
			{"pool in a black hole", func() { storing.Blackhole(pgtest.BothWays) }, storing.Restore},
			{"both", func() { storing.Refuse(); listening.Refuse(); storing.Cut(); listening.Cut() }, func() { storing.Restore(); listening.Restore() }},
		} {
			fault.begin()
			expectChange(t, changes, false, fault.name)
			if !serving(t.Context(), r, service.LivenessService) {
				t.Errorf("%s: liveness is not SERVING", fault.name)
			}
			fault.end()
			expectChange(t, changes, true, fault.name+" is over")
		}
		// A blip changes nothing: the next thing that the watch shows is the drain.
		listening.Blackhole(pgtest.BothWays)
		storing.Blackhole(pgtest.BothWays)
		<-time.After(500 * time.Millisecond) // the blip
		listening.Restore()
		storing.Restore()
		publish(t, r, newFrame(stream("after", "blip"), "x"))
		select {
		case ready := <-changes:
			t.Errorf("a blip of 500 ms made readiness %t", ready)
		case <-time.After(2 * time.Second):
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Drain(ctx); err != nil {
			t.Error(err)
		}
		expectChange(t, changes, false, "drain")
	})
}

// Readiness is withdrawn by a drain, and liveness is not, until the end.
func TestReadinessOfADrain(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		r := servicetest.Start(t, db.URL, quickDrain(time.Minute, time.Second))
		changes := watchHealth(t, r)
		if ready := <-changes; !ready {
			expectChange(t, changes, true, "at the start")
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		drained := make(chan error, 1)
		go func() { drained <- r.Drain(ctx) }()
		expectChange(t, changes, false, "drain")
		if !serving(t.Context(), r, service.LivenessService) {
			t.Error("liveness is not SERVING during the drain")
		}
		publish(t, r, newFrame(stream("still", "served"), "x"))
		cancel()
		if err := <-drained; err != nil {
			t.Error(err)
		}
	})
}

// /healthz of a whole replica names its bus, and follows the drain.
func TestHealthzOfAReplica(t *testing.T) {
	kinds := map[string]string{servicetest.PostgreSQL: service.BusPostgreSQL, servicetest.SQLite: service.BusInProcess}
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		r := servicetest.Start(t, db.URL, quickDrain(-1, time.Second))
		get := func() (code int, status, kind string) {
			var document struct {
				Status  string
				Channel struct{ Kind string }
			}
			w := httptest.NewRecorder()
			r.Server.HTTPHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
			if err := json.Unmarshal(w.Body.Bytes(), &document); err != nil {
				t.Errorf("%s: %v", w.Body, err)
			}
			return w.Code, document.Status, document.Channel.Kind
		}
		eventually(t, "the replica is ready", func() bool { code, _, _ := get(); return code == http.StatusOK })
		if _, status, kind := get(); status != "ready" || kind != kinds[db.Kind()] {
			t.Errorf("status %q, bus %q", status, kind)
		}
		if err := r.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		if code, status, _ := get(); code != http.StatusServiceUnavailable || status != "not ready" {
			t.Errorf("after the drain: %d, %q", code, status)
		}
	})
}

// A subscription outlives a restart of the database, is told, and loses nothing.
func TestSubscriptionsOutliveARestart(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Outages}, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db.OnOwnServer(t))
		s := stream("outlive", "")
		publish(t, w.a, newFrame(s, "before"))
		r := subscribe(t, w.b, fromOldest(s))
		r.take(1)
		r.untilCaughtUp()
		w.db.Server.Stop("fast")
		r.until("listening no more", func(m *fanfarev1.SubscribeResponse) bool {
			return m.GetStatus() != nil && !m.GetStatus().GetListening()
		})
		w.db.Server.StartAgain()
		r.until("listening again", func(m *fanfarev1.SubscribeResponse) bool { return m.GetStatus().GetListening() })
		eventually(t, "publishing works again", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := w.a.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: newFrame(s, "after")})
			return err == nil
		})
		if got := r.payloads(1)[0]; got != "after" {
			t.Errorf("got %q", got)
		}
		for _, m := range r.notices {
			if m.GetGap() != nil {
				t.Errorf("a restart made a gap: %v", m)
			}
		}
	})
}
