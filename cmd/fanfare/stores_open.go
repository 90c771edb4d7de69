package main

import (
	"context"
	"log/slog"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog"
	"github.com/fanfare-io/fanfare/backlog/sqlitebacklog"
	"github.com/fanfare-io/fanfare/service/hub"
	"github.com/fanfare-io/fanfare/service/replica"
)

// openPostgreSQL migrates if it should, and opens a store on PostgreSQL. Its bus
// is a listener, or in poll mode what does without one.
func (o *serveOptions) openPostgreSQL(ctx context.Context, logger *slog.Logger) (*replica.OpenStore, error) {
	if o.migrate == "auto" {
		if err := pgbacklog.Migrate(ctx, o.listenURL, o.schema, logger); err != nil {
			return nil, err
		}
	}
	if o.pollInterval > 0 {
		return replica.OpenPolling(ctx, o.postgreSQLConfig(logger), o.pollInterval)
	}
	return replica.OpenPostgreSQL(ctx, o.postgreSQLConfig(logger), o.listenURL)
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

// openSQLite opens the embedded store. Its bus is in this process.
func (o *serveOptions) openSQLite(ctx context.Context, logger *slog.Logger) (*replica.OpenStore, error) {
	config := sqlitebacklog.Config{MaxFrameBytes: o.maxFrameBytes, Logger: logger}
	if o.setBacklog {
		config.Backlog = &o.backlog
	}
	store, err := o.openFile(ctx, config)
	if err != nil {
		return nil, err
	}
	bus := store.Bus()
	return &replica.OpenStore{
		Store:         store,
		MaxFrameBytes: store.MaxFrameBytes(),
		Bus:           bus,
		RunBus:        func(ctx context.Context, h *hub.Hub) error { return bus.Run(ctx, h) },
		Parts:         []replica.Part{{Name: "store", Run: store.Run}},
	}, nil
}
