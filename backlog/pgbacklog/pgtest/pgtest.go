package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// databaseURLVariable names the environment variable with the URL of a server
// that tests may create databases on.
const databaseURLVariable = "FANFARE_TEST_DATABASE_URL"

// shared is the server of this process's tests.
var shared struct {
	// once guards the start; the other fields are written by it alone.
	once   sync.Once
	server *Server // nil if databaseURLVariable is set
	url    string
	err    error
}

// Run runs m's tests, stops the shared server and returns the exit code:
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }
func Run(m *testing.M) int {
	code := m.Run()
	if shared.server == nil {
		return code
	}
	if err := shared.server.remove(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		if code == 0 {
			code = 1
		}
	}
	return code
}

// NewDatabase creates an empty database on the shared server and returns its
// URL. Its notify channels are its own: notifications never leave a database.
// It is dropped when t ends, whoever is connected.
func NewDatabase(t testing.TB) string {
	t.Helper()
	shared.once.Do(startShared)
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return newDatabase(t, shared.url)
}

func startShared() {
	if u := os.Getenv(databaseURLVariable); u != "" {
		if !strings.HasPrefix(u, "postgres://") && !strings.HasPrefix(u, "postgresql://") {
			shared.err = fmt.Errorf("%s must be a URL that begins with postgres://", databaseURLVariable)
			return
		}
		shared.url = u
		return
	}
	shared.server, shared.err = launch(nil)
	if shared.err == nil {
		shared.url = shared.server.URL("postgres")
	}
}

// newDatabase creates a database through a URL of another one of the server.
func newDatabase(t testing.TB, serverURL string) string {
	t.Helper()
	name := "fanfare_test_" + strings.ToLower(rand.Text()[:16])
	// template0 has no sessions that could hold up the copy.
	if err := execute(serverURL, "create database "+name+" template template0 encoding 'UTF8'"); err != nil {
		t.Fatalf("create a test database: %v", err)
	}
	t.Cleanup(func() {
		err := drop(serverURL, name)
		var refused *pgconn.ConnectError
		if err != nil && !errors.As(err, &refused) { // a test may leave its own server stopped
			t.Errorf("drop the test database: %v", err)
		}
	})
	return withDatabase(serverURL, name)
}

// drop ends what is connected to a database and drops it. PostgreSQL waits for the
// ends for 5 seconds, which is too short on a busy machine.
func drop(serverURL, name string) (err error) {
	for range 6 {
		err = execute(serverURL, "drop database if exists "+name+" with (force)")
		var inUse *pgconn.PgError
		if !errors.As(err, &inUse) || inUse.Code != "55006" {
			return err
		}
	}
	return err
}

func execute(databaseURL, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

func withDatabase(databaseURL, name string) string {
	u, err := url.Parse(databaseURL)
	if err != nil {
		return databaseURL // pgx has parsed it before
	}
	u.Path = "/" + name
	return u.String()
}
