package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fanfare-io/fanfare/backlog"
)

// Sizes of the janitor's transactions, each of which holds its locks for some
// milliseconds.
const (
	sweepKeys           = 2000
	sweepRetiredStreams = 16
	sweepPage           = 1000 // streams looked at by one statement
	sweepTrimmed        = 16   // streams trimmed by one transaction
	sweepRemoved        = 256
)

// restRatio keeps the janitor from being busy for more than one part in so many,
// however many streams there are.
const restRatio = 20

type janitorStatements struct {
	lock, keys, retired, candidates, trim, removeStreams string
}

// One janitor at a time works in a schema, on whichever replica gets the lock.
// 3 tells this lock from the schema's other advisory locks.
const janitorLockSQL = `select pg_try_advisory_xact_lock(hashtextextended($1::text, 3))`

// Keys are inserted in the order of their age, so that the block range index
// finds the oldest ones.
const sweepKeysSQL = `
delete from fanfare.idempotency_keys
 where ctid = any (array(
   select k.ctid from fanfare.idempotency_keys k
    where k.created < clock_timestamp() - (select idempotency_window from fanfare.settings) limit $1::int))`

// sweepRetiredSQL deletes up to 1,000 frames of each of some retired numberings
// whose grace is over, from the floor up, and the numberings that are then
// empty. It returns how many numberings it worked on.
const sweepRetiredSQL = `
with retired as materialized (
  select r.* from fanfare.retired_streams r
   where r.retired < clock_timestamp() - (select grace from fanfare.settings)
   limit $1::int for update skip locked),
deleted as (
  delete from fanfare.channel_frames f using retired r
   where f.stream_id = r.stream_id and f.sequence > r.floor and f.sequence <= r.floor + 1000),
moved as (
  update fanfare.retired_streams t
     set floor = r.floor + 1000,
         floor_origin = coalesce((select f.origin from fanfare.channel_frames f
                                   where f.stream_id = r.stream_id and f.sequence = r.floor + 1000), r.floor_origin)
    from retired r where t.stream_id = r.stream_id and r.floor + 1000 < r.head),
removed as (
  delete from fanfare.retired_streams t using retired r where t.stream_id = r.stream_id and r.floor + 1000 >= r.head)
select count(*) from retired`

// candidatesSQL looks at a page of streams in the order of the primary key and
// returns those that have something to do: 'trim' where the oldest row is past
// the grace and beyond the backlog, the retention age or a close; 'remove' where
// nothing is left of a stream that is closed or idle; 'none' for the page's
// last, from which the next page goes on.
const candidatesSQL = `
with page as materialized (
  select s.* from fanfare.streams s
   where (s.channel, s.scope) > ($1::text, $2::text)
   order by s.channel, s.scope limit $3::int)
select s.channel, s.scope,
       case when s.floor < s.head
             and (s.head - p.backlog > s.floor or s.closed_at < t.now - g.grace or p.retention_age is not null)
             and (select f.created < t.now - g.grace
                         and (s.head - p.backlog > s.floor or s.closed_at < t.now - g.grace or f.created < t.now - p.retention_age)
                    from fanfare.channel_frames f
                   where f.stream_id = s.stream_id and f.sequence > s.floor order by f.sequence limit 1)
            then 'trim'
            when s.floor = s.head and coalesce(s.closed_at, s.updated) < t.now - p.stream_retention - case when s.ephemeral then fanfare._use_interval() else '0' end then 'remove'
            else 'none' end
  from page s cross join fanfare.settings g cross join (select clock_timestamp() as now) t
  cross join lateral fanfare._policy(s.channel) p
 order by s.channel, s.scope`

// trimSQL trims the given streams but those whose rows somebody holds. It
// returns how many rows it deleted.
const trimSQL = `
with locked as materialized (
  select s.channel, s.scope
    from fanfare.streams s join unnest($1::text[], $2::text[]) c(channel, scope) on s.channel = c.channel and s.scope = c.scope
   order by s.channel, s.scope
     for no key update of s skip locked)
select coalesce(sum(fanfare._trim(l.channel, l.scope)), 0)::bigint from locked l`

// removeStreamsSQL removes the given streams, if they are still as candidatesSQL
// found them and nobody holds their rows.
const removeStreamsSQL = `
with locked as materialized (
  select s.channel, s.scope
    from fanfare.streams s join unnest($1::text[], $2::text[]) c(channel, scope) on s.channel = c.channel and s.scope = c.scope
    cross join lateral fanfare._policy(s.channel) p
   where s.floor = s.head
     and coalesce(s.closed_at, s.updated) < clock_timestamp() - p.stream_retention - case when s.ephemeral then fanfare._use_interval() else '0' end
   order by s.channel, s.scope
     for update of s skip locked)
delete from fanfare.streams s using locked l where s.channel = l.channel and s.scope = l.scope`

// A janitor deletes what the bounds no longer keep: idempotency keys past their
// window, frames beyond the backlog or the age after the grace, numberings that
// a reopening ended, and streams of which nothing is left. Publishing trims busy
// streams; the janitor comes for the rest. It never waits for a row.
type janitor struct {
	pool     *pgxpool.Pool
	sql      janitorStatements
	schema   string
	interval time.Duration
	logger   *slog.Logger
}

func newJanitor(pool *pgxpool.Pool, sql statements, schema string, interval time.Duration, logger *slog.Logger) *janitor {
	return &janitor{pool: pool, sql: sql.janitor, schema: schema, interval: interval, logger: logger}
}

// run sweeps until ctx ends and returns nil then. A sweep that fails is logged
// and tried again.
func (j *janitor) run(ctx context.Context) error {
	// Replicas that were started together do not sweep together.
	rest := rand.N(j.interval)
	failed := false
	for {
		if !pause(ctx, rest) {
			return nil
		}
		began := time.Now()
		err := j.sweep(ctx)
		if ctx.Err() != nil {
			return nil
		}
		// Logged when it begins, not at every attempt of an outage.
		if err != nil && !failed {
			j.logger.Warn("old frames and keys could not be removed; trying again", "schema", j.schema, "error", err)
		}
		failed = err != nil
		rest = max(j.interval, restRatio*time.Since(began))
	}
}

// pause waits for d and reports whether ctx is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// errOtherJanitor: the janitor of another replica is at work.
var errOtherJanitor = errors.New("another replica's janitor is at work")

// sweep does everything there is to do now, in small transactions. It ends early
// when another replica's janitor is at work.
func (j *janitor) sweep(ctx context.Context) error {
	for _, part := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"remove idempotency keys", j.sweepKeys},
		{"remove frames of earlier numberings", j.sweepRetired},
		{"trim and remove streams", j.sweepStreams},
	} {
		err := part.do(ctx)
		if errors.Is(err, errOtherJanitor) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", part.what, err)
		}
	}
	return nil
}

func (j *janitor) sweepKeys(ctx context.Context) error {
	return j.repeat(ctx, func(tx pgx.Tx) (bool, error) {
		tag, err := tx.Exec(ctx, j.sql.keys, sweepKeys)
		return tag.RowsAffected() == sweepKeys, err
	})
}

func (j *janitor) sweepRetired(ctx context.Context) error {
	return j.repeat(ctx, func(tx pgx.Tx) (bool, error) {
		var worked int
		err := tx.QueryRow(ctx, j.sql.retired, sweepRetiredStreams).Scan(&worked)
		return worked > 0, err
	})
}

// sweepStreams goes once through all streams.
func (j *janitor) sweepStreams(ctx context.Context) error {
	var page streamPage
	for more := true; more; more = page.count == sweepPage {
		err := j.repeat(ctx, func(tx pgx.Tx) (_ bool, err error) {
			page, err = j.candidates(ctx, tx, page.last)
			return false, err
		})
		if err != nil {
			return err
		}
		if err := j.work(ctx, page); err != nil {
			return err
		}
	}
	return nil
}

// streamPage is what candidatesSQL found.
type streamPage struct {
	count        int
	last         backlog.StreamName
	trim, remove []backlog.StreamName
}

func (j *janitor) candidates(ctx context.Context, tx pgx.Tx, after backlog.StreamName) (streamPage, error) {
	var page streamPage
	var name backlog.StreamName
	var work string
	// An error of Query is returned by ForEachRow.
	rows, _ := tx.Query(ctx, j.sql.candidates, after.Channel, after.Scope, sweepPage)
	_, err := pgx.ForEachRow(rows, []any{&name.Channel, &name.Scope, &work}, func() error {
		page.count++
		page.last = name
		switch work {
		case "trim":
			page.trim = append(page.trim, name)
		case "remove":
			page.remove = append(page.remove, name)
		}
		return nil
	})
	return page, err
}

// work trims and removes what a page found.
func (j *janitor) work(ctx context.Context, page streamPage) error {
	for names := range slices.Chunk(page.trim, sweepTrimmed) {
		channels, scopes := split(names)
		err := j.repeat(ctx, func(tx pgx.Tx) (bool, error) {
			var deleted int64
			err := tx.QueryRow(ctx, j.sql.trim, channels, scopes).Scan(&deleted)
			return deleted > 0, err
		})
		if err != nil {
			return err
		}
	}
	for names := range slices.Chunk(page.remove, sweepRemoved) {
		channels, scopes := split(names)
		err := j.repeat(ctx, func(tx pgx.Tx) (bool, error) {
			_, err := tx.Exec(ctx, j.sql.removeStreams, channels, scopes)
			return false, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// split turns names into two arrays for unnest.
func split(names []backlog.StreamName) (channels, scopes []string) {
	for _, n := range names {
		channels = append(channels, n.Channel)
		scopes = append(scopes, n.Scope)
	}
	return channels, scopes
}

// repeat runs do in transactions of their own, each under the janitors' lock,
// until it reports that there is no more.
func (j *janitor) repeat(ctx context.Context, do func(pgx.Tx) (more bool, err error)) error {
	// READ COMMITTED whatever the role's default: a row that changed meanwhile is
	// looked at again instead of failing the transaction.
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}
	for more := true; more; {
		err := pgx.BeginTxFunc(ctx, j.pool, options, func(tx pgx.Tx) error {
			var mine bool
			err := tx.QueryRow(ctx, j.sql.lock, j.schema).Scan(&mine)
			if err != nil {
				return err
			}
			if !mine {
				return errOtherJanitor
			}
			more, err = do(tx)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
