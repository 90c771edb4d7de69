package servicetest

import (
	"context"
	"strings"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog"
	"github.com/fanfare-io/fanfare/backlog/sqlitebacklog"
	"github.com/fanfare-io/fanfare/listener"
	"github.com/fanfare-io/fanfare/service"
	"github.com/fanfare-io/fanfare/service/replica"
)

// sqlitePrefix is what the URL of a store on SQLite begins with.
const sqlitePrefix = "sqlite:"

// openPostgreSQL migrates and opens a store on PostgreSQL with its listener, and
// tells the service's configuration of it.
func (r *Replica) openPostgreSQL(ctx context.Context, url string, cfg *Config) error {
	if cfg.ListenURL == "" {
		cfg.ListenURL = url
	}
	if cfg.MigrateURL == "" {
		cfg.MigrateURL = url
	}
	if cfg.PostgreSQL.Schema == "" {
		cfg.PostgreSQL.Schema = pgbacklog.DefaultSchema
	}
	if err := pgbacklog.Migrate(ctx, cfg.MigrateURL, cfg.PostgreSQL.Schema, cfg.Logger); err != nil {
		return err
	}
	cfg.PostgreSQL.URL, cfg.PostgreSQL.Instance, cfg.PostgreSQL.Logger = url, r.Instance, cfg.Logger
	cfg.PostgreSQL.Backlog, cfg.PostgreSQL.JanitorInterval = cfg.Backlog, cfg.JanitorInterval
	store, err := pgbacklog.Open(ctx, cfg.PostgreSQL)
	if err != nil {
		return err
	}
	cfg.Listener.URL, cfg.Listener.Instance, cfg.Listener.Logger = cfg.ListenURL, r.Instance, cfg.Logger
	cfg.Listener.OriginSQL, cfg.Listener.Probe = store.OriginSQL(), store.Notify
	if r.Listener, err = listener.New(cfg.Listener); err != nil {
		store.Close()
		return err
	}
	r.ListenerBus = listener.NewBus(r.Listener, store.NotifyChannel(), replica.AnnouncementKeys(store), cfg.Logger)
	r.Store, r.Bus = store, r.ListenerBus
	r.parts = append(r.parts, store.Run, r.Listener.Run,
		func(ctx context.Context) error { return r.ListenerBus.Run(ctx, r.Hub) })
	cfg.Service.MaxFrameBytes, cfg.Service.BusKind = store.MaxFrameBytes(), service.BusPostgreSQL
	return nil
}

// openSQLite opens a store on SQLite, and tells the service's configuration of it.
func (r *Replica) openSQLite(ctx context.Context, url string, cfg *Config) error {
	cfg.SQLite.Path, cfg.SQLite.Logger = strings.TrimPrefix(url, sqlitePrefix), cfg.Logger
	cfg.SQLite.Backlog, cfg.SQLite.JanitorInterval = cfg.Backlog, cfg.JanitorInterval
	store, err := sqlitebacklog.Open(ctx, cfg.SQLite)
	if err != nil {
		return err
	}
	bus := store.Bus()
	r.Store, r.Bus = store, bus
	r.parts = append(r.parts, store.Run, func(ctx context.Context) error { return bus.Run(ctx, r.Hub) })
	cfg.Service.MaxFrameBytes, cfg.Service.BusKind = store.MaxFrameBytes(), service.BusInProcess
	return nil
}
