package sqlitebacklog

import (
	"context"
	"database/sql"
	"database/sql/driver"
)

// trimLimit is how much a transaction may still delete.
type trimLimit struct{ frames, bytes int64 }

func (l *trimLimit) reached() bool { return l.frames <= 0 || l.bytes <= 0 }

// publishLimit is that of a publisher, which trims its stream every 64 frames: it
// is more than that many frames of the largest size, so that a stream does not
// grow beyond its bounds.
var publishLimit = trimLimit{frames: 2048, bytes: 256 << 20}

const (
	trimStreamSQL = `select s.stream_id, s.head, s.floor, s.closed_at, s.stored_bytes, g.grace, g.grace_rows, g.grace_bytes
		from streams s, settings g where s.channel = ?1 and s.scope = ?2`
	// firstYoungSQL finds the first frame of a range that was stored at or after a
	// time. Times ascend within a stream.
	firstYoungSQL = `select sequence from channel_frames
		where stream_id = ?1 and sequence > ?2 and sequence <= ?3 and created >= ?4 order by sequence limit 1`
	// overBytesSQL finds the newest frame of a range that has, with those of the
	// range that are newer, more bytes than are wanted; underBytesSQL the oldest with
	// which those that are older reach them.
	overBytesSQL = `select max(sequence) from (
		select sequence, sum(size) over (order by sequence desc) as bytes from channel_frames
		 where stream_id = ?1 and sequence > ?2 and sequence <= ?3) where bytes > ?4`
	underBytesSQL = `select min(sequence) from (
		select sequence, sum(size) over (order by sequence) as bytes from channel_frames
		 where stream_id = ?1 and sequence > ?2 and sequence <= ?3) where bytes >= ?4`
	trimmedBytesSQL = `select coalesce(sum(size), 0) from channel_frames where stream_id = ?1 and sequence > ?2 and sequence <= ?3`
	deleteFramesSQL = `delete from channel_frames where stream_id = ?1 and sequence > ?2 and sequence <= ?3`
	// moveFloorSQL comes before the frames are deleted, one of which has the floor's
	// origin.
	moveFloorSQL = `update streams
		   set floor = ?3, stored_bytes = max(stored_bytes - ?4, 0),
		       floor_origin = coalesce((select f.origin from channel_frames f where f.stream_id = streams.stream_id and f.sequence = ?3), floor_origin)
		 where channel = ?1 and scope = ?2`
)

// trimming is a stream that is being trimmed, in a transaction that writes.
type trimming struct {
	store                        *Store
	statements                   *statements
	most                         *trimLimit
	id, head, floor, storedBytes int64
	closedAt                     sql.NullInt64
	grace, graceRows, graceBytes int64
}

// trim deletes what is beyond a stream's bounds and its grace, from the floor up,
// in the transaction of a publisher. It returns how many sequences are gone; there
// may be more to delete if it is not 0.
func (s *Store) trim(ctx context.Context, conn *sql.Conn, channel, scope string) (deleted int64, err error) {
	most := publishLimit
	return s.trimUpTo(ctx, conn, channel, scope, &most)
}

// trimUpTo is trim with another limit, from which it takes what it deletes.
//
// What the backlog, the age or a close leave to nobody is kept for the grace, but
// not more of it than the grace's rows and bytes.
func (s *Store) trimUpTo(ctx context.Context, conn *sql.Conn, channel, scope string, most *trimLimit) (deleted int64, err error) {
	err = s.withStatements(ctx, conn, func(prepared *statements) error {
		t := trimming{store: s, statements: prepared, most: most}
		deleted, err = t.trim(ctx, channel, scope)
		return err
	})
	return deleted, err
}

// withStatements gives do the statements that are prepared on the writing
// connection: trims are too frequent to prepare theirs each time.
func (s *Store) withStatements(ctx context.Context, conn *sql.Conn, do func(*statements) error) error {
	return conn.Raw(func(driverConn any) error {
		prepared := &s.committer.statements
		if err := prepared.prepare(ctx, driverConn); err != nil {
			return err
		}
		return do(prepared)
	})
}

func (t *trimming) trim(ctx context.Context, channel, scope string) (deleted int64, err error) {
	found, err := t.read(ctx, channel, scope)
	if err != nil || !found || t.floor >= t.head {
		return 0, err
	}
	limit, err := t.limit(ctx, channel)
	if err != nil || limit <= t.floor {
		return 0, err
	}
	cut, err := t.cut(ctx, limit)
	if err != nil || cut <= t.floor {
		return 0, err
	}
	return cut - t.floor, t.delete(ctx, channel, scope, cut)
}

// read reads the stream and the grace.
func (t *trimming) read(ctx context.Context, channel, scope string) (found bool, err error) {
	row, err := t.query(ctx, trimStreamSQL, 8, channel, scope)
	if err != nil || row == nil {
		return false, err
	}
	t.closedAt = integer(row[3])
	for i, v := range []*int64{0: &t.id, 1: &t.head, 2: &t.floor, 4: &t.storedBytes, 5: &t.grace, 6: &t.graceRows, 7: &t.graceBytes} {
		if v != nil {
			*v = integer(row[i]).Int64
		}
	}
	return true, nil
}

// limit returns the sequence at or below which nobody may begin to read.
func (t *trimming) limit(ctx context.Context, channel string) (int64, error) {
	if t.closedAt.Valid && t.closedAt.Int64 < t.store.clock.before(microseconds(t.grace)) {
		return t.head, nil
	}
	bounds := t.store.bounds(channel)
	limit := max(t.floor, t.head-bigint(bounds.Backlog))
	if bounds.RetentionAge == 0 {
		return limit, nil
	}
	return t.firstYoung(ctx, limit, t.head, t.store.clock.before(bounds.RetentionAge))
}

// cut returns the sequence at or below which frames are deleted, of those up to
// limit.
func (t *trimming) cut(ctx context.Context, limit int64) (int64, error) {
	cut, err := t.firstYoung(ctx, t.floor, limit, t.store.clock.before(microseconds(t.grace)))
	if err != nil {
		return 0, err
	}
	cut = max(cut, limit-t.graceRows)
	if t.storedBytes > t.graceBytes && cut < limit {
		over, err := t.find(ctx, overBytesSQL, cut, limit, t.graceBytes)
		if err != nil {
			return 0, err
		}
		if over.Valid {
			cut = max(cut, over.Int64)
		}
	}
	return t.bounded(ctx, cut)
}

// bounded returns cut, or less if that would delete more than the limit.
func (t *trimming) bounded(ctx context.Context, cut int64) (int64, error) {
	cut = min(cut, t.floor+t.most.frames)
	if t.storedBytes > t.most.bytes {
		enough, err := t.find(ctx, underBytesSQL, t.floor, cut, t.most.bytes)
		if err != nil {
			return 0, err
		}
		if enough.Valid {
			cut = min(cut, enough.Int64)
		}
	}
	return cut, nil
}

// firstYoung returns the sequence before the first frame of a range that was
// stored at or after a time, or the range's last.
func (t *trimming) firstYoung(ctx context.Context, after, last, since int64) (int64, error) {
	first, err := t.find(ctx, firstYoungSQL, after, last, since)
	if err != nil || !first.Valid {
		return last, err
	}
	return first.Int64 - 1, nil
}

// find returns a sequence of the range after < sequence <= last, if there is one.
func (t *trimming) find(ctx context.Context, query string, after, last, value int64) (found sql.NullInt64, err error) {
	row, err := t.query(ctx, query, 1, t.id, after, last, value)
	if err != nil || row == nil {
		return found, err
	}
	return integer(row[0]), nil
}

// delete deletes what is at or below cut and moves the floor there.
func (t *trimming) delete(ctx context.Context, channel, scope string, cut int64) error {
	bytes, err := t.take(ctx, cut)
	if err != nil {
		return err
	}
	if err := t.exec(ctx, moveFloorSQL, channel, scope, cut, bytes); err != nil {
		return err
	}
	return t.exec(ctx, deleteFramesSQL, t.id, t.floor, cut)
}

// take takes what is at or below cut from the limit and returns how many bytes
// that is.
func (t *trimming) take(ctx context.Context, cut int64) (bytes int64, err error) {
	row, err := t.query(ctx, trimmedBytesSQL, 1, t.id, t.floor, cut)
	if err != nil || row == nil {
		return 0, err
	}
	bytes = integer(row[0]).Int64
	t.most.frames -= cut - t.floor
	t.most.bytes -= bytes
	return bytes, nil
}

// query returns the only row of a statement, nil if there is none.
func (t *trimming) query(ctx context.Context, query string, columns int, values ...driver.Value) ([]driver.Value, error) {
	statement, err := t.statements.other(ctx, query)
	if err != nil {
		return nil, err
	}
	return t.statements.query(ctx, statement, columns, values...)
}

func (t *trimming) exec(ctx context.Context, query string, values ...driver.Value) error {
	statement, err := t.statements.other(ctx, query)
	if err != nil {
		return err
	}
	return t.statements.exec(ctx, statement, values...)
}

// integer is a column of integers, which the tables are strict about.
func integer(v driver.Value) sql.NullInt64 {
	n, ok := v.(int64)
	return sql.NullInt64{Int64: n, Valid: ok}
}
