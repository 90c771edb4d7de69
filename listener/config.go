package listener

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

// Defaults of Config.
const (
	DefaultPingInterval   = 3 * time.Second
	DefaultPingTimeout    = 2 * time.Second
	DefaultConnectTimeout = 5 * time.Second
	DefaultCommandTimeout = 5 * time.Second
	DefaultEnsureTimeout  = 10 * time.Second
	DefaultProbeTimeout   = 2 * time.Second
	DefaultHealthyAfter   = 10 * time.Second
)

// maxIdentifierBytes is PostgreSQL's limit for the name of a notify channel.
// LISTEN truncates a longer one with nothing but a notice.
const maxIdentifierBytes = 63

// Config configures a Listener. URL is required.
type Config struct {
	// URL of the database to listen in. It must lead to PostgreSQL itself or to a
	// pooler in session mode: LISTEN does not survive a transaction pooler. With
	// several hosts the first one that is not in recovery is taken.
	URL string
	// Instance names the replica in pg_stat_activity: application_name is
	// fanfare-listen/INSTANCE, cut to 63 bytes.
	Instance string
	// OriginSQL is a query for the server's origin, one bigint, run once on each
	// connection. Empty: origin 0.
	OriginSQL string
	// Logger gets what operators should see. Nil: nothing is logged.
	Logger *slog.Logger

	// PingInterval is the time between checks of the connection. Default 3 s.
	PingInterval time.Duration
	// PingTimeout bounds a check and every other command on a connection that
	// listens; a slower answer counts as a loss. Default 2 s. A half-open connection
	// is found within PingInterval plus PingTimeout.
	PingTimeout time.Duration
	// ConnectTimeout bounds dial, TLS, authentication and settings, for each host
	// of the URL. Default 5 s, or the URL's connect_timeout.
	ConnectTimeout time.Duration
	// CommandTimeout bounds each command on a new connection, until it listens.
	// Default 5 s.
	CommandTimeout time.Duration
	// EnsureTimeout bounds Ensure in addition to its context. Default 10 s.
	EnsureTimeout time.Duration
	// HealthyAfter is how long a connection must have lived for the time between
	// retries to start from its smallest again. Default 10 s.
	HealthyAfter time.Duration

	// Probe commits a NOTIFY of payload on notifyChannel through the URL that
	// publishers use, and returns after the commit. Nil: nothing is probed.
	Probe func(ctx context.Context, notifyChannel, payload string) error
	// ProbeTimeout is how long after its commit a probe may take to arrive.
	// Default 2 s.
	ProbeTimeout time.Duration
}

func (c Config) withDefaults() Config {
	c.PingInterval = cmp.Or(c.PingInterval, DefaultPingInterval)
	c.PingTimeout = cmp.Or(c.PingTimeout, DefaultPingTimeout)
	c.CommandTimeout = cmp.Or(c.CommandTimeout, DefaultCommandTimeout)
	c.EnsureTimeout = cmp.Or(c.EnsureTimeout, DefaultEnsureTimeout)
	c.HealthyAfter = cmp.Or(c.HealthyAfter, DefaultHealthyAfter)
	c.ProbeTimeout = cmp.Or(c.ProbeTimeout, DefaultProbeTimeout)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// connection returns how to connect. Nothing of the URL is in the error that
// could be a password.
func (c Config) connection() (*pgconn.Config, error) {
	if c.URL == "" {
		return nil, errors.New("no URL to listen at")
	}
	config, err := pgconn.ParseConfig(c.URL)
	if err != nil {
		return nil, fmt.Errorf("URL to listen at: %w", err)
	}
	for name := range config.RuntimeParams {
		if name == "application_name" || isClientSetting(name) {
			delete(config.RuntimeParams, name)
		}
	}
	config.RuntimeParams["application_name"] = cutBytes("fanfare-listen/"+c.Instance, maxIdentifierBytes)
	config.RuntimeParams["client_encoding"] = "UTF8"
	config.ConnectTimeout = cmp.Or(c.ConnectTimeout, config.ConnectTimeout, DefaultConnectTimeout)
	return config, nil
}

// isClientSetting tells parameters of pgx and its pool, which may stand in a
// URL that both use, from those that the server knows.
func isClientSetting(name string) bool {
	switch name {
	case "default_query_exec_mode", "statement_cache_capacity", "description_cache_capacity":
		return true
	}
	return strings.HasPrefix(name, "pool_")
}

// cutBytes cuts s to at most limit bytes, between characters.
func cutBytes(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// checkNotifyChannel refuses names that PostgreSQL would change.
func checkNotifyChannel(name string) error {
	switch {
	case name == "":
		return errors.New("the name of the notify channel is empty")
	case len(name) > maxIdentifierBytes:
		return fmt.Errorf("the name of the notify channel %q has %d bytes, PostgreSQL's limit is %d", name, len(name), maxIdentifierBytes)
	case !utf8.ValidString(name) || strings.IndexByte(name, 0) >= 0:
		return fmt.Errorf("the name of the notify channel %q is not valid text", name)
	}
	return nil
}
