package failover_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/failover"
)

// exampleDatabase makes a database for an example, and what drops it.
func exampleDatabase() (url string, drop func()) {
	t := &exampleT{}
	return migrated(t), t.end
}

// exampleT is what helpers of tests need of one.
type exampleT struct {
	testing.TB
	cleanups []func()
}

func (t *exampleT) Helper()                      {}
func (t *exampleT) Cleanup(f func())             { t.cleanups = append(t.cleanups, f) }
func (t *exampleT) Fatal(args ...any)            { log.Panic(args...) }
func (t *exampleT) Fatalf(f string, args ...any) { log.Panicf(f, args...) }
func (t *exampleT) Errorf(f string, args ...any) { log.Panicf(f, args...) }

func (t *exampleT) end() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
}

// A worker publishes and subscribes with the client library, by the hub of its host if
// there is one, as here there is not.
func ExampleNew() {
	database, drop := exampleDatabase()
	defer drop()
	conn, err := failover.New(failover.Config{
		Hub:      "unix:///nowhere/fanfare/fanfare.sock",
		Database: database,
		Logger:   slog.New(slog.DiscardHandler),
		OnFailover: func(reason failover.Reason, _ error) {
			fmt.Println("serving itself, since the hub is", reason)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	client := clientlib.New(conn)
	defer client.Close()

	ctx := context.Background()
	lobby := clientlib.Stream{Channel: "example/messages", Scope: "lobby"}
	if _, err := client.Publish(ctx, clientlib.NewFrame{Stream: lobby, Payload: []byte("hello")}); err != nil {
		log.Fatal(err)
	}
	subscription := client.Subscribe(ctx, lobby, clientlib.Oldest())
	defer subscription.Close()
	for event, err := range subscription.All(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		if frame, ok := event.(*clientlib.Frame); ok {
			fmt.Printf("got %s\n", frame.Payload)
			break
		}
	}
	// Output:
	// serving itself, since the hub is absent
	// got hello
}

// With the hub alone, a worker that may not, or need not, reach the database waits for
// the hub. A process on a host without a hub serves itself from the beginning.
func ExampleMode() {
	for _, cfg := range []failover.Config{
		{Hub: "unix:///run/fanfare/fanfare.sock", Mode: failover.HubOnly},
		{Database: "postgres://app@db.internal/app", Mode: failover.OwnOnly},
	} {
		conn, err := failover.New(cfg)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(cfg.Mode, conn.UsesHub())
		conn.Close()
	}
	// Output:
	// hub only true
	// own only false
}

// What a team wants to know of when a worker has left its hub.
func ExampleReason() {
	what := func(reason failover.Reason) string {
		switch reason {
		case failover.Absent, failover.Lost:
			return "start the hub again"
		case failover.NotAcknowledged:
			return "look what holds the hub up"
		case failover.Evicted:
			return "look what holds this worker up"
		default:
			return "look into the log"
		}
	}
	conn, err := failover.New(failover.Config{
		Hub:      "unix:///run/fanfare/fanfare.sock",
		Database: "postgres://app@db.internal/app",
		Mode:     failover.Automatic, // as without it
		OnFailover: func(reason failover.Reason, err error) {
			log.Println(what(reason)+":", err)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	fmt.Println(what(failover.Evicted))
	// Output: look what holds this worker up
}

// A health page tells operators which workers serve themselves.
func ExampleConn_State() {
	conn, err := failover.New(failover.Config{
		Hub:      "unix:///run/fanfare/fanfare.sock",
		Database: "postgres://app@db.internal/app",
	})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	if state := conn.State(); state.Hub {
		fmt.Println("by the hub")
	} else {
		fmt.Println("by itself since", state.Since, "because the hub was", state.Reason, state.Err)
	}
	// Output: by the hub
}

// A worker is told to return, perhaps by a signal, when the hub is well again.
func ExampleConn_ReturnToHub() {
	database, drop := exampleDatabase()
	defer drop()
	dir, err := os.MkdirTemp("", "fanfare-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	conn, err := failover.New(failover.Config{
		Hub:      "unix://" + filepath.Join(dir, "fanfare.sock"),
		Database: database,
		Logger:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	client := clientlib.New(conn)
	defer client.Close()
	if _, err := client.Publish(context.Background(), clientlib.NewFrame{
		Stream: clientlib.Stream{Channel: "example/returns"}, Payload: []byte("by itself"),
	}); err != nil {
		log.Fatal(err)
	}
	err = conn.ReturnToHub(context.Background())
	fmt.Println("returned:", err == nil, "- by the hub:", conn.UsesHub())
	// Output: returned: false - by the hub: false
}
