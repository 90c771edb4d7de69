package pgbacklog

import (
	"context"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
)

// pageSQL reads the numbering that a page is asked for, the position that it
// follows and its frames in one statement. Frames are found by the primary key
// (stream_id, sequence), in a range that is no longer than the page: of an open one
// the planner may read and sort all that follows. Unless all that is stored fits, their
// sizes are summed before payloads are fetched: first of all, which is the cheaper sum,
// and then one after another.
//
// A numbering that a reopening ended is described as it was when it was closed.
//
// Parameters: channel, scope, own epoch (0: the current numbering), sequence of
// the position, greatest sequence and number of bytes.
const pageSQL = `
with numbering as materialized (
  select s.channel, s.scope, s.stream_id, s.epoch, s.head, s.head_origin, s.floor, s.floor_origin, s.closed, s.ever_closed, s.previous_epoch, s.ephemeral,
         s.stored_bytes, s.backlog, s.retention_age, s.base, s.base_origin, s.created, s.updated
    from fanfare.stream_states s
   where s.channel = $1::text and s.scope = $2::text and ($3::bigint = 0 or s.epoch = $3::bigint)
  union all
  select r.channel, r.scope, r.stream_id, r.epoch, r.head, r.head_origin, r.floor, r.floor_origin, true, true, null, false,
         null, 0, null, r.floor, r.floor_origin, r.created, r.retired
    from fanfare.retired_streams r
   where r.channel = $1::text and r.scope = $2::text and r.epoch = $3::bigint)
` + serverRow + `
union all
select 1, null, $4::bigint,
       case $4::bigint when s.head then s.head_origin when s.floor then s.floor_origin
         else (select f.origin from fanfare.channel_frames f where f.stream_id = s.stream_id and f.sequence = $4::bigint) end,
       null, null, ` + stateColumns + `
  from numbering s
union all
select 2, null, f.sequence, s.epoch # f.origin, f.payload, f.headers, f.content_type, f.event_type, f.created, null, null
  from numbering s cross join lateral (
    select case
      when s.stored_bytes <= $6::bigint
        or (select sum(n.size) from fanfare.channel_frames n
             where n.stream_id = s.stream_id and n.sequence > $4::bigint and n.sequence <= $5::bigint) <= $6::bigint then $5::bigint
      else (select max(c.sequence)
              from (select n.sequence, sum(n.size) over oldest as bytes, row_number() over oldest as count
                      from fanfare.channel_frames n
                     where n.stream_id = s.stream_id and n.sequence > $4::bigint and n.sequence <= $5::bigint
                    window oldest as (order by n.sequence rows unbounded preceding)) c
             where c.bytes <= $6::bigint or c.count = 1) end as last) fit
  cross join lateral (
    select * from fanfare.channel_frames f
     where f.stream_id = s.stream_id and f.sequence > $4::bigint and f.sequence <= fit.last and $4::bigint >= s.floor order by f.sequence) f`

// ReadPage implements backlog.Store. The state of a page of a numbering that has
// been replaced is that numbering's: closed, with its last position as head and
// what is still stored of it after the base.
func (s *Store) ReadPage(ctx context.Context, origin uint64, request backlog.PageRequest) (backlog.Page, error) {
	if err := request.Stream.Validate(); err != nil {
		return backlog.Page{}, err
	}
	args := []any{request.Stream.Channel, request.Stream.Scope, bigint(request.OwnEpoch), bigint(request.After.Sequence),
		bigint(request.After.Sequence + min(uint64(max(request.MaxFrames, 0)), math.MaxUint64-request.After.Sequence)), max(request.MaxBytes, 0)}
	page := backlog.Page{State: backlog.StreamState{Stream: request.Stream}}
	var after backlog.Position // as the store knows it
	err := s.read(ctx, s.paging, origin, "read a page", s.sql.page, args, func(rows pgx.Rows) (who answerer, err error) {
		who, page, after, err = collectPage(rows, request)
		return who, err
	})
	if err != nil {
		return backlog.Page{}, err
	}
	if err := request.Judge(&page, after); err != nil {
		return backlog.Page{}, err
	}
	return page, nil
}

// collectPage reads the rows of pageSQL, in whatever order they come.
func collectPage(rows pgx.Rows, request backlog.PageRequest) (who answerer, page backlog.Page, after backlog.Position, err error) {
	page.State.Stream = request.Stream
	err = eachRow(rows, func(r *row) {
		switch r.number(columnKind) {
		case rowServer:
			who = r.answerer()
		case rowState:
			page.State = r.state(columnState)
			after = r.position(page.State.OwnEpoch)
			if head := page.State.Head.Sequence; head > after.Sequence {
				page.Frames = expect(page.Frames, min(head-after.Sequence, uint64(max(request.MaxFrames, 0))))
			}
		case rowFrame:
			page.Frames = append(page.Frames, r.frame())
		}
	})
	sortFrames(page.Frames)
	return who, page, after, err
}
