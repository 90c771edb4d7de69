package sqlitebacklog

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/fanfare-io/fanfare/backlog"
)

// Statements that read frames. Sizes stand before payloads in a row, so reading
// them reads no payload that does not fit the row's page.
const (
	newestSizesSQL = `select sequence, size from channel_frames where stream_id = ?1 and sequence > ?2 order by sequence desc limit ?3`
	oldestSizesSQL = `select sequence, size from channel_frames where stream_id = ?1 and sequence > ?2 order by sequence limit ?3`
	// framesSQL reads ranges of frames: stream_id, sequence before the first,
	// sequence of the last. It does not ask for an order: to sort, SQLite would copy
	// the payloads.
	framesSQL = `select j.key, f.sequence, f.origin, f.created, f.content_type, f.event_type, f.headers, f.payload
		from json_each(?1) j cross join channel_frames f
		  on f.stream_id = j.value->>0 and f.sequence > j.value->>1 and f.sequence <= j.value->>2`
)

// Load implements backlog.Store. All streams of a load are in one snapshot.
func (s *Store) Load(ctx context.Context, origin uint64, requests []backlog.LoadRequest) (backlog.LoadResult, error) {
	if err := backlog.ValidateLoad(requests); err != nil {
		return backlog.LoadResult{}, err
	}
	if err := s.checkOrigin(origin); err != nil {
		return backlog.LoadResult{}, err
	}
	var result backlog.LoadResult
	err := s.read(ctx, s.reading.lanes.loads, "load", func(n *snapshot) (err error) {
		result, err = s.load(ctx, n, requests)
		if isDamage(err) {
			s.noteDamage(err)
			result, err = s.loadApart(ctx, n, requests)
		}
		return err
	})
	if err != nil {
		return backlog.LoadResult{}, err
	}
	return result, nil
}

// loadApart is load for a damaged file, where one stream's pages must not keep a
// thousand others from being loaded: it loads each alone, and returns no frames of
// one whose frames cannot be read, as if they were too many. Who then reads its
// pages gets the error. If the state of a stream, its base or a position to verify
// cannot be read, nothing would be true of it, and the whole load fails.
func (s *Store) loadApart(ctx context.Context, n *snapshot, requests []backlog.LoadRequest) (backlog.LoadResult, error) {
	var result backlog.LoadResult
	for _, request := range requests {
		one, err := s.load(ctx, n, []backlog.LoadRequest{request})
		if isDamage(err) {
			request.MaxFrames = 0
			one, err = s.load(ctx, n, []backlog.LoadRequest{request})
		}
		if err != nil {
			return result, err
		}
		one.Streams = append(result.Streams, one.Streams...)
		result = one
	}
	return result, nil
}

// load reads with a number of statements that does not grow with that of the
// requests, but for streams that hold more bytes than are wanted.
func (s *Store) load(ctx context.Context, n *snapshot, requests []backlog.LoadRequest) (backlog.LoadResult, error) {
	result := backlog.LoadResult{Streams: make([]backlog.Loaded, len(requests))}
	names := make([]backlog.StreamName, len(requests))
	for i := range requests {
		names[i] = requests[i].Stream
	}
	rows, err := n.streams(ctx, names)
	if err != nil {
		return result, err
	}
	wanted, err := s.bind(ctx, n, rows)
	if err != nil {
		return result, err
	}
	var ranges []frameRange
	for i := range requests {
		loaded := &result.Streams[i]
		if loaded.Before.Sequence, err = n.beforeNewest(ctx, &rows[i], &requests[i]); err != nil {
			return result, err
		}
		wanted = append(wanted, wantedPosition{of: &rows[i], at: &loaded.Before})
		loaded.Verified = make([]backlog.Position, len(requests[i].Verify))
		for j, sequence := range requests[i].Verify {
			loaded.Verified[j].Sequence = sequence
			wanted = append(wanted, wantedPosition{of: &rows[i], at: &loaded.Verified[j]})
		}
		ranges = append(ranges, frameRange{of: &rows[i], after: int64(loaded.Before.Sequence), last: rows[i].head, frames: &loaded.Frames})
	}
	if err := n.resolve(ctx, wanted); err != nil {
		return result, err
	}
	if err := n.frames(ctx, ranges); err != nil {
		return result, err
	}
	for i := range rows {
		result.Streams[i].State = rows[i].state()
		if age := rows[i].bounds.RetentionAge; rows[i].exists && age > 0 {
			result.Streams[i].NotBefore = timeOf(s.clock.before(age))
		}
		result.Streams[i].KeepContiguous()
	}
	result.Origin = s.origin
	return result, nil
}

// beforeNewest is the sequence before the first of a stream's newest frames that
// a request wants.
func (n *snapshot) beforeNewest(ctx context.Context, row *numbering, request *backlog.LoadRequest) (uint64, error) {
	maxFrames := int64(max(request.MaxFrames, 0))
	after := max(bigint(request.After), row.floor, row.head-maxFrames)
	if after >= row.head {
		return uint64(row.head), nil
	}
	if row.storedBytes <= int64(request.MaxBytes) {
		return uint64(after), nil
	}
	last, err := n.fit(ctx, n.statements.newestSizes, row.id, after, maxFrames, request.MaxBytes)
	if err != nil || last == 0 {
		return uint64(row.head), err
	}
	return uint64(last - 1), nil
}

// errEnough ends the rows of a statement of which no more are needed.
var errEnough = errors.New("enough")

// fit goes through frames after a sequence, as the statement orders them, and
// returns the sequence of the last of those that fit maxBytes, or of the first if
// none does; 0 if there is none.
func (n *snapshot) fit(ctx context.Context, statement *sql.Stmt, id, after, maxFrames int64, maxBytes int) (int64, error) {
	var last, sequence, size, bytes int64
	err := n.each(ctx, statement, []any{id, after, maxFrames}, []any{&sequence, &size}, func() error {
		bytes += size
		if last != 0 && bytes > int64(maxBytes) {
			return errEnough
		}
		last = sequence
		return nil
	})
	if err == errEnough {
		err = nil
	}
	return last, err
}

// frameRange says where frames are to be read to.
type frameRange struct {
	of *numbering
	// after and last are sequences: the range is after < sequence <= last.
	after, last int64
	frames      *[]backlog.Frame
}

// frames reads ranges of frames.
func (n *snapshot) frames(ctx context.Context, ranges []frameRange) error {
	var a asked[*frameRange]
	for i := range ranges {
		if r := &ranges[i]; r.after < r.last {
			a.add(r, r.of.id, r.after, r.last)
		}
	}
	var row frameRow
	err := eachAsked(ctx, n, n.statements.frames, &a, row.columns(), func(r *frameRange) error {
		f, err := row.frame(r.of)
		*r.frames = append(*r.frames, f)
		return err
	})
	for _, r := range a.of {
		slices.SortFunc(*r.frames, func(a, b backlog.Frame) int { return cmp.Compare(a.Position.Sequence, b.Position.Sequence) })
	}
	return err
}

// frameRow is a row of channel_frames.
type frameRow struct {
	sequence, origin, created int64
	contentType, eventType    string
	headers                   []byte // JSON, nil if there are none
	payload                   []byte
}

func (r *frameRow) columns() []any {
	return []any{&r.sequence, &r.origin, &r.created, &r.contentType, &r.eventType, &r.headers, &r.payload}
}

func (r *frameRow) frame(of *numbering) (backlog.Frame, error) {
	f := backlog.Frame{
		Position:    of.position(r.sequence, r.origin),
		ContentType: r.contentType,
		EventType:   r.eventType,
		Payload:     r.payload,
		Created:     timeOf(r.created),
	}
	if r.headers != nil {
		if err := json.Unmarshal(r.headers, &f.Headers); err != nil {
			return f, fmt.Errorf("headers of frame %s: %w", f.Position, err)
		}
	}
	return f, nil
}
