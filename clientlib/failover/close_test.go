package failover_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/clientlib/failover"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// lockedHub is one of which a stream is locked, and that finds all subscribers slow.
type lockedHub struct {
	fanfarev1.UnimplementedFanfareServiceServer
	publishing chan struct{} // closed when a publish waits
}

func (h *lockedHub) Publish(ctx context.Context, _ *fanfarev1.PublishRequest) (*fanfarev1.PublishResponse, error) {
	close(h.publishing)
	<-ctx.Done()
	return nil, ctx.Err()
}

func (h *lockedHub) Subscribe(*fanfarev1.SubscribeRequest, grpc.ServerStreamingServer[fanfarev1.SubscribeResponse]) error {
	<-h.publishing
	st, err := status.New(codes.ResourceExhausted, "slow").WithDetails(&errdetails.ErrorInfo{Domain: "fanfare.dev", Reason: "SLOW_SUBSCRIBER"})
	if err != nil {
		return err
	}
	return st.Err()
}

// Close hung while a publish waited for a locked stream where the Conn had left. Cause: it
// cut the calls of the way in use only, and waited for those of all. What was left lets
// its unary calls finish, which nothing else bounds.
func TestCloseEndsWhatWasLeft(t *testing.T) {
	t.Run("at the hub", func(t *testing.T) {
		t.Parallel()
		path := socketIn(t)
		hub := &lockedHub{publishing: make(chan struct{})}
		server, served := grpc.NewServer(), make(chan struct{})
		fanfarev1.RegisterFanfareServiceServer(server, hub)
		socket := listenAt(t, path)
		go func() {
			defer close(served)
			_ = server.Serve(socket)
		}()
		t.Cleanup(func() { server.Stop(); <-served })
		w := newWorker(t, path, migrated(t))
		published := w.publishAside()
		call, err := w.Subscribe(patient(t), &fanfarev1.SubscribeRequest{Channel: "c"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := call.Recv(); status.Code(err) != codes.ResourceExhausted {
			t.Fatalf("the subscription: %v", err)
		}
		w.mustHaveLeft(failover.Evicted)
		w.mustClose(published)
	})
	t.Run("at the own server", func(t *testing.T) {
		t.Parallel()
		database, path := migrated(t), socketIn(t)
		leaveStaleSocket(t, path)
		w := newWorker(t, path, database)
		w.publish("a")
		w.mustHaveLeft(failover.Absent)
		unlock := lockStreams(t, database)
		published := w.publishAside()
		eventually(t, "wait for the stream", func() bool {
			return query[bool](t, database, "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted")[0]
		})
		startHub(t, database, path)
		returning, cancel := context.WithCancel(patient(t))
		defer cancel()
		returned := make(chan error, 1)
		go func() {
			for { // a hub that has just started may not be ready
				err := w.ReturnToHub(returning)
				if w.UsesHub() || returning.Err() != nil {
					returned <- err
					return
				}
			}
		}()
		eventually(t, "return to the hub", w.UsesHub)
		cancel()
		if err := <-returned; err == nil {
			t.Fatal("the own server has no call any more: nothing is tested")
		}
		w.mustClose(published)
		unlock()
	})
}

// publishAside publishes a frame that waits.
func (w *worker) publishAside() <-chan error {
	published := make(chan error, 1)
	go func() {
		_, err := w.Publish(context.Background(), publishRequest("waits"))
		published <- err
	}()
	return published
}

// mustClose closes the worker, which must end the publish.
func (w *worker) mustClose(published <-chan error) {
	w.t.Helper()
	select {
	case err := <-published:
		w.t.Fatalf("the publish did not wait: %v", err)
	default:
	}
	closed := make(chan error, 1)
	go func() { closed <- w.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			w.t.Error(err)
		}
	case <-time.After(patience):
		w.t.Fatal("Close hangs")
	}
	if err := <-published; status.Code(err) != codes.Canceled {
		w.t.Errorf("the publish ended with %v", err)
	}
}

// lockStreams locks every stream as a foreign transaction does, until the returned
// function is called.
func lockStreams(t *testing.T, database string) (unlock func()) {
	t.Helper()
	conn, err := pgx.Connect(patient(t), database)
	if err != nil {
		t.Fatal(err)
	}
	unlock = func() { conn.Close(context.Background()) }
	t.Cleanup(unlock)
	if _, err := conn.Exec(patient(t), "BEGIN; SELECT * FROM fanfare.streams FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	return unlock
}
