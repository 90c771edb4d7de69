package sqlitebacklog

import (
	"context"
	"database/sql/driver"
	"fmt"
	"io"
)

const (
	selectStreamSQL = `select stream_id, epoch, previous_epoch, head, head_origin, floor, floor_origin, closed, ever_closed, ephemeral,
		stored_bytes, created, updated, closed_at from streams where channel = ? and scope = ?`
	insertStreamSQL = `insert into streams (stream_id, epoch, previous_epoch, head, head_origin, floor, floor_origin, closed, ever_closed, ephemeral,
		stored_bytes, created, updated, closed_at, channel, scope) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	updateStreamSQL = `update streams set stream_id = ?, epoch = ?, previous_epoch = ?, head = ?, head_origin = ?, floor = ?, floor_origin = ?,
		closed = ?, ever_closed = ?, ephemeral = ?, stored_bytes = ?, created = ?, updated = ?, closed_at = ? where channel = ? and scope = ?`
	// advanceStreamSQL is for a row that has only got frames.
	advanceStreamSQL = `update streams set head = ?, head_origin = ?, stored_bytes = ?, updated = ? where channel = ? and scope = ?`
	insertFrameSQL   = `insert into channel_frames (stream_id, sequence, size, origin, created, content_type, event_type, headers, payload)
		values (?, ?, ?, ?, ?, ?, ?, ?, ?)`
	selectKeySQL     = `select digest, epoch, sequence from idempotency_keys where channel = ? and scope = ? and key = ?`
	insertKeySQL     = `insert into idempotency_keys (channel, scope, key, digest, epoch, sequence, created) values (?, ?, ?, ?, ?, ?, ?)`
	insertRetiredSQL = `insert into retired_streams (stream_id, channel, scope, epoch, head, head_origin, floor, floor_origin, created, retired)
		values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
)

// statements are the committer's, prepared on one connection of the driver. They
// are used without database/sql, which would convert every argument by reflection
// and lock the connection for every call.
type statements struct {
	conn any // nil: none

	selectStream, insertStream, updateStream, advanceStream driver.Stmt
	insertFrame, selectKey, insertKey, insertRetired        driver.Stmt
	// others are prepared when they are first needed, by their texts.
	others map[string]driver.Stmt

	args [16]driver.NamedValue // of the call in progress
	row  [14]driver.Value
}

// all lists the statements.
func (s *statements) all() []struct {
	statement *driver.Stmt
	sql       string
} {
	return []struct {
		statement *driver.Stmt
		sql       string
	}{
		{&s.selectStream, selectStreamSQL}, {&s.insertStream, insertStreamSQL}, {&s.updateStream, updateStreamSQL},
		{&s.advanceStream, advanceStreamSQL}, {&s.insertFrame, insertFrameSQL}, {&s.selectKey, selectKeySQL}, {&s.insertKey, insertKeySQL},
		{&s.insertRetired, insertRetiredSQL},
	}
}

// prepare prepares the statements on conn unless they are.
func (s *statements) prepare(ctx context.Context, conn any) error {
	if s.conn == conn {
		return nil
	}
	preparer, ok := conn.(driver.ConnPrepareContext)
	if !ok {
		return fmt.Errorf("the driver's %T does not prepare statements", conn)
	}
	*s = statements{conn: conn, others: map[string]driver.Stmt{}}
	for _, p := range s.all() {
		var err error
		if *p.statement, err = preparer.PrepareContext(ctx, p.sql); err != nil {
			s.close(conn)
			return err
		}
	}
	return nil
}

// close ends the statements if they are conn's.
func (s *statements) close(conn any) {
	if s.conn != conn {
		return
	}
	for _, p := range s.all() {
		if *p.statement != nil {
			_ = (*p.statement).Close() // its error is that of the last call
		}
	}
	for _, statement := range s.others {
		_ = statement.Close()
	}
	*s = statements{}
}

// other returns a statement that is not the committer's own.
func (s *statements) other(ctx context.Context, sql string) (driver.Stmt, error) {
	if statement := s.others[sql]; statement != nil {
		return statement, nil
	}
	statement, err := s.conn.(driver.ConnPrepareContext).PrepareContext(ctx, sql)
	if err == nil {
		s.others[sql] = statement
	}
	return statement, err
}

// bind fills the arguments of a call, which are valid until the next one.
func (s *statements) bind(values []driver.Value) []driver.NamedValue {
	for i, v := range values {
		s.args[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	return s.args[:len(values)]
}

func (s *statements) exec(ctx context.Context, statement driver.Stmt, values ...driver.Value) error {
	_, err := statement.(driver.StmtExecContext).ExecContext(ctx, s.bind(values))
	return err
}

// query returns the only row of columns values, nil if there is none. It is valid
// until the next query.
func (s *statements) query(ctx context.Context, statement driver.Stmt, columns int, values ...driver.Value) ([]driver.Value, error) {
	rows, err := statement.(driver.StmtQueryContext).QueryContext(ctx, s.bind(values))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	row := s.row[:columns]
	if err := rows.Next(row); err == io.EOF {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return row, nil
}
