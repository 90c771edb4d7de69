package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/backlog"
)

// Store is a backlog.Store on PostgreSQL. Open makes one.
type Store struct {
	cfg           Config
	logger        *slog.Logger
	notifyChannel string
	maxFrameBytes int
	sql           statements

	// publishing is used by the committer, the janitor, Ping and Notify; loading
	// by Load and ListStreams; paging by ReadPage.
	publishing, loading, paging *pgxpool.Pool

	committer *committer
	janitor   *janitor
	started   atomic.Bool

	// resetMu guards lastReset.
	resetMu   sync.Mutex
	lastReset time.Time
}

var _ backlog.Store = (*Store)(nil)

// Open connects to a migrated schema and checks that the store can work there:
// the server's version, encoding and role, the schema's version and what is in it,
// and the rights of the URL's role. Errors say what to do; a server that cannot be
// reached, or is lost meanwhile, is backlog.ErrUnavailable. The caller runs Run, and
// Close after it.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, logger: cfg.Logger, notifyChannel: notifyChannelOf(cfg.Schema), sql: newStatements(cfg.Schema)}
	if err := s.openPools(ctx); err != nil {
		return nil, err
	}
	if err := s.prepare(ctx); err != nil {
		s.Close()
		return nil, unlessLost(err)
	}
	s.committer = newCommitter(s.publishing, cfg.committer(), s.logger)
	s.janitor = newJanitor(s.publishing, s.sql, cfg.Schema, cfg.JanitorInterval, s.logger)
	return s, nil
}

// openPools makes the pools; they connect when they are used.
func (s *Store) openPools(ctx context.Context) error {
	for _, p := range []struct {
		pool    **pgxpool.Pool
		purpose string
		conns   int
	}{
		{&s.publishing, "publish", s.cfg.publishConns()},
		{&s.loading, "load", s.cfg.LoadConns},
		{&s.paging, "page", s.cfg.PageConns},
	} {
		config, err := s.cfg.poolConfig(p.purpose, p.conns)
		if err != nil {
			s.Close()
			return err
		}
		if *p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
			s.Close()
			return fmt.Errorf("open a pool of connections: %w", err)
		}
	}
	return nil
}

// prepare checks server and schema and stores what the configuration sets for
// the whole schema.
func (s *Store) prepare(ctx context.Context) error {
	conn, err := s.publishing.Acquire(ctx)
	if err != nil {
		return explainConnect(err)
	}
	defer conn.Release()
	if err := checkServer(ctx, conn, s.logger); err != nil {
		return err
	}
	if err := checkBudget(ctx, conn, s.cfg, s.logger); err != nil {
		return err
	}
	settings, err := readSettings(ctx, conn, s.cfg.Schema)
	if err != nil {
		return err
	}
	if err := versionError(s.cfg.Schema, settings.version, settings.oldestBinary); err != nil {
		return err
	}
	if settings.notifyChannel != s.notifyChannel {
		return fmt.Errorf("schema %q announces on notify channel %q instead of %q: it was renamed or restored under another name; as its owner run: UPDATE %s.settings SET notify_channel = '%s'",
			s.cfg.Schema, settings.notifyChannel, s.notifyChannel, pgx.Identifier{s.cfg.Schema}.Sanitize(), s.notifyChannel)
	}
	if err := checkObjects(ctx, conn, s.cfg.Schema); err != nil {
		return err
	}
	if err := checkRights(ctx, conn, s.cfg.Schema); err != nil {
		return err
	}
	s.maxFrameBytes = s.cfg.MaxFrameBytes
	setDefault(&s.maxFrameBytes, settings.maxFrameBytes)
	return s.setBacklog(ctx, conn)
}

// NotifyChannel is the notify channel on which all frames of the schema are
// announced.
func (s *Store) NotifyChannel() string { return s.notifyChannel }

// MaxFrameBytes is the limit of a payload: the configured one or the schema's.
func (s *Store) MaxFrameBytes() int { return s.maxFrameBytes }

// Run implements backlog.Store. It returns nil after ctx has ended.
func (s *Store) Run(ctx context.Context) error {
	if s.started.Swap(true) {
		return errors.New("the store's Run was called twice")
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.committer.run(ctx) })
	g.Go(func() error { return s.janitor.run(ctx) })
	return g.Wait()
}

// Close implements backlog.Store.
func (s *Store) Close() {
	for _, pool := range []*pgxpool.Pool{s.publishing, s.loading, s.paging} {
		if pool != nil {
			pool.Close()
		}
	}
}

// Ping implements backlog.Store.
func (s *Store) Ping(ctx context.Context) error {
	var recovery, readOnly bool
	err := s.publishing.QueryRow(ctx, `select pg_is_in_recovery(), current_setting('transaction_read_only')::boolean`).Scan(&recovery, &readOnly)
	if err != nil {
		return readError(ctx, "ping", err)
	}
	if recovery || readOnly {
		s.resetPools()
		return fmt.Errorf("%w: the server reached cannot be written to", backlog.ErrUnavailable)
	}
	return nil
}

// Key is a secret with which the schema's functions sign announcements.
type Key struct {
	ID     int64
	Secret []byte
}

// AnnouncementKeys reads the keys of the schema's announcements, oldest first.
func (s *Store) AnnouncementKeys(ctx context.Context) ([]Key, error) {
	var keys []Key
	err := attempt(func() error {
		// An error of Query is returned by CollectRows.
		rows, _ := s.publishing.Query(ctx, s.sql.announcementKeys)
		var err error
		keys, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Key])
		return err
	})
	if err != nil {
		return nil, readError(ctx, "read the announcement keys", err)
	}
	return keys, nil
}

// Notify sends a notification in a transaction of its own and returns after the
// commit. It goes the way that publishes go, so a listener can test with it that
// it hears them.
func (s *Store) Notify(ctx context.Context, notifyChannel, payload string) error {
	if _, err := s.publishing.Exec(ctx, `select pg_notify($1::text, $2::text)`, notifyChannel, payload); err != nil {
		return readError(ctx, "notify", err)
	}
	return nil
}

// minResetInterval keeps reads that reach another server from throwing away the
// connections which others have just made, over and over.
const minResetInterval = time.Second

// resetPools makes every pool reconnect: its connections may lead to a server
// that has been replaced.
func (s *Store) resetPools() {
	s.resetMu.Lock()
	defer s.resetMu.Unlock()
	if time.Since(s.lastReset) < minResetInterval {
		return
	}
	s.lastReset = time.Now()
	s.logger.Warn("the store reached another server than expected; reconnecting", "schema", s.cfg.Schema)
	for _, pool := range []*pgxpool.Pool{s.publishing, s.loading, s.paging} {
		pool.Reset()
	}
}

// answerer identifies the server that answered a read.
type answerer struct {
	origin   int64
	recovery bool
}

// read runs a query and calls scan with its rows. scan says who answered; if
// that is not the server with the wanted origin (0: any that is not in
// recovery) the connection is closed, the pools are reset and the error is
// backlog.ErrOtherServer.
func (s *Store) read(ctx context.Context, pool *pgxpool.Pool, wanted uint64, what, sql string, args []any, scan func(pgx.Rows) (answerer, error)) error {
	var who answerer
	err := attempt(func() (err error) {
		who, err = queryOnce(ctx, pool, wanted, sql, args, scan)
		return err
	})
	if err != nil {
		return readError(ctx, what, err)
	}
	if who.isOther(wanted) {
		s.resetPools()
		return fmt.Errorf("%w: %s", backlog.ErrOtherServer, what)
	}
	return nil
}

func (a answerer) isOther(wanted uint64) bool {
	return a.recovery || (wanted != 0 && uint64(a.origin) != wanted)
}

// planSQL has the statement that follows in the same transaction planned for what it
// is: many small lookups by primary keys. By its estimates, which are far too high,
// the planner would rather read whole tables, and compile the statement, which takes
// longer than to execute it. And the plan that a session keeps for all parameters is
// used from the first execution on: to plan a read takes longer than to read a stream,
// and with these settings parameters change nothing. Nothing of this outlives the
// transaction, so that a pooler may give the session to others.
const planSQL = "select set_config('jit', 'off', true), set_config('random_page_cost', '0', true), set_config('plan_cache_mode', 'force_generic_plan', true), " +
	"set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true), " +
	"set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)"

func queryOnce(ctx context.Context, pool *pgxpool.Pool, wanted uint64, sql string, args []any, scan func(pgx.Rows) (answerer, error)) (answerer, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return answerer{}, err
	}
	defer conn.Release()
	var batch pgx.Batch
	batch.Queue(planSQL)
	batch.Queue(sql, args...)
	results := conn.SendBatch(ctx, &batch)
	who, err := secondResult(results, scan)
	// What the end of the transaction says comes last.
	if end := results.Close(); err == nil {
		err = end
	}
	if err == nil && who.isOther(wanted) {
		// Before Release, so that nobody else is given it. ctx bounds the goodbye.
		_ = conn.Conn().Close(ctx)
	}
	return who, err
}

// secondResult scans the result of a batch's second statement.
func secondResult(results pgx.BatchResults, scan func(pgx.Rows) (answerer, error)) (answerer, error) {
	if _, err := results.Exec(); err != nil {
		return answerer{}, err
	}
	rows, err := results.Query()
	if err != nil {
		return answerer{}, err
	}
	defer rows.Close()
	return scan(rows)
}

// maxAttempts bounds how often a read is tried at once: a stale statement fails
// once for each connection that has prepared it.
const maxAttempts = 5

// attempt repeats a read whose error says that the same may succeed at once.
func attempt(read func() error) error {
	var err error
	for range maxAttempts {
		// A statement runs under the isolation of the role's default, which may be
		// SERIALIZABLE.
		if err = read(); !isStaleStatement(err) && !hasCode(err, codeSerializationFailure) {
			return err
		}
	}
	return err
}

// isStaleStatement reports whether a prepared statement no longer fits the
// schema ("cached plan must not change result type") or is gone. The server's
// routine is compared because messages are translated.
func isStaleStatement(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	return (pg.Code == codeFeatureNotSupported && pg.Routine == "RevalidateCachedQuery") || pg.Code == codeInvalidStatementName
}

// readError is what a failed read returns: the context's error if that ended,
// otherwise backlog.ErrUnavailable.
func readError(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
	return fmt.Errorf("%w: %s: %w", backlog.ErrUnavailable, what, err)
}
