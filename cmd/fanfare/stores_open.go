package main

import (
	"context"
	"log/slog"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog"
	"github.com/fanfare-io/fanfare/backlog/sqlitebacklog"
	"github.com/fanfare-io/fanfare/listener"
	"github.com/fanfare-io/fanfare/service/hub"
)

// openStore is a store that is open, with the bus that tells of its commits and
// what has to run for both.
type openStore struct {
	backlog.Store
	maxFrameBytes int

	bus hub.Bus
	// runBus tells the hub, until ctx ends.
	runBus func(ctx context.Context, h *hub.Hub) error

	// place is where the store is, for people.
	place string
	// parts run before the hub and until it has ended, in this order.
	parts []part
}

// part is something that has to run.
type part struct {
	name string
	run  func(context.Context) error
}

// openPostgreSQL migrates if it should, and opens a store on PostgreSQL. Its bus
// is a listener, or in poll mode what does without one.
func (o *serveOptions) openPostgreSQL(ctx context.Context, logger *slog.Logger) (*openStore, error) {
	if o.migrate == "auto" {
		if err := pgbacklog.Migrate(ctx, o.listenURL, o.schema, logger); err != nil {
			return nil, err
		}
	}
	store, err := pgbacklog.Open(ctx, o.postgreSQLConfig(logger))
	if err != nil {
		return nil, err
	}
	open := &openStore{
		Store:         store,
		maxFrameBytes: store.MaxFrameBytes(),
		place:         o.place(),
		parts:         []part{{"store", store.Run}},
	}
	if o.pollInterval > 0 {
		poll := listener.NewPoll(listener.PollConfig{Origin: originOf(store), Interval: o.pollInterval, Logger: logger})
		open.bus = poll
		open.runBus = func(ctx context.Context, h *hub.Hub) error { return poll.Run(ctx, h) }
		return open, nil
	}
	listening, err := listener.New(listener.Config{
		URL:       o.listenURL,
		Instance:  o.instance,
		OriginSQL: store.OriginSQL(),
		Logger:    logger,
		Probe:     store.Notify,
	})
	if err != nil {
		store.Close()
		return nil, err
	}
	bus := listener.NewBus(listening, store.NotifyChannel(), announcementKeys(store), logger)
	open.bus = bus
	open.runBus = func(ctx context.Context, h *hub.Hub) error { return bus.Run(ctx, h) }
	open.parts = append(open.parts, part{"listener", listening.Run})
	return open, nil
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

func (o *serveOptions) postgreSQLConfig(logger *slog.Logger) pgbacklog.Config {
	config := pgbacklog.Config{
		URL:           o.store,
		Schema:        o.schema,
		Instance:      o.instance,
		Logger:        logger,
		MaxFrameBytes: o.maxFrameBytes,
		Replicas:      o.replicas,
	}
	if o.setBacklog {
		config.Backlog = &o.backlog
	}
	return config
}

// announcementKeys reads the keys that announcements are checked with.
func announcementKeys(store *pgbacklog.Store) func(context.Context) ([]listener.Key, error) {
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

// openSQLite opens the embedded store. Its bus is in this process.
func (o *serveOptions) openSQLite(ctx context.Context, logger *slog.Logger) (*openStore, error) {
	config := sqlitebacklog.Config{MaxFrameBytes: o.maxFrameBytes, Logger: logger}
	if o.setBacklog {
		config.Backlog = &o.backlog
	}
	store, err := o.openFile(ctx, config)
	if err != nil {
		return nil, err
	}
	bus := store.Bus()
	return &openStore{
		Store:         store,
		maxFrameBytes: store.MaxFrameBytes(),
		bus:           bus,
		runBus:        func(ctx context.Context, h *hub.Hub) error { return bus.Run(ctx, h) },
		place:         o.place(),
		parts:         []part{{"store", store.Run}},
	}, nil
}
