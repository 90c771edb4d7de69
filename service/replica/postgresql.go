package replica

import (
	"context"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog"
	"github.com/fanfare-io/fanfare/listener"
	"github.com/fanfare-io/fanfare/service/hub"
)

// defaultReceiveLimit is the largest message that gRPC clients take unless told
// otherwise; frameOverhead is the most that a response adds to a payload.
const (
	defaultReceiveLimit = 4 << 20
	frameOverhead       = backlog.MaxHeaderBytes + backlog.MaxHeaders*16 + 2*backlog.MaxTypeBytes + 256
)

// OpenStore is a store that is open, with the bus that tells of its commits and
// what has to run for both. Who made it closes the store, when everything else has
// ended.
type OpenStore struct {
	backlog.Store
	// MaxFrameBytes bounds a payload.
	MaxFrameBytes int

	Bus hub.Bus
	// RunBus tells the hub of commits, until ctx ends.
	RunBus func(ctx context.Context, h *hub.Hub) error
	// Parts run before the hub and until it has ended, in this order.
	Parts []Part
}

// Part is something that has to run.
type Part struct {
	Name string
	// Run returns nil after ctx has ended, and an error otherwise.
	Run func(ctx context.Context) error
}

// OpenPostgreSQL opens a store on a migrated schema, with a listener as its bus.
// Connections that listen go to listenURL, which must lead to PostgreSQL itself; the
// store's own may lead through a transaction pooler. A server that cannot be reached
// is backlog.ErrUnavailable.
func OpenPostgreSQL(ctx context.Context, config pgbacklog.Config, listenURL string) (*OpenStore, error) {
	store, err := pgbacklog.Open(ctx, config)
	if err != nil {
		return nil, err
	}
	listening, err := listener.New(listener.Config{
		URL:       listenURL,
		Instance:  config.Instance,
		OriginSQL: store.OriginSQL(),
		Logger:    config.Logger,
		Probe:     store.Notify,
	})
	if err != nil {
		store.Close()
		return nil, err
	}
	bus := listener.NewBus(listening, store.NotifyChannel(), AnnouncementKeys(store), config.Logger)
	return &OpenStore{
		Store:         store,
		MaxFrameBytes: store.MaxFrameBytes(),
		Bus:           bus,
		RunBus:        func(ctx context.Context, h *hub.Hub) error { return bus.Run(ctx, h) },
		Parts:         []Part{{"store", store.Run}, {"listener", listening.Run}},
	}, nil
}

// OpenPolling is OpenPostgreSQL for a database that nobody can listen to: it is asked
// at an interval.
func OpenPolling(ctx context.Context, config pgbacklog.Config, interval time.Duration) (*OpenStore, error) {
	store, err := pgbacklog.Open(ctx, config)
	if err != nil {
		return nil, err
	}
	poll := listener.NewPoll(listener.PollConfig{Origin: originOf(store), Interval: interval, Logger: config.Logger})
	return &OpenStore{
		Store:         store,
		MaxFrameBytes: store.MaxFrameBytes(),
		Bus:           poll,
		RunBus:        func(ctx context.Context, h *hub.Hub) error { return poll.Run(ctx, h) },
		Parts:         []Part{{"store", store.Run}},
	}, nil
}

// originOf asks for the origin of the server that answers loads, which is not in
// recovery.
func originOf(store backlog.Store) func(context.Context) (uint64, error) {
	// Every load tells the origin; whether there is such a stream makes no
	// difference.
	nothing := []backlog.LoadRequest{{Stream: backlog.StreamName{Channel: "fanfare"}}}
	return func(ctx context.Context) (uint64, error) {
		result, err := store.Load(ctx, 0, nothing)
		return result.Origin, err
	}
}

// AnnouncementKeys returns what reads the keys that announcements are checked with, for
// [listener.NewBus].
func AnnouncementKeys(store *pgbacklog.Store) func(context.Context) ([]listener.Key, error) {
	return func(ctx context.Context) ([]listener.Key, error) {
		stored, err := store.AnnouncementKeys(ctx)
		if err != nil {
			return nil, err
		}
		keys := make([]listener.Key, len(stored))
		for i, key := range stored {
			keys[i] = listener.Key{ID: key.ID, Secret: key.Secret}
		}
		return keys, nil
	}
}
