package sqlitebacklog

import (
	"context"
	"database/sql"
	"math"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// streamColumns are those that numbering.columns scans, for an alias s.
const streamColumns = `s.channel, s.scope, s.stream_id, s.epoch, s.previous_epoch, s.head, s.head_origin, s.floor, s.floor_origin,
	s.closed, s.ever_closed, s.ephemeral, s.stored_bytes, s.created, s.updated`

// Statements that describe streams. Those with json_each work on a list whose
// elements are named j; CROSS JOIN keeps SQLite from reading the table first, of
// which the primary key or channel_frames_position finds what an element wants.
const (
	// streamsSQL finds streams: channel, scope.
	streamsSQL = `select j.key, ` + streamColumns + `
		from json_each(?1) j cross join streams s on s.channel = j.value->>0 and s.scope = j.value->>1`
	// retiredSQL finds a numbering that a reopening ended, as it was when it was
	// closed. What it stores is not known in bytes.
	retiredSQL = `select r.channel, r.scope, r.stream_id, r.epoch, null, r.head, r.head_origin, r.floor, r.floor_origin,
		1, 1, 0, 9223372036854775807, r.created, r.retired
		from retired_streams r where r.channel = ?1 and r.scope = ?2 and r.epoch = ?3`
	// youngSQL finds the first frames after a sequence that were stored at or after
	// a time: stream_id, sequence, time. Times ascend within a stream.
	youngSQL = `select j.key, (select f.sequence from channel_frames f
		where f.stream_id = j.value->>0 and f.sequence > j.value->>1 and f.created >= j.value->>2 order by f.sequence limit 1)
		from json_each(?1) j`
	// originsSQL finds the origins of frames: stream_id, sequence.
	originsSQL = `select j.key, f.origin
		from json_each(?1) j cross join channel_frames f on f.stream_id = j.value->>0 and f.sequence = j.value->>1`
)

// numbering is a row of streams or retired_streams: a stream as one numbering of
// it was last left.
type numbering struct {
	exists                        bool
	name                          backlog.StreamName
	id, epoch                     int64
	previousEpoch                 sql.NullInt64
	head, headOrigin              int64
	floor, floorOrigin            int64
	closed, everClosed, ephemeral bool
	storedBytes                   int64
	created, updated              int64 // microseconds since 1970
	bounds                        backlog.Bounds
	base                          backlog.Position
}

func (n *numbering) columns() []any {
	return []any{&n.name.Channel, &n.name.Scope, &n.id, &n.epoch, &n.previousEpoch, &n.head, &n.headOrigin, &n.floor, &n.floorOrigin,
		&n.closed, &n.everClosed, &n.ephemeral, &n.storedBytes, &n.created, &n.updated}
}

// state is what n is for the contract; its base must have been set.
func (n *numbering) state() backlog.StreamState {
	if !n.exists {
		return backlog.StreamState{Stream: n.name}
	}
	return backlog.StreamState{
		Stream:           n.name,
		Exists:           true,
		OwnEpoch:         uint64(n.epoch),
		Head:             n.position(n.head, n.headOrigin),
		Base:             n.base,
		Floor:            uint64(n.floor),
		Closed:           n.closed,
		EverClosed:       n.everClosed,
		PreviousOwnEpoch: uint64(n.previousEpoch.Int64),
		Ephemeral:        n.ephemeral,
		Backlog:          n.bounds.Backlog,
		RetentionAge:     n.bounds.RetentionAge,
		Created:          timeOf(n.created),
		Updated:          timeOf(n.updated),
	}
}

func (n *numbering) position(sequence, origin int64) backlog.Position {
	return backlog.Position{Epoch: uint64(n.epoch ^ origin), Sequence: uint64(sequence)}
}

func timeOf(microseconds int64) time.Time { return time.UnixMicro(microseconds).UTC() }

// bigint converts n to what the database can hold. No frame has a larger
// sequence.
func bigint(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// streams finds the named streams, in their order. Of those that do not exist
// only the name is set.
func (n *snapshot) streams(ctx context.Context, names []backlog.StreamName) ([]numbering, error) {
	var a asked[*numbering]
	found := make([]numbering, len(names))
	for i, name := range names {
		found[i].name = name
		a.add(&found[i], name.Channel, name.Scope)
	}
	var row numbering
	err := eachAsked(ctx, n, n.statements.streams, &a, row.columns(), func(of *numbering) error {
		row.exists = true
		*of = row
		return nil
	})
	return found, err
}

// wantedPosition is a place in a numbering whose epoch is wanted.
type wantedPosition struct {
	of *numbering
	// at has the sequence, and gets the epoch if the numbering has a frame there or
	// remembers the position as head or floor.
	at *backlog.Position
}

// resolve sets the epochs of positions.
func (n *snapshot) resolve(ctx context.Context, wanted []wantedPosition) error {
	var a asked[wantedPosition]
	for _, w := range wanted {
		switch sequence := bigint(w.at.Sequence); {
		case !w.of.exists || w.at.Sequence > backlog.MaxPositionValue:
		case sequence == w.of.head:
			w.at.Epoch = uint64(w.of.epoch ^ w.of.headOrigin)
		case sequence == w.of.floor:
			w.at.Epoch = uint64(w.of.epoch ^ w.of.floorOrigin)
		case sequence < w.of.head && sequence > w.of.floor:
			a.add(w, w.of.id, sequence)
		}
	}
	var origin int64
	return eachAsked(ctx, n, n.statements.origins, &a, []any{&origin}, func(w wantedPosition) error {
		w.at.Epoch = uint64(w.of.epoch ^ origin)
		return nil
	})
}

// bind sets the bounds and the sequences of the bases of current numberings. The
// bases' epochs are returned as wanted.
func (s *Store) bind(ctx context.Context, n *snapshot, rows []numbering) ([]wantedPosition, error) {
	var wanted []wantedPosition
	var a asked[*numbering]
	for i := range rows {
		row := &rows[i]
		if !row.exists {
			continue
		}
		row.bounds = s.bounds(row.name.Channel)
		base := max(row.floor, row.head-bigint(row.bounds.Backlog))
		if age := row.bounds.RetentionAge; age > 0 && base < row.head {
			a.add(row, row.id, base, s.clock.before(age))
		}
		row.base.Sequence = uint64(base)
		wanted = append(wanted, wantedPosition{of: row, at: &row.base})
	}
	var first sql.NullInt64
	err := eachAsked(ctx, n, n.statements.young, &a, []any{&first}, func(of *numbering) error {
		of.base.Sequence = uint64(of.head)
		if first.Valid {
			of.base.Sequence = uint64(first.Int64 - 1)
		}
		return nil
	})
	return wanted, err
}
