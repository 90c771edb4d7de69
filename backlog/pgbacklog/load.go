package pgbacklog

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fanfare-io/fanfare/backlog"
)

// stateColumns are those of the view stream_states that row.state decodes, for an
// alias s. They are few, since rows of other kinds, which are many, have them too:
// the numbers share an array.
const stateColumns = `s.channel, s.scope, s.created, s.updated, array[s.epoch, s.head, s.head_origin, s.floor, s.closed::int, s.ever_closed::int,
	s.previous_epoch, s.ephemeral::int, s.backlog, (extract(epoch from s.retention_age) * 1000000)::bigint, s.base, s.base_origin]`

// serverRow is the first branch of a read: who answered, and when. It stands in
// the same statement as the rest, so it is about the server that gave the rest.
const serverRow = `select 0::bigint, null::bigint, pg_is_in_recovery()::int::bigint, fanfare._origin(), null::bytea, null::jsonb, ` +
	`null::text, null::text, clock_timestamp(), null::timestamptz, null::bigint[]`

// loadSQL reads many streams in one statement, hence in one snapshot. Frames are
// found by the primary key (stream_id, sequence), in ranges that are no longer than
// what is asked for: of open ones the planner may read and sort all. Of a stream that
// stores more bytes than are wanted, sizes are summed from the newest frame back before
// any payload is fetched: large payloads are stored out of line and only fetched for
// rows that are returned.
//
// There is one row for a stream in the first part, and nothing is joined with it but
// what an index finds: the planner does not know how many requests there are, and to
// join two lists it would compare each element with each.
//
// Parameters: by request channel, scope, after, greatest number of frames and of
// bytes, and which of the last parameter's elements, from first to last, are the
// sequences to verify, counted from 1.
const loadSQL = `
with stream as materialized (
  select r.ord, s.*, least(s.head, case when s.stored_bytes <= r.max_bytes then greatest(r.after, s.floor, s.head - r.max_frames)
           else (select min(c.sequence) - 1
                   from (select n.sequence, sum(n.size) over newest as bytes, row_number() over newest as count
                           from fanfare.channel_frames n
                          where n.stream_id = s.stream_id and n.sequence > greatest(r.after, s.floor, s.head - r.max_frames)
                         window newest as (order by n.sequence desc rows unbounded preceding)) c
                  where c.bytes <= r.max_bytes or c.count = 1) end) as before,
         array(select case v.sequence when s.head then s.head_origin when s.floor then s.floor_origin
                 else (select f.origin from fanfare.channel_frames f where f.stream_id = s.stream_id and f.sequence = v.sequence) end
                 from (select ($8::bigint[])[i] as sequence from generate_series(r.verify_first, r.verify_last) i) v) as verified
    from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[]) with ordinality
           as r(channel, scope, after, max_frames, max_bytes, verify_first, verify_last, ord)
    join fanfare.stream_states s on s.channel = r.channel and s.scope = r.scope)
` + serverRow + `, null::bigint[]
union all
select 1, s.ord, s.before,
       case s.before when s.head then s.head_origin when s.floor then s.floor_origin
         else (select f.origin from fanfare.channel_frames f where f.stream_id = s.stream_id and f.sequence = s.before) end,
       null, null, ` + stateColumns + `, s.verified
  from stream s
union all
select 2, s.ord, f.sequence, s.epoch # f.origin, f.payload, f.headers, f.content_type, f.event_type, f.created, null, null, null
  from stream s cross join lateral (
    select * from fanfare.channel_frames f where f.stream_id = s.stream_id and f.sequence > s.before order by f.sequence) f`

// Columns of the rows of reading statements.
const (
	// columnKind is one of the kinds below.
	columnKind = iota
	// columnRequest is the number of the request, from 1; only of a load.
	columnRequest
	// columnSequence is a frame's; of a state that of the position before the first
	// frame; of a rowServer 1 if the server is in recovery.
	columnSequence
	// columnEpoch is that of a frame's position; of a state the origin of the position
	// before the first frame, null if the stream has no row there; of a rowServer the
	// server's origin.
	columnEpoch
	columnPayload
	columnHeaders
	// columnState is the first of stateColumns. A frame has its content type, event
	// type and time in the first three, a rowServer its time in the third.
	columnState
	columnContentType = columnState
	columnEventType   = columnState + 1
	columnCreated     = columnState + 2
	// columnVerified has, of a state in a load, the origins of the positions to verify,
	// null where the stream has no row.
	columnVerified = columnState + 5
)

// Kinds of rows that the reading statements return.
const (
	rowServer = 0
	rowState  = 1
	rowFrame  = 2
)

// The numbers among stateColumns, in their order.
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
	stateNumbers
)

func (r *row) answerer() answerer {
	return answerer{origin: r.number(columnEpoch), recovery: r.number(columnSequence) == 1}
}

// state decodes stateColumns, of which the first is given.
func (r *row) state(first int) backlog.StreamState {
	var array [stateNumbers]pgtype.Int8
	list := r.numbers(first+4, array[:0])
	if len(list) != stateNumbers {
		r.fail(first+4, fmt.Errorf("has %d numbers", len(list)))
		return backlog.StreamState{}
	}
	n := func(which int) int64 { return list[which].Int64 } // 0 for null
	return backlog.StreamState{
		Stream:           backlog.StreamName{Channel: r.text(first), Scope: r.text(first + 1)},
		Exists:           true,
		OwnEpoch:         uint64(n(stateEpoch)),
		Head:             backlog.Position{Epoch: uint64(n(stateEpoch) ^ n(stateHeadOrigin)), Sequence: uint64(n(stateHead))},
		Base:             backlog.Position{Epoch: uint64(n(stateEpoch) ^ n(stateBaseOrigin)), Sequence: uint64(n(stateBase))},
		Floor:            uint64(n(stateFloor)),
		Closed:           n(stateClosed) == 1,
		EverClosed:       n(stateEverClosed) == 1,
		PreviousOwnEpoch: uint64(n(statePreviousEpoch)),
		Ephemeral:        n(stateEphemeral) == 1,
		Backlog:          uint64(n(stateBacklog)),
		RetentionAge:     microseconds(n(stateRetentionMicroseconds)),
		Created:          r.time(first + 2),
		Updated:          r.time(first + 3),
	}
}

// microseconds converts without overflowing.
func microseconds(n int64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/int64(time.Microsecond))) * time.Microsecond
}

// position is that of a row of kind rowState, in a numbering with this own epoch; its
// epoch is 0 if there is no such position.
func (r *row) position(own uint64) backlog.Position {
	p := backlog.Position{Sequence: uint64(r.number(columnSequence))}
	if !r.isNull(columnEpoch) {
		p.Epoch = own ^ uint64(r.number(columnEpoch))
	}
	return p
}

// frame decodes a row of kind rowFrame.
func (r *row) frame() backlog.Frame {
	return backlog.Frame{
		Position:    backlog.Position{Epoch: uint64(r.number(columnEpoch)), Sequence: uint64(r.number(columnSequence))},
		ContentType: r.text(columnContentType),
		EventType:   r.text(columnEventType),
		Headers:     r.headers(columnHeaders),
		Payload:     r.payload(columnPayload),
		Created:     r.time(columnCreated),
	}
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
	verifyFirst, verifyLast, verify := make([]int64, n), make([]int64, n), []int64{}
	for i, r := range requests {
		channels[i], scopes[i] = r.Stream.Channel, r.Stream.Scope
		after[i] = bigint(r.After)
		maxFrames[i], maxBytes[i] = int64(max(r.MaxFrames, 0)), int64(max(r.MaxBytes, 0))
		verifyFirst[i] = int64(len(verify) + 1)
		for _, sequence := range r.Verify {
			verify = append(verify, bigint(sequence))
		}
		verifyLast[i] = int64(len(verify))
	}
	return []any{channels, scopes, after, maxFrames, maxBytes, verifyFirst, verifyLast, verify}
}

// bigint converts n to what the database can hold. No frame has a larger
// sequence, so the largest finds what n would: nothing.
func bigint(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// collectLoad reads the rows of loadSQL, in whatever order they come.
func collectLoad(rows pgx.Rows, requests []backlog.LoadRequest) (answerer, backlog.LoadResult, error) {
	var who answerer
	var now time.Time // by the server's clock
	result := backlog.LoadResult{Streams: make([]backlog.Loaded, len(requests))}
	for i, r := range requests {
		loaded := &result.Streams[i]
		loaded.State.Stream = r.Stream
		loaded.Verified = make([]backlog.Position, len(r.Verify))
		for j, sequence := range r.Verify {
			loaded.Verified[j].Sequence = sequence
		}
	}
	err := eachRow(rows, func(r *row) {
		switch r.number(columnKind) {
		case rowServer:
			who = r.answerer()
			result.Origin, now = uint64(who.origin), r.time(columnCreated)
		case rowState:
			r.loaded(r.requested(result.Streams))
		case rowFrame:
			loaded := r.requested(result.Streams)
			loaded.Frames = append(loaded.Frames, r.frame())
		}
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

// requested returns the one of a load's streams that a row is about.
func (r *row) requested(streams []backlog.Loaded) *backlog.Loaded {
	n := r.number(columnRequest)
	if n < 1 || n > int64(len(streams)) {
		r.fail(columnRequest, fmt.Errorf("is %d of %d", n, len(streams)))
		return new(backlog.Loaded)
	}
	return &streams[n-1]
}

// loaded decodes a row of kind rowState.
func (r *row) loaded(l *backlog.Loaded) {
	l.State = r.state(columnState)
	l.Before = r.position(l.State.OwnEpoch)
	var array [4]pgtype.Int8
	for i, origin := range r.numbers(columnVerified, array[:0]) {
		if origin.Valid && i < len(l.Verified) {
			l.Verified[i].Epoch = l.State.OwnEpoch ^ uint64(origin.Int64)
		}
	}
	l.Frames = expect(l.Frames, l.State.Head.Sequence-l.Before.Sequence)
}

// expect returns frames with room for n, or for as many as it is worth to be wrong by.
func expect(frames []backlog.Frame, n uint64) []backlog.Frame {
	return slices.Grow(frames, int(min(n, 4096)))
}

// sortFrames sorts frames, which they mostly are.
func sortFrames(frames []backlog.Frame) {
	for i := 1; i < len(frames); i++ {
		if frames[i].Position.Sequence < frames[i-1].Position.Sequence {
			slices.SortFunc(frames, func(a, b backlog.Frame) int { return cmp.Compare(a.Position.Sequence, b.Position.Sequence) })
			return
		}
	}
}
