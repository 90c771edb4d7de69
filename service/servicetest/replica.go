package servicetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog"
	"github.com/fanfare-io/fanfare/backlog/sqlitebacklog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/listener"
	"github.com/fanfare-io/fanfare/service"
	"github.com/fanfare-io/fanfare/service/hub"
)

// readyTimeout bounds how long a replica may take to start.
const readyTimeout = 30 * time.Second

// Config tunes a replica of a test. The zero value is the default.
type Config struct {
	// Backlog, if not nil, becomes the store's default backlog.
	Backlog *int64
	// JanitorInterval is how long the store's janitor rests; 0: its default.
	JanitorInterval time.Duration
	Hub             hub.Config
	Service         service.Config
	// Logger gets the log of all parts; nil: nothing is logged.
	Logger *slog.Logger

	// ListenURL is the URL of PostgreSQL's listener; empty: the store's.
	ListenURL string
	// MigrateURL is where PostgreSQL's schema is migrated; empty: the store's URL.
	MigrateURL string
	PostgreSQL pgbacklog.Config
	Listener   listener.Config

	SQLite sqlitebacklog.Config
}

// instances numbers the replicas of a process.
var instances atomic.Int64

// Replica is a whole server in process, on a loopback port.
type Replica struct {
	// Instance is its name in pg_stat_activity.
	Instance string
	Addr     string
	Store    backlog.Store
	Hub      *hub.Hub
	Bus      hub.Bus
	// Listener and ListenerBus, which is Bus, are nil unless the store is on
	// PostgreSQL.
	Listener    *listener.Listener
	ListenerBus *listener.Bus
	Server      *service.Server
	GRPC        *grpc.Server
	// Conn is a connection to the replica, and Client uses it.
	Conn   *grpc.ClientConn
	Client fanfarev1.FanfareServiceClient

	// parts are the Run methods of the store, its bus and what these need. runs
	// holds what they returned; stop ends them.
	parts []func(context.Context) error
	runs  *errgroup.Group
	stop  context.CancelFunc
	once  sync.Once
}

// Start starts a replica on a store, which is migrated first, and waits until it
// is ready: postgres://…, sqlite:PATH or sqlite::memory:. It is stopped when t
// ends.
func Start(t testing.TB, storeURL string, options ...func(*Config)) *Replica {
	t.Helper()
	cfg := configure(options)
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	r, err := assemble(ctx, storeURL, cfg)
	if err != nil {
		t.Fatalf("start a replica: %v", err)
	}
	if err := r.serve(); err != nil {
		r.Store.Close()
		t.Fatalf("start a replica: %v", err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Errorf("replica %s: %v", r.Instance, err)
		}
	})
	if _, err := r.Bus.Ensure(ctx); err != nil {
		t.Fatalf("replica %s does not listen: %v", r.Instance, err)
	}
	return r
}

func configure(options []func(*Config)) Config {
	var cfg Config
	for _, option := range options {
		option(&cfg)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Hub.StatusNotices = true
	cfg.Hub.Logger, cfg.Service.Logger = cfg.Logger, cfg.Logger
	return cfg
}

// assemble builds the parts, from the store up.
func assemble(ctx context.Context, storeURL string, cfg Config) (*Replica, error) {
	r := &Replica{Instance: fmt.Sprintf("test-%d", instances.Add(1))}
	open := r.openPostgreSQL
	if strings.HasPrefix(storeURL, sqlitePrefix) {
		open = r.openSQLite
	}
	if err := open(ctx, storeURL, &cfg); err != nil {
		return nil, err
	}
	r.Hub = hub.New(r.Bus, r.Store, service.EncodeFrame, cfg.Hub)
	r.Server = service.New(r.Store, r.Hub, r.Bus, cfg.Service)
	r.GRPC = grpc.NewServer(r.Server.ServerOptions()...)
	r.Server.Register(r.GRPC)
	return r, nil
}

// serve runs the parts and connects a client.
func (r *Replica) serve() error {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	r.Addr = socket.Addr().String()
	if r.Conn, err = r.Connect(); err != nil {
		return err
	}
	r.Client = fanfarev1.NewFanfareServiceClient(r.Conn)

	ctx, stop := context.WithCancel(context.Background())
	r.stop, r.runs = stop, &errgroup.Group{}
	for _, run := range append(r.parts, r.Hub.Run, r.Server.Run) {
		r.runs.Go(func() error { return run(ctx) })
	}
	r.runs.Go(func() error {
		// Stop may come before it serves.
		if err := r.GRPC.Serve(socket); !errors.Is(err, grpc.ErrServerStopped) {
			return err
		}
		return nil
	})
	return nil
}

// Connect returns a further connection to the replica, which the caller closes.
func (r *Replica) Connect() (*grpc.ClientConn, error) {
	return grpc.NewClient(r.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// Drain drains the replica as a shutdown does. Stop is still due.
func (r *Replica) Drain(ctx context.Context) error { return r.Server.Drain(ctx, r.GRPC) }

// Stop ends the replica at once, as a crash would for its clients, and returns
// what its parts failed with. Further calls do nothing.
func (r *Replica) Stop() error {
	var err error
	r.once.Do(func() {
		r.GRPC.Stop()
		r.stop()
		err = r.runs.Wait()
		r.Store.Close()
		_ = r.Conn.Close()
	})
	return err
}
