package sqlitebacklog

import (
	"context"
	"database/sql/driver"
	"fmt"
	"math/rand/v2"

	"github.com/fanfare-io/fanfare/backlog"
)

// streamRow is a row of streams as a transaction sees and changes it.
type streamRow struct {
	name   backlog.StreamName
	exists bool

	streamID, epoch, previousEpoch int64
	head, headOrigin               int64
	floor, floorOrigin             int64
	closed, everClosed, ephemeral  bool
	hasPrevious                    bool
	storedBytes                    int64
	created, updated, closedAt     int64 // closedAt is null unless closed

	// stored is true if the row is in the table, changed if it has to be written,
	// and renewed if more has changed than a frame changes.
	stored, changed, renewed bool
	// first is what head was before the transaction's frames of this numbering.
	first int64
}

// selectStreamColumns is how many columns selectStreamSQL has.
const selectStreamColumns = 14

// readRow reads a stream's row; one that does not exist is an empty one.
func readRow(ctx context.Context, s *statements, name backlog.StreamName) (*streamRow, error) {
	r := &streamRow{name: name}
	values, err := s.query(ctx, s.selectStream, selectStreamColumns, name.Channel, name.Scope)
	if err != nil || values == nil {
		return r, err
	}
	var n [selectStreamColumns]int64
	for i, v := range values {
		var ok bool
		if n[i], ok = v.(int64); !ok && v != nil {
			return nil, fmt.Errorf("column %d of a stream's row is a %T", i, v)
		}
	}
	r.exists, r.stored = true, true
	r.streamID, r.epoch, r.previousEpoch, r.hasPrevious = n[0], n[1], n[2], values[2] != nil
	r.head, r.headOrigin, r.floor, r.floorOrigin, r.first = n[3], n[4], n[5], n[6], n[3]
	r.closed, r.everClosed, r.ephemeral = n[7] != 0, n[8] != 0, n[9] != 0
	r.storedBytes, r.created, r.updated, r.closedAt = n[10], n[11], n[12], n[13]
	return r, nil
}

// write writes the row back.
func (r *streamRow) write(ctx context.Context, s *statements) error {
	if r.stored && !r.renewed {
		return s.exec(ctx, s.advanceStream, r.head, r.headOrigin, r.storedBytes, r.updated, r.name.Channel, r.name.Scope)
	}
	statement := s.updateStream
	if !r.stored {
		statement = s.insertStream
	}
	var previous, closedAt driver.Value
	if r.hasPrevious {
		previous = r.previousEpoch
	}
	if r.closed {
		closedAt = r.closedAt
	}
	return s.exec(ctx, statement, r.streamID, r.epoch, previous, r.head, r.headOrigin, r.floor, r.floorOrigin,
		r.closed, r.everClosed, r.ephemeral, r.storedBytes, r.created, r.updated, closedAt, r.name.Channel, r.name.Scope)
}

// position is the head's.
func (r *streamRow) position() backlog.Position {
	if !r.exists {
		return backlog.Position{}
	}
	return backlog.Position{Epoch: uint64(r.epoch ^ r.headOrigin), Sequence: uint64(r.head)}
}

// expectable is the position that an expectation has to name: none if the stream
// does not exist or is closed.
func (r *streamRow) expectable() backlog.Position {
	if r.closed || r.head == 0 && !r.ephemeral {
		return backlog.Position{}
	}
	return r.position()
}

// create makes the row of a stream that does not exist.
func (r *streamRow) create(origin, now int64) {
	r.exists = true
	r.created, r.updated = now, now
	r.number(origin)
}

// reopen makes the row of a closed stream one of a new numbering.
func (r *streamRow) reopen(origin int64) {
	r.previousEpoch, r.hasPrevious = r.epoch, true
	r.closed = false
	r.number(origin)
}

// number begins a numbering.
func (r *streamRow) number(origin int64) {
	r.streamID = rand.Int64N(epochBit)
	r.epoch = rand.Int64N(epochBit) | epochBit
	r.head, r.floor, r.first, r.storedBytes = 0, 0, 0, 0
	r.headOrigin, r.floorOrigin = origin, origin
	r.renewed = true
}

// close closes the stream.
func (r *streamRow) close(now int64) {
	r.closed, r.everClosed, r.renewed = true, true, true
	r.closedAt = r.touch(now)
}

// touch returns the time of a change, by a clock that may have been set back: a
// stream's times never descend.
func (r *streamRow) touch(now int64) int64 {
	r.updated = max(r.updated, now)
	r.changed = true
	return r.updated
}
