package failover_test

import (
	"context"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/failover"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// absences are ways in which a hub can be absent.
var absences = map[string]func(t *testing.T) (path string){
	"no directory": func(t *testing.T) string { return filepath.Join(socketIn(t), "nowhere", "hub.sock") },
	"no socket":    func(t *testing.T) string { return socketIn(t) },
	"nobody listens": func(t *testing.T) string {
		path := socketIn(t)
		leaveStaleSocket(t, path)
		return path
	},
	"who listens never accepts": func(t *testing.T) string {
		path := socketIn(t)
		lis := listenAt(t, path)
		t.Cleanup(func() { lis.Close() })
		return path
	},
	"who accepts never answers": func(t *testing.T) string {
		path := socketIn(t)
		lis := listenAt(t, path)
		accepted := make(chan struct{})
		go func() {
			defer close(accepted)
			var conns []net.Conn
			for {
				conn, err := lis.Accept()
				if err != nil {
					break
				}
				conns = append(conns, conn)
			}
			for _, conn := range conns {
				conn.Close()
			}
		}()
		t.Cleanup(func() { lis.Close(); <-accepted })
		return path
	},
}

func connectQuickly(cfg *failover.Config) { cfg.ConnectTimeout = 500 * time.Millisecond }

// A worker without a hub serves itself, from the first call.
func TestAbsentHub(t *testing.T) {
	for name, absent := range absences {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := migrated(t)
			w := newWorker(t, absent(t), database, connectQuickly)
			w.publish("a")
			w.mustHaveLeft(failover.Absent)
			r := w.subscribe(nil)
			w.publish("b")
			r.want("a", "b")
			if names := census(t, database); len(names) != 1 || !own(names[0]) {
				t.Errorf("listening: %q", names)
			}
		})
	}
}

// With the hub alone, an absent one is an error that names it, and one that comes
// serves.
func TestAbsentHubOfHubOnly(t *testing.T) {
	for name, absent := range absences {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := absent(t)
			w := newWorker(t, path, "", connectQuickly, func(cfg *failover.Config) { cfg.Mode = failover.HubOnly })
			_, err := w.Publish(patient(t), publishRequest("a"))
			if status.Code(err) != codes.Unavailable {
				t.Errorf("publish: %v", err)
			}
			if strings.HasPrefix(name, "no") && !strings.Contains(err.Error(), path) {
				t.Errorf("the error does not name the socket: %v", err)
			}
			if name != "no socket" {
				return
			}
			database := migrated(t)
			startHub(t, database, path)
			if _, err := w.Publish(patient(t), publishRequest("a"), grpc.WaitForReady(true)); err != nil {
				t.Errorf("publish when the hub is there: %v", err)
			}
			w.mustUseHub()
		})
	}
}

func TestOwnOnly(t *testing.T) {
	t.Parallel()
	database := migrated(t)
	w := newWorker(t, "", database, func(cfg *failover.Config) { cfg.Mode, cfg.Hub = failover.OwnOnly, "" })
	if n := connections(t, database); n != 0 {
		t.Errorf("%d connections before the first call", n)
	}
	r := w.subscribe(nil)
	w.publish("a")
	r.want("a")
	if w.UsesHub() || len(w.told()) != 0 {
		t.Errorf("%+v, told %q", w.State(), w.told())
	}
	if err := w.ReturnToHub(patient(t)); err == nil {
		t.Error("returned to a hub that there is not")
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "close the connections", func() bool { return connections(t, database) == 0 })
}

// One hub, two workers: one connection listens.
func TestTheHubServesItsWorkers(t *testing.T) {
	t.Parallel()
	database, path := migrated(t), socketIn(t)
	startHub(t, database, path)
	a, b := newWorker(t, path, database), newWorker(t, path, database)
	r := a.subscribe(nil)
	b.publish("a")
	r.want("a")
	a.mustUseHub()
	b.mustUseHub()
	if names := census(t, database); len(names) != 1 || own(names[0]) {
		t.Errorf("listening: %q", names)
	}
}

// The database is away, too: the error says both, and when the hub comes back it
// serves, since nobody has anything better.
func TestNeitherHubNorDatabase(t *testing.T) {
	t.Parallel()
	database, path := migrated(t), socketIn(t)
	leaveStaleSocket(t, path)
	missing, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	missing.Path = "/missing"
	for name, unreachable := range map[string]string{
		"nobody listens": "postgres://postgres@127.0.0.1:1/db",
		"no database":    missing.String(),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorker(t, path, unreachable)
			for range 3 {
				_, err := w.Publish(patient(t), publishRequest("a"))
				if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "own connection") {
					t.Errorf("publish: %v", err)
				}
			}
			w.mustUseHub()
		})
	}
	w := newWorker(t, path, "postgres://postgres@127.0.0.1:1/db")
	if _, err := w.Publish(patient(t), publishRequest("a")); err == nil {
		t.Fatal("published nowhere")
	}
	startHub(t, database, path)
	w.publish("b")
	w.mustUseHub()
}

// The hub dies under a subscription, which goes on after its position. What was
// published with a key on the hub is known on the own connection.
func TestTheHubDies(t *testing.T) {
	t.Parallel()
	database, path := migrated(t), socketIn(t)
	h := startHub(t, database, path)
	w := newWorker(t, path, database)
	r := w.subscribe(nil)
	keyed := publishRequest("a")
	keyed.Frame.IdempotencyKey = "key"
	first, err := w.Publish(patient(t), keyed)
	if err != nil {
		t.Fatal(err)
	}
	r.want("a")
	h.die(t)
	if err := r.end(); status.Code(err) != codes.Unavailable {
		t.Errorf("the subscription ended with %v", err)
	}
	w.mustHaveLeft(failover.Lost)
	again, err := w.Publish(patient(t), keyed)
	if err != nil || !again.GetDuplicate() || again.GetPosition().String() != first.GetPosition().String() {
		t.Errorf("publish again with the key: %v, %v; it was %v", again, err, first)
	}
	w.publish("b")
	w.subscribe(r.position).want("b")
	if names := census(t, database); len(names) != 1 || !own(names[0]) {
		t.Errorf("listening: %q", names)
	}
}

// A slow subscriber is evicted; its worker moves, all of its subscriptions, and the
// other workers of the hub notice nothing. The hub cannot tell a worker that reads
// nothing: it closes the connection.
func TestEvictionMovesTheWorker(t *testing.T) {
	for name, test := range map[string]struct {
		untaken time.Duration
		goesOn  bool
		reason  failover.Reason
	}{
		"that goes on":       {patience, true, failover.Evicted},
		"that reads nothing": {1500 * time.Millisecond, false, failover.Lost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database, path := migrated(t), socketIn(t)
			h := startHub(t, database, path, func(cfg *servicetest.Config) {
				cfg.Service.WriteTimeout, cfg.Service.UntakenTimeout = 1500*time.Millisecond, test.untaken // siblings read in it
			})
			// Windows that do not grow: otherwise the worker takes what it does not read.
			fixed := func(cfg *failover.Config) {
				cfg.DialOptions = []grpc.DialOption{grpc.WithStaticStreamWindowSize(64 << 10), grpc.WithStaticConnWindowSize(1 << 20)}
			}
			slow, sibling := newWorker(t, path, database, fixed), newWorker(t, path, database)
			stalled := slow.subscribe(nil)
			other := slow.subscribe(nil)
			others := sibling.subscribe(nil)
			ended := make(chan error, 1)
			go func() { ended <- other.end() }()
			// More than the connection and the call hold between them.
			large := strings.Repeat("x", 500_000)
			for range 8 {
				sibling.publish(large)
				others.want(large)
			}
			eventually(t, "evict the slow one", func() bool {
				stream, err := h.Client.GetStream(patient(t), &fanfarev1.GetStreamRequest{Channel: "c", Scope: "s"})
				return err == nil && stream.GetStream().GetSubscribers() <= 2
			})
			if test.goesOn {
				_ = stalled.end()
			}
			slow.mustHaveLeft(test.reason)
			if err := <-ended; status.Code(err) != codes.Unavailable {
				t.Errorf("the other subscription of the worker ended with %v", err)
			}
			sibling.publish("marker")
			others.want("marker")
			sibling.mustUseHub()
			slow.subscribe(other.position).wantAllUpTo("marker")
			if names := census(t, database); len(names) != 2 {
				t.Errorf("listening: %q", names)
			}
		})
	}
}

// mute is a hub that takes everything and answers nothing.
type mute struct {
	fanfarev1.UnimplementedFanfareServiceServer
}

func (mute) Subscribe(_ *fanfarev1.SubscribeRequest, s fanfarev1.FanfareService_SubscribeServer) error {
	<-s.Context().Done()
	return s.Context().Err()
}

func (mute) Session(s fanfarev1.FanfareService_SessionServer) error {
	<-s.Context().Done()
	return s.Context().Err()
}

func (mute) Publish(ctx context.Context, _ *fanfarev1.PublishRequest) (*fanfarev1.PublishResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A hub that takes calls and never answers them: the subscription moves after the ack
// timeout, and a publish under way is not left hanging on it, with an outcome that
// nobody knows.
func TestSubscriptionsThatAreNotAcknowledged(t *testing.T) {
	t.Parallel()
	database, path := migrated(t), socketIn(t)
	serveMute(t, path)
	w := newWorker(t, path, database, func(cfg *failover.Config) { cfg.AckTimeout = 300 * time.Millisecond })
	published := make(chan error, 1)
	go func() {
		_, err := w.Publish(patient(t), publishRequest("a"))
		published <- err
	}()
	call, err := w.Subscribe(patient(t), &fanfarev1.SubscribeRequest{Channel: "c", Scope: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := call.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the subscription ended with %v", err)
	}
	w.mustHaveLeft(failover.NotAcknowledged)
	if err := <-published; err == nil || status.Code(err) != codes.Unavailable || len(status.Convert(err).Details()) > 1 {
		t.Errorf("the publish ended with %v", err)
	}
	w.publish("b")
	w.subscribe(nil).want("b")
}

// The same of a session, whose subscriptions are answered one by one.
func TestSessionsThatAreNotAcknowledged(t *testing.T) {
	t.Parallel()
	database, path := migrated(t), socketIn(t)
	serveMute(t, path)
	w := newWorker(t, path, database, func(cfg *failover.Config) { cfg.AckTimeout = 300 * time.Millisecond })
	client := clientlib.New(w, clientlib.WithSession())
	defer client.Close()
	sub := client.Subscribe(patient(t), clientlib.Stream{Channel: "c", Scope: "s"}, clientlib.Oldest())
	for {
		event, err := sub.Next(patient(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := event.(*clientlib.Subscribed); ok {
			break
		}
	}
	w.mustHaveLeft(failover.NotAcknowledged)
}

// More subscriptions than a hub takes calls on one connection wait without an answer,
// and without anybody being told: that is no acknowledgement, either.
func TestSubscriptionsThatTheHubDoesNotTake(t *testing.T) {
	t.Parallel()
	database, path := migrated(t), socketIn(t)
	startHub(t, database, path, func(cfg *servicetest.Config) { cfg.Service.MaxConcurrentStreams = 1 })
	w := newWorker(t, path, database, func(cfg *failover.Config) { cfg.AckTimeout = 300 * time.Millisecond })
	first := w.subscribe(nil)
	if call, err := w.Subscribe(patient(t), &fanfarev1.SubscribeRequest{Channel: "c", Scope: "s"}); err == nil {
		_, err = call.Recv()
		t.Fatalf("subscribed beyond the limit: %v", err)
	}
	w.mustHaveLeft(failover.NotAcknowledged)
	if err := first.end(); status.Code(err) != codes.Unavailable {
		t.Errorf("the first subscription ended with %v", err)
	}
	w.publish("a")
	w.subscribe(first.position).want("a")
	w.subscribe(first.position).want("a")
}

// serveMute has a mute hub serve on a socket.
func serveMute(t *testing.T, path string) {
	t.Helper()
	g := grpc.NewServer()
	fanfarev1.RegisterFanfareServiceServer(g, mute{})
	lis := listenAt(t, path)
	served := make(chan struct{})
	go func() { defer close(served); _ = g.Serve(lis) }()
	t.Cleanup(func() { g.Stop(); <-served })
}

// Calls may be as old as the server says; then they begin anew, at the hub.
func TestAgedCallsStayAtTheHub(t *testing.T) {
	t.Parallel()
	database, path := migrated(t), socketIn(t)
	startHub(t, database, path, func(cfg *servicetest.Config) { cfg.Service.MaxStreamAge = 200 * time.Millisecond })
	w := newWorker(t, path, database)
	r := w.subscribe(nil)
	if err := r.end(); status.Code(err) != codes.Unavailable {
		t.Fatalf("the call ended with %v", err)
	}
	w.publish("a")
	w.subscribe(r.position).want("a")
	w.mustUseHub()
}

// refusals of requests are no failures of the hub.
func TestRefusedCallsStayAtTheHub(t *testing.T) {
	t.Parallel()
	database, path := migrated(t), socketIn(t)
	startHub(t, database, path, func(cfg *servicetest.Config) { cfg.Service.MaxSubscriptions = 1 })
	w := newWorker(t, path, database)
	w.subscribe(nil)
	for name, test := range map[string]struct {
		request *fanfarev1.SubscribeRequest
		code    codes.Code
	}{
		"a field":   {&fanfarev1.SubscribeRequest{}, codes.InvalidArgument},
		"the limit": {&fanfarev1.SubscribeRequest{Channel: "c"}, codes.ResourceExhausted},
	} {
		call, err := w.Subscribe(patient(t), test.request)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := call.Recv(); status.Code(err) != test.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A deadline is the caller's.
	ctx, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
	defer cancel()
	if _, err := w.Publish(ctx, publishRequest("a")); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a call without time: %v", err)
	}
	w.mustUseHub()
}

// Close ends what is under way, whichever way it goes, and further calls.
func TestCloseEndsCalls(t *testing.T) {
	t.Parallel()
	database, path := migrated(t), socketIn(t)
	for name, use := range map[string]func(t *testing.T) *worker{
		"hub": func(t *testing.T) *worker {
			startHub(t, database, path)
			return newWorker(t, path, database)
		},
		"own": func(t *testing.T) *worker { return newWorker(t, filepath.Join(path, "nowhere"), database) },
	} {
		t.Run(name, func(t *testing.T) {
			w := use(t)
			r := w.subscribe(nil)
			if err := w.Close(); err != nil {
				t.Error(err)
			}
			if err := r.end(); status.Code(err) != codes.Canceled {
				t.Errorf("the subscription ended with %v", err)
			}
			if _, err := w.Publish(patient(t), publishRequest("a")); status.Code(err) != codes.Canceled {
				t.Errorf("publish afterwards: %v", err)
			}
			if err := w.Close(); err != nil {
				t.Errorf("close again: %v", err)
			}
		})
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the hub is still there")
	}
}
