package servicetest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/listener"
	"github.com/fanfare-io/fanfare/service"
	"github.com/fanfare-io/fanfare/service/hub"
)

// readyTimeout bounds how long a replica may take to start.
const readyTimeout = 30 * time.Second

// Config tunes a replica of a test. The zero value is the default.
type Config struct {
	// ListenURL is the listener's URL; empty: the store's.
	ListenURL string
	// MigrateURL is where the schema is migrated; empty: the store's URL.
	MigrateURL string
	Store      pgbacklog.Config
	Hub        hub.Config
	Service    service.Config
	Listener   listener.Config
	// Logger gets the log of all parts; nil: nothing is logged.
	Logger *slog.Logger
}

// instances numbers the replicas of a process.
var instances atomic.Int64

// Replica is a whole server in process, on a loopback port.
type Replica struct {
	// Instance is its name in pg_stat_activity.
	Instance string
	Addr     string
	Store    *pgbacklog.Store
	Hub      *hub.Hub
	Listener *listener.Listener
	Bus      *listener.Bus
	Server   *service.Server
	GRPC     *grpc.Server
	// Conn is a connection to the replica, and Client uses it.
	Conn   *grpc.ClientConn
	Client fanfarev1.FanfareServiceClient

	// runs holds what Run methods returned; stop ends them.
	runs *errgroup.Group
	stop context.CancelFunc
	once sync.Once
}

// Start starts a replica on a database, migrated first, and waits until it is
// ready. It is stopped when t ends.
func Start(t testing.TB, databaseURL string, options ...func(*Config)) *Replica {
	t.Helper()
	cfg := configure(databaseURL, options)
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	r, err := assemble(ctx, cfg)
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

func configure(databaseURL string, options []func(*Config)) Config {
	var cfg Config
	for _, option := range options {
		option(&cfg)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.ListenURL == "" {
		cfg.ListenURL = databaseURL
	}
	if cfg.MigrateURL == "" {
		cfg.MigrateURL = databaseURL
	}
	if cfg.Store.Schema == "" {
		cfg.Store.Schema = pgbacklog.DefaultSchema
	}
	cfg.Store.URL, cfg.Listener.URL = databaseURL, cfg.ListenURL
	cfg.Store.Logger, cfg.Listener.Logger, cfg.Hub.Logger, cfg.Service.Logger = cfg.Logger, cfg.Logger, cfg.Logger, cfg.Logger
	return cfg
}

// assemble builds the parts, from the store up.
func assemble(ctx context.Context, cfg Config) (*Replica, error) {
	r := &Replica{Instance: fmt.Sprintf("test-%d", instances.Add(1))}
	if err := pgbacklog.Migrate(ctx, cfg.MigrateURL, cfg.Store.Schema, cfg.Logger); err != nil {
		return nil, err
	}
	cfg.Store.Instance, cfg.Listener.Instance = r.Instance, r.Instance
	store, err := pgbacklog.Open(ctx, cfg.Store)
	if err != nil {
		return nil, err
	}
	r.Store = store
	cfg.Listener.OriginSQL = store.OriginSQL()
	cfg.Listener.Probe = store.Notify
	if r.Listener, err = listener.New(cfg.Listener); err != nil {
		store.Close()
		return nil, err
	}
	r.Bus = listener.NewBus(r.Listener, store.NotifyChannel(), announcementKeys(store), cfg.Logger)
	r.Hub = hub.New(r.Bus, store, service.EncodeFrame, cfg.Hub)
	cfg.Service.MaxFrameBytes = store.MaxFrameBytes()
	r.Server = service.New(store, r.Hub, r.Bus, cfg.Service)
	r.GRPC = grpc.NewServer(r.Server.ServerOptions()...)
	r.Server.Register(r.GRPC)
	return r, nil
}

// announcementKeys adapts the store's keys to the listener's.
func announcementKeys(store *pgbacklog.Store) func(context.Context) ([]listener.Key, error) {
	return func(ctx context.Context) ([]listener.Key, error) {
		keys, err := store.AnnouncementKeys(ctx)
		out := make([]listener.Key, len(keys))
		for i, k := range keys {
			out[i] = listener.Key{ID: k.ID, Secret: k.Secret}
		}
		return out, err
	}
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
	for _, run := range []func(context.Context) error{
		r.Store.Run,
		r.Listener.Run,
		func(ctx context.Context) error { return r.Bus.Run(ctx, r.Hub) },
		r.Hub.Run,
		r.Server.Run,
	} {
		r.runs.Go(func() error { return run(ctx) })
	}
	r.runs.Go(func() error { return r.GRPC.Serve(socket) })
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
