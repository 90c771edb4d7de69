package pgbacklog

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
)

// stateColumns are those of the view stream_states that stateRow.columns scans, for
// an alias s. They are few, since rows of other kinds, which are many, have them
// too: the numbers share an array.
const stateColumns = `s.channel, s.scope, s.created, s.updated, array[s.epoch, s.head, s.head_origin, s.floor, s.closed::int, s.ever_closed::int,
	s.previous_epoch, s.ephemeral::int, s.backlog, (extract(epoch from s.retention_age) * 1000000)::bigint, s.base, s.base_origin]`

// serverRow is the first branch of a read: who answered, and when. It stands in
// the same statement as the rest, so it is about the server that gave the rest.
const serverRow = `select 0, null::bigint, pg_is_in_recovery()::int::bigint, fanfare._origin(), null::bytea, null::jsonb, ` +
	`null::text, null::text, clock_timestamp(), null::timestamptz, null::bigint[]`

// loadSQL reads many streams in one statement, hence in one snapshot. Sizes are
// summed from the newest frame back before any payload is fetched: large
// payloads are stored out of line and only fetched for rows that are returned.
// Frames are found by the primary key (stream_id, sequence), in ranges that are no
// longer than what is asked for: of open ones the planner may read and sort all.
//
// Parameters: by request channel, scope, after, greatest number of frames and of
// bytes; by sequence to verify the request's number (from 1) and the sequence.
const loadSQL = `
with request as materialized (
  select * from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[]) with ordinality
    as r(channel, scope, after, max_frames, max_bytes, ord)),
state as materialized (
  select r.ord, r.max_frames, r.max_bytes, greatest(r.after, s.floor) as after, s.*
    from request r join fanfare.stream_states s on s.channel = r.channel and s.scope = r.scope),
tail as materialized (
  select s.ord, s.stream_id, s.epoch, s.head, s.head_origin, s.floor, s.floor_origin, coalesce(fit.before, s.head) as before
    from state s cross join lateral (
      select min(c.sequence) - 1 as before
        from (select n.sequence, sum(n.size) over newest as bytes, row_number() over newest as count
                from fanfare.channel_frames n
               where n.stream_id = s.stream_id and n.sequence > greatest(s.after, s.head - s.max_frames)
              window newest as (order by n.sequence desc rows unbounded preceding)) c
       where c.bytes <= s.max_bytes or c.count = 1) fit)
` + serverRow + `
union all
select 1, s.ord, t.before,
       t.epoch # case t.before when t.head then t.head_origin when t.floor then t.floor_origin
         else (select f.origin from fanfare.channel_frames f where f.stream_id = t.stream_id and f.sequence = t.before) end,
       null, null, ` + stateColumns + `
  from state s join tail t on t.ord = s.ord
union all
select 2, t.ord, f.sequence, t.epoch # f.origin, f.payload, f.headers, f.content_type, f.event_type, f.created, null, null
  from tail t cross join lateral (
    select * from fanfare.channel_frames f where f.stream_id = t.stream_id and f.sequence > t.before order by f.sequence) f
union all
select 3, v.ord, v.n,
       t.epoch # case v.sequence when t.head then t.head_origin when t.floor then t.floor_origin
         else (select f.origin from fanfare.channel_frames f where f.stream_id = t.stream_id and f.sequence = v.sequence) end,
       null, null, null, null, null, null, null
  from unnest($6::bigint[], $7::bigint[]) with ordinality v(ord, sequence, n) join tail t on t.ord = v.ord`

// Kinds of rows that the reading statements return.
const (
	rowServer   = 0
	rowState    = 1
	rowFrame    = 2
	rowVerified = 3
)

// row is one of a reading statement's, of any kind.
type row struct {
	kind int
	// ord is the number of the request, from 1.
	ord *int64
	// sequence is a frame's; of a state that of the position before the first
	// frame; of a verified position its number, from 1; of a rowServer 1 if the
	// server is in recovery.
	sequence *int64
	// epoch is that of the position; nil if the stream has no row there. Of a
	// rowServer it is the server's origin.
	epoch   *int64
	payload []byte
	headers []byte // JSON, nil if there are none
	// state has the columns of a state; of a frame the content type and event type
	// instead of channel and scope; of these two and a rowServer a time as created.
	state stateRow
}

// stateRow holds stateColumns.
type stateRow struct {
	channel, scope   *string
	created, updated *time.Time
	numbers          []*int64
}

// The numbers of a stateRow, in their order.
const (
	stateEpoch = iota
	stateHead
	stateHeadOrigin
	stateFloor
	stateClosed // a flag is 0 or 1
	stateEverClosed
	statePreviousEpoch
	stateEphemeral
	stateBacklog
	stateRetentionMicroseconds
	stateBase
	stateBaseOrigin
)

func (s *stateRow) columns() []any {
	return []any{&s.channel, &s.scope, &s.created, &s.updated, &s.numbers}
}

func (r *row) columns() []any {
	return append([]any{&r.kind, &r.ord, &r.sequence, &r.epoch, &r.payload, &r.headers}, r.state.columns()...)
}

// eachRow calls do with every row. The row is overwritten by the next one.
func eachRow(rows pgx.Rows, do func(*row) error) error {
	var r row
	columns := r.columns()
	for rows.Next() {
		r.payload, r.headers = nil, nil
		if err := rows.Scan(columns...); err != nil {
			return err
		}
		if err := do(&r); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (r *row) answerer() answerer { return answerer{origin: *r.epoch, recovery: *r.sequence == 1} }

// streamState converts a row that has stateColumns.
func (s *stateRow) streamState() backlog.StreamState {
	n := s.numbers
	state := backlog.StreamState{
		Stream:     backlog.StreamName{Channel: *s.channel, Scope: *s.scope},
		Exists:     true,
		OwnEpoch:   uint64(*n[stateEpoch]),
		Head:       backlog.Position{Epoch: uint64(*n[stateEpoch] ^ *n[stateHeadOrigin]), Sequence: uint64(*n[stateHead])},
		Base:       backlog.Position{Epoch: uint64(*n[stateEpoch] ^ *n[stateBaseOrigin]), Sequence: uint64(*n[stateBase])},
		Floor:      uint64(*n[stateFloor]),
		Closed:     *n[stateClosed] == 1,
		EverClosed: *n[stateEverClosed] == 1,
		Ephemeral:  *n[stateEphemeral] == 1,
		Backlog:    uint64(*n[stateBacklog]),
		Created:    s.created.UTC(),
		Updated:    s.updated.UTC(),
	}
	if previous := n[statePreviousEpoch]; previous != nil {
		state.PreviousOwnEpoch = uint64(*previous)
	}
	if age := n[stateRetentionMicroseconds]; age != nil {
		state.RetentionAge = microseconds(*age)
	}
	return state
}

// microseconds converts without overflowing.
func microseconds(n int64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/int64(time.Microsecond))) * time.Microsecond
}

// position is that of a row of kind rowState, rowFrame or rowVerified; its epoch
// is 0 if there is no such position.
func (r *row) position() backlog.Position {
	p := backlog.Position{Sequence: uint64(*r.sequence)}
	if r.epoch != nil {
		p.Epoch = uint64(*r.epoch)
	}
	return p
}

// frame converts a row of kind rowFrame.
func (r *row) frame() (backlog.Frame, error) {
	f := backlog.Frame{
		Position:    r.position(),
		ContentType: *r.state.channel,
		EventType:   *r.state.scope,
		Payload:     r.payload,
		Created:     r.state.created.UTC(),
	}
	if r.headers != nil {
		if err := json.Unmarshal(r.headers, &f.Headers); err != nil {
			return f, fmt.Errorf("headers of frame %s: %w", f.Position, err)
		}
	}
	return f, nil
}

// Load implements backlog.Store.
func (s *Store) Load(ctx context.Context, origin uint64, requests []backlog.LoadRequest) (backlog.LoadResult, error) {
	if err := backlog.ValidateLoad(requests); err != nil {
		return backlog.LoadResult{}, err
	}
	var result backlog.LoadResult
	err := s.read(ctx, s.loading, origin, "load", s.sql.load, loadArguments(requests), func(rows pgx.Rows) (who answerer, err error) {
		who, result, err = collectLoad(rows, requests)
		return who, err
	})
	if err != nil {
		return backlog.LoadResult{}, err
	}
	return result, nil
}

func loadArguments(requests []backlog.LoadRequest) []any {
	n := len(requests)
	channels, scopes := make([]string, n), make([]string, n)
	after, maxFrames, maxBytes := make([]int64, n), make([]int64, n), make([]int64, n)
	verifyOrd, verify := []int64{}, []int64{}
	for i, r := range requests {
		channels[i], scopes[i] = r.Stream.Channel, r.Stream.Scope
		after[i] = bigint(r.After)
		maxFrames[i], maxBytes[i] = int64(max(r.MaxFrames, 0)), int64(max(r.MaxBytes, 0))
		for _, sequence := range r.Verify {
			verifyOrd = append(verifyOrd, int64(i+1))
			verify = append(verify, bigint(sequence))
		}
	}
	return []any{channels, scopes, after, maxFrames, maxBytes, verifyOrd, verify}
}

// bigint converts n to what the database can hold. No frame has a larger
// sequence, so the largest finds what n would: nothing.
func bigint(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// collectLoad reads the rows of loadSQL, in whatever order they come.
func collectLoad(rows pgx.Rows, requests []backlog.LoadRequest) (answerer, backlog.LoadResult, error) {
	var who answerer
	var now time.Time // by the server's clock
	result := backlog.LoadResult{Streams: make([]backlog.Loaded, len(requests))}
	// Verified sequences are numbered across requests, in their order.
	var verified []*backlog.Position
	for i, r := range requests {
		loaded := &result.Streams[i]
		loaded.State.Stream = r.Stream
		loaded.Verified = make([]backlog.Position, len(r.Verify))
		for j, sequence := range r.Verify {
			loaded.Verified[j].Sequence = sequence
			verified = append(verified, &loaded.Verified[j])
		}
	}
	err := eachRow(rows, func(r *row) error {
		switch r.kind {
		case rowServer:
			who = r.answerer()
			result.Origin, now = uint64(*r.epoch), r.state.created.UTC()
		case rowState:
			loaded := &result.Streams[*r.ord-1]
			loaded.State = r.state.streamState()
			loaded.Before = r.position()
		case rowFrame:
			loaded := &result.Streams[*r.ord-1]
			f, err := r.frame()
			loaded.Frames = append(loaded.Frames, f)
			return err
		case rowVerified:
			verified[*r.sequence-1].Epoch = r.position().Epoch
		}
		return nil
	})
	for i := range result.Streams {
		if age := result.Streams[i].State.RetentionAge; age > 0 {
			result.Streams[i].NotBefore = now.Add(-age)
		}
		sortFrames(result.Streams[i].Frames)
		result.Streams[i].KeepContiguous()
	}
	return who, result, err
}

func sortFrames(frames []backlog.Frame) {
	slices.SortFunc(frames, func(a, b backlog.Frame) int { return cmp.Compare(a.Position.Sequence, b.Position.Sequence) })
}
