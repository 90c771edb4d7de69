package sqlitebacklog

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// Sizes of the janitor's transactions. Each keeps publishers waiting, for some
// milliseconds.
const (
	sweepKeys    = 500
	sweepTrims   = 16 // streams or earlier numberings
	sweepRemoved = 128
	sweepPage    = 1000 // streams looked at by one statement, which nobody waits for
)

// sweepLimit bounds what a transaction deletes of frames.
var sweepLimit = trimLimit{frames: 256, bytes: 8 << 20}

// restRatio keeps the janitor from being busy for more than one part in so many,
// however much there is to do.
const restRatio = 20

const (
	// sweepKeysSQL finds the oldest keys by idempotency_keys_created.
	sweepKeysSQL = `delete from idempotency_keys where (channel, scope, key) in (
		select k.channel, k.scope, k.key from idempotency_keys k where k.created < ?1 order by k.created limit ?2)`
	sweepWindowsSQL = `select grace, idempotency_window from settings`

	sweepRetiredSQL = `select stream_id, head, floor from retired_streams where retired < ?1 limit ?2`
	moveRetiredSQL  = `update retired_streams
		   set floor = ?2, floor_origin = coalesce((select f.origin from channel_frames f where f.stream_id = ?1 and f.sequence = ?2), floor_origin)
		 where stream_id = ?1`
	removeRetiredSQL = `delete from retired_streams where stream_id = ?1`

	// candidatesSQL looks at a page of streams in the order of the primary key.
	candidatesSQL = `select s.channel, s.scope, s.head, s.floor, s.closed_at, s.updated, s.ephemeral,
		case when s.floor < s.head then (select f.created from channel_frames f
			where f.stream_id = s.stream_id and f.sequence > s.floor order by f.sequence limit 1) end
		from streams s where (s.channel, s.scope) > (?1, ?2) order by s.channel, s.scope limit ?3`

	removeStreamSQL = `delete from streams
		where channel = ?1 and scope = ?2 and floor = head and coalesce(closed_at, updated) + ephemeral * ?4 < ?3`
)

// A janitor deletes what the bounds no longer keep: idempotency keys past their
// window, frames beyond the backlog or the age after the grace, numberings that a
// reopening ended, and streams of which nothing is left. Publishing trims busy
// streams; the janitor comes for the rest.
type janitor struct {
	store *Store
	// pause waits, or reports that ctx has ended.
	pause func(ctx context.Context, d time.Duration) bool
}

// runJanitor sweeps until ctx ends and returns nil then. A sweep that fails is
// logged and tried again.
func (s *Store) runJanitor(ctx context.Context) error {
	j := &janitor{store: s, pause: pause}
	failed := false
	for j.pause(ctx, s.cfg.JanitorInterval) {
		err := j.sweep(ctx)
		if ctx.Err() != nil {
			return nil
		}
		// Logged when it begins, not at every attempt of an outage.
		if err != nil && !failed {
			s.logger.Warn("old frames and keys could not be removed; trying again", "file", s.Path(), "error", err)
		}
		failed = err != nil
	}
	return nil
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

// sweep does everything there is to do now.
func (j *janitor) sweep(ctx context.Context) error {
	for _, part := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"remove idempotency keys", j.sweepKeys},
		{"remove frames of earlier numberings", j.sweepRetired},
		{"trim and remove streams", j.sweepStreams},
	} {
		if err := part.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.what, err)
		}
	}
	return nil
}

// repeat runs do in transactions of their own until it reports that there is no
// more. A transaction whose COMMIT failed is made again with what is left to do;
// what the first one had done waits for the next sweep. After each it rests for a
// multiple of what that took, so that publishers have the rest of the time.
func (j *janitor) repeat(ctx context.Context, do func(context.Context, *sql.Conn) (more bool, err error)) error {
	for more := true; more; {
		var began time.Time // after the wait for the turn
		err := j.store.exclusively(ctx, func(ctx context.Context, conn *sql.Conn) (err error) {
			began = time.Now()
			more, err = do(ctx, conn)
			return err
		})
		if err != nil {
			return err
		}
		if !j.pause(ctx, (restRatio-1)*time.Since(began)) {
			return ctx.Err()
		}
	}
	return nil
}

// windows returns the times before which keys are forgotten, and before which the
// grace of what was retired is over.
func (j *janitor) windows(ctx context.Context, conn *sql.Conn) (keys, grace int64, err error) {
	var window, graceMicroseconds int64
	err = conn.QueryRowContext(ctx, sweepWindowsSQL).Scan(&graceMicroseconds, &window)
	return j.store.clock.before(microseconds(window)), j.store.clock.before(microseconds(graceMicroseconds)), err
}

func (j *janitor) sweepKeys(ctx context.Context) error {
	return j.repeat(ctx, func(ctx context.Context, conn *sql.Conn) (bool, error) {
		forgotten, _, err := j.windows(ctx, conn)
		if err != nil {
			return false, err
		}
		result, err := conn.ExecContext(ctx, sweepKeysSQL, forgotten, sweepKeys)
		if err != nil {
			return false, err
		}
		deleted, err := result.RowsAffected()
		return deleted == sweepKeys, err
	})
}

// sweepRetired deletes the frames of numberings whose grace is over, from the
// floor up, and then the numberings.
func (j *janitor) sweepRetired(ctx context.Context) error {
	return j.repeat(ctx, func(ctx context.Context, conn *sql.Conn) (more bool, err error) {
		_, over, err := j.windows(ctx, conn)
		if err != nil {
			return false, err
		}
		retired, err := j.retired(ctx, conn, over)
		if err != nil {
			return false, err
		}
		most := sweepLimit
		err = j.store.withStatements(ctx, conn, func(prepared *statements) (err error) {
			for i := 0; i < len(retired) && !most.reached() && err == nil; i++ {
				t := &retired[i]
				t.statements, t.most = prepared, &most
				err = t.deleteRetired(ctx)
			}
			return err
		})
		return len(retired) > 0, err
	})
}

// retired finds some numberings that ended before a time.
func (j *janitor) retired(ctx context.Context, conn *sql.Conn, before int64) ([]trimming, error) {
	rows, err := conn.QueryContext(ctx, sweepRetiredSQL, before, sweepTrims)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var retired []trimming
	for rows.Next() {
		t := trimming{store: j.store, storedBytes: math.MaxInt64} // how many there are is not known
		if err := rows.Scan(&t.id, &t.head, &t.floor); err != nil {
			return nil, err
		}
		retired = append(retired, t)
	}
	return retired, rows.Err()
}

// deleteRetired deletes frames of an earlier numbering, and the numbering with the
// last of them.
func (t *trimming) deleteRetired(ctx context.Context) error {
	cut, err := t.bounded(ctx, t.head)
	if err != nil {
		return err
	}
	if _, err := t.take(ctx, cut); err != nil {
		return err
	}
	if cut < t.head {
		err = t.exec(ctx, moveRetiredSQL, t.id, cut)
	} else {
		err = t.exec(ctx, removeRetiredSQL, t.id)
	}
	if err != nil {
		return err
	}
	return t.exec(ctx, deleteFramesSQL, t.id, t.floor, cut)
}

// sweepStreams goes once through all streams.
func (j *janitor) sweepStreams(ctx context.Context) error {
	var page streamPage
	for more := true; more; more = page.count == sweepPage {
		began := time.Now()
		var err error
		if page, err = j.candidates(ctx, page.last); err != nil {
			return err
		}
		if !j.pause(ctx, (restRatio-1)*time.Since(began)) {
			return ctx.Err()
		}
		if err := j.trim(ctx, page.trim); err != nil {
			return err
		}
		if err := j.remove(ctx, page.remove); err != nil {
			return err
		}
	}
	return nil
}

// streamPage is what candidatesSQL found, and what there is to do.
type streamPage struct {
	count        int
	last         backlog.StreamName
	trim, remove []backlog.StreamName
}

// candidate is a row of candidatesSQL.
type candidate struct {
	name             backlog.StreamName
	head, floor      int64
	closedAt, oldest sql.NullInt64
	updated          int64
	ephemeral        bool
}

// candidates finds the streams of a page that have something to do.
func (j *janitor) candidates(ctx context.Context, after backlog.StreamName) (streamPage, error) {
	var page streamPage
	err := j.store.read(ctx, j.store.reading.lanes.pages, "look for what is old", func(n *snapshot) error {
		var grace, window int64
		err := n.each(ctx, n.statements.windows, nil, []any{&grace, &window}, func() error { return nil })
		if err != nil {
			return err
		}
		graceOver := j.store.clock.before(microseconds(grace))
		var c candidate
		into := []any{&c.name.Channel, &c.name.Scope, &c.head, &c.floor, &c.closedAt, &c.updated, &c.ephemeral, &c.oldest}
		return n.each(ctx, n.statements.candidates, []any{after.Channel, after.Scope, sweepPage}, into, func() error {
			page.add(&c, j.store, graceOver)
			return nil
		})
	})
	return page, err
}

// add decides what to do about a stream: trim it where the oldest frame is past
// the grace and beyond the backlog, the age or a close, and remove it where nothing
// is left of it and it has been closed or idle for its retention.
func (p *streamPage) add(c *candidate, s *Store, graceOver int64) {
	p.count++
	p.last = c.name
	bounds := s.bounds(c.name.Channel)
	if c.floor == c.head {
		if c.idleSince() < s.clock.before(bounds.StreamRetention) {
			p.remove = append(p.remove, c.name)
		}
		return
	}
	if !c.oldest.Valid || c.oldest.Int64 >= graceOver {
		return
	}
	beyond := c.head-bigint(bounds.Backlog) > c.floor || c.closedAt.Valid && c.closedAt.Int64 < graceOver
	if age := bounds.RetentionAge; beyond || age > 0 && c.oldest.Int64 < s.clock.before(age) {
		p.trim = append(p.trim, c.name)
	}
}

// idleSince is the time since which nothing has used a stream, at the latest.
func (c *candidate) idleSince() int64 {
	since := c.updated
	if c.closedAt.Valid {
		since = c.closedAt.Int64
	}
	if c.ephemeral {
		since += backlog.UseInterval.Microseconds()
	}
	return since
}

// trim trims streams, several in a transaction and each as often as there is
// something to delete.
func (j *janitor) trim(ctx context.Context, names []backlog.StreamName) error {
	if len(names) == 0 {
		return nil
	}
	return j.repeat(ctx, func(ctx context.Context, conn *sql.Conn) (bool, error) {
		most := sweepLimit
		for trims := 0; trims < sweepTrims && len(names) > 0 && !most.reached(); trims++ {
			deleted, err := j.store.trimUpTo(ctx, conn, names[0].Channel, names[0].Scope, &most)
			if err != nil {
				return false, err
			}
			if deleted == 0 {
				names = names[1:]
			}
		}
		return len(names) > 0, nil
	})
}

// remove removes streams, if they are still as candidates found them.
func (j *janitor) remove(ctx context.Context, names []backlog.StreamName) error {
	if len(names) == 0 {
		return nil
	}
	return j.repeat(ctx, func(ctx context.Context, conn *sql.Conn) (bool, error) {
		n := min(len(names), sweepRemoved)
		for _, name := range names[:n] {
			since := j.store.clock.before(j.store.bounds(name.Channel).StreamRetention)
			if _, err := conn.ExecContext(ctx, removeStreamSQL, name.Channel, name.Scope, since, backlog.UseInterval.Microseconds()); err != nil {
				return false, err
			}
		}
		names = names[n:]
		return len(names) > 0, nil
	})
}
