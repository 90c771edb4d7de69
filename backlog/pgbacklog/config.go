package pgbacklog

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fanfare-io/fanfare/backlog"
)

// DefaultSchema is the schema used when none is configured.
const DefaultSchema = "fanfare"

// notifyChannelPrefix and the schema's name make up the notify channel of
// frames. That of tasks has a suffix; it counts for the length from the start,
// so that no schema has to be renamed when it begins to carry tasks.
const (
	notifyChannelPrefix      = "fanfare_"
	notifyChannelTasksSuffix = "_tasks"
)

// maxIdentifierBytes is NAMEDATALEN-1. LISTEN cuts a longer name silently while
// pg_notify refuses it, so a longer one would be a listener that hears nothing.
const maxIdentifierBytes = 63

// Config says where the store is and how much it may use. The zero value of
// every field but URL is its default.
type Config struct {
	// URL is a PostgreSQL connection URL or keyword/value string. It may lead
	// through a transaction pooler: the store keeps no session state. Add
	// default_query_exec_mode=exec for a pooler that does not know prepared
	// statements.
	URL string
	// Schema holds the tables and functions; default "fanfare". It is used as it
	// is, capitals and odd characters included.
	Schema string
	// Instance tells replicas apart in pg_stat_activity; it may be empty.
	Instance string
	// Replicas is how many replicas share the database; default 1. Open warns if
	// all of them, configured like this one, may need more connections than the
	// server allows.
	Replicas int
	// Logger gets warnings about the server and what the janitor could not do;
	// default slog.Default().
	Logger *slog.Logger

	// Backlog, if not nil, becomes the backlog of the schema's default policy, which
	// applies where no other one sets a backlog. It is stored in the database, for
	// publishers by SQL too, and a change is logged; nil leaves what is stored there.
	Backlog *int64
	// MaxFrameBytes bounds a payload; 0 means the schema's setting, which is
	// backlog.DefaultMaxFrameBytes in a new schema.
	MaxFrameBytes int

	// MaxQueuedFrames and MaxQueuedBytes bound the publishes that wait for a
	// transaction, lanes included, and the batches and closes, each of which counts
	// as one frame; beyond, they are refused with backlog.ErrPublishQueueFull.
	// Defaults: 10,000 frames, 64 MiB.
	MaxQueuedFrames int
	MaxQueuedBytes  int64

	// Lanes bounds the connections that wait for rows which foreign transactions
	// hold; default 8. BatchConns bounds concurrent atomic batches and closes that
	// wait for no such row; default 4.
	Lanes, BatchConns int
	// LoadConns serve loads and catch-up, PageConns serve subscribers that read
	// what is no longer in memory. Defaults: 2 and 4. They are apart from each
	// other and from publishing, so that slow readers delay nobody else.
	LoadConns, PageConns int

	// ConnectTimeout bounds one attempt to connect when the URL has no
	// connect_timeout; default 5 s.
	ConnectTimeout time.Duration
	// JanitorInterval is how long the janitor rests between sweeps; default 5 s.
	JanitorInterval time.Duration
}

// withDefaults returns c with every zero value replaced by its default.
func (c Config) withDefaults() Config {
	setDefault(&c.Schema, DefaultSchema)
	setDefault(&c.Replicas, 1)
	setDefault(&c.MaxQueuedFrames, 10_000)
	setDefault(&c.MaxQueuedBytes, 64<<20)
	setDefault(&c.Lanes, 8)
	setDefault(&c.BatchConns, 4)
	setDefault(&c.LoadConns, 2)
	setDefault(&c.PageConns, 4)
	setDefault(&c.ConnectTimeout, 5*time.Second)
	setDefault(&c.JanitorInterval, 5*time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// validate checks what can be checked without a server. It expects defaults to
// be set.
func (c Config) validate() error {
	if c.URL == "" {
		return errors.New("no database URL is configured")
	}
	if err := validateSchema(c.Schema); err != nil {
		return err
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"Replicas", int64(c.Replicas)}, {"MaxFrameBytes", int64(c.MaxFrameBytes)}, {"MaxQueuedFrames", int64(c.MaxQueuedFrames)},
		{"MaxQueuedBytes", c.MaxQueuedBytes}, {"Lanes", int64(c.Lanes)}, {"BatchConns", int64(c.BatchConns)},
		{"LoadConns", int64(c.LoadConns)}, {"PageConns", int64(c.PageConns)},
		{"ConnectTimeout", int64(c.ConnectTimeout)}, {"JanitorInterval", int64(c.JanitorInterval)},
	} {
		if f.value < 0 {
			return fmt.Errorf("%s must not be negative", f.name)
		}
	}
	if c.Backlog != nil && *c.Backlog < 0 {
		return errors.New("the backlog must not be negative")
	}
	if c.MaxFrameBytes > backlog.MaxBatchBytes {
		return fmt.Errorf("MaxFrameBytes is %d, the limit is %d", c.MaxFrameBytes, backlog.MaxBatchBytes)
	}
	return nil
}

// validateSchema refuses what PostgreSQL would refuse, and a name whose notify
// channel it would cut.
func validateSchema(schema string) error {
	switch {
	case schema == "":
		return errors.New("the schema's name must not be empty")
	case !utf8.ValidString(schema) || strings.IndexByte(schema, 0) >= 0:
		return fmt.Errorf("the schema's name %q must be valid UTF-8 without NUL", schema)
	case strings.HasPrefix(schema, "pg_") || schema == "information_schema" || schema == "$user":
		// $user means another schema wherever it stands in a search_path.
		return fmt.Errorf("the schema's name %q is reserved by PostgreSQL; choose another one", schema)
	}
	const affixes = len(notifyChannelPrefix) + len(notifyChannelTasksSuffix)
	if n := affixes + len(schema); n > maxIdentifierBytes {
		return fmt.Errorf("the schema's name %q makes a notify channel of %d bytes, PostgreSQL allows %d; choose a name of at most %d bytes",
			schema, n, maxIdentifierBytes, maxIdentifierBytes-affixes)
	}
	return nil
}

func notifyChannelOf(schema string) string { return notifyChannelPrefix + schema }

// poolConfig describes one of the store's pools; purpose is what it is for, as
// shown in pg_stat_activity.
func (c Config) poolConfig(purpose string, conns int) (*pgxpool.Config, error) {
	p, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return nil, urlError(c.URL, err)
	}
	p.MaxConns = int32(conns)
	p.MinConns, p.MinIdleConns = 0, 0
	p.PingTimeout = c.ConnectTimeout
	if p.ConnConfig.ConnectTimeout == 0 {
		p.ConnConfig.ConnectTimeout = c.ConnectTimeout
	}
	p.ConnConfig.RuntimeParams["application_name"] = applicationName(purpose, c.Instance)
	pinEncoding(p.ConnConfig)
	return p, nil
}

// pinEncoding overrides the role's and the URL's client_encoding: text is sent as
// it is in memory, and the server would convert it from whatever they say.
func pinEncoding(config *pgx.ConnConfig) { config.RuntimeParams["client_encoding"] = "UTF8" }

// committer is the committer's part of the configuration.
func (c Config) committer() committerConfig {
	return committerConfig{
		Schema:          c.Schema,
		MaxQueuedFrames: c.MaxQueuedFrames,
		MaxQueuedBytes:  c.MaxQueuedBytes,
		Lanes:           c.Lanes,
		BatchConns:      c.BatchConns,
		ConnectTimeout:  c.ConnectTimeout,
	}
}

// applicationName is cut by the server at 63 bytes.
func applicationName(purpose, instance string) string {
	if instance == "" {
		return "fanfare-" + purpose
	}
	return "fanfare-" + purpose + "/" + instance
}

// urlError explains a connection URL that cannot be parsed. The reason that the
// parser gives for a keyword/value string may quote a piece of the password, so
// it is repeated for URLs only.
func urlError(url string, err error) error {
	const advice = "the database URL cannot be parsed; expected postgres://USER:PASSWORD@HOST:PORT/DATABASE, with special characters of the password percent-encoded"
	reason := errors.Unwrap(err)
	isURL := strings.HasPrefix(url, "postgres://") || strings.HasPrefix(url, "postgresql://")
	if reason == nil || !isURL {
		return errors.New(advice)
	}
	return fmt.Errorf("%s: %w", advice, reason)
}
