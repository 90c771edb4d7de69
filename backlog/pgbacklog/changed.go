package pgbacklog

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
)

// changedSQL compares what is known of streams with their rows, found by the primary
// key, and returns those that are otherwise. It reads no frames. The bounds are looked
// up once for each channel, into arrays: to join them would take a comparison for each
// stream and channel.
//
// Parameters: the channels; by stream channel, scope, the number of its channel (from 1),
// its own epoch (0 if it does not exist), the head's sequence and epoch, flags, how many
// frames the backlog has and how old they may be in microseconds (0: any age), and the
// base's sequence.
const changedSQL = `
with known as materialized (
  select * from unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[])
    with ordinality as k(channel, scope, number, epoch, head, head_epoch, flags, backlog, age, base, ord)),
bound as materialized (
  select array_agg(p.backlog order by c.ord) as backlogs,
         array_agg(coalesce((extract(epoch from p.retention_age) * 1000000)::bigint, 0) order by c.ord) as ages
    from unnest($1::text[]) with ordinality c(channel, ord) cross join lateral fanfare._policy(c.channel) p)
select 0::bigint, null::bigint, pg_is_in_recovery()::int::bigint, fanfare._origin()
union all
select 1, k.ord, null, null
  from known k cross join bound b
  left join fanfare.streams s on s.channel = k.channel and s.scope = k.scope
 where case when s.channel is null then k.epoch <> 0
       else k.epoch <> s.epoch or k.head <> s.head or k.head_epoch <> (s.epoch # s.head_origin)
         or k.flags <> s.closed::int + 2 * s.ever_closed::int + 4 * s.ephemeral::int
         or k.backlog <> b.backlogs[k.number] or k.age <> b.ages[k.number]
         or s.floor > greatest(k.base, s.head - b.backlogs[k.number]) end`

// Changed implements backlog.Store.
func (s *Store) Changed(ctx context.Context, origin uint64, known []backlog.StreamState) ([]int, error) {
	if err := backlog.ValidateKnown(known); err != nil {
		return nil, err
	}
	var changed []int
	err := s.read(ctx, s.loading, origin, "look for changes", s.sql.changed, knownArguments(known), func(rows pgx.Rows) (who answerer, err error) {
		changed = changed[:0]
		err = eachRow(rows, func(r *row) {
			if r.number(columnKind) == rowServer {
				who = r.answerer()
			} else {
				changed = append(changed, int(r.number(columnRequest)-1))
			}
		})
		return who, err
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(changed)
	return changed, nil
}

func knownArguments(known []backlog.StreamState) []any {
	n := len(known)
	var distinct []string
	numberOf := map[string]int64{}
	channels, scopes := make([]string, n), make([]string, n)
	var numbers [8][]int64
	for i := range numbers {
		numbers[i] = make([]int64, n)
	}
	for i := range known {
		k := &known[i]
		channels[i], scopes[i] = k.Stream.Channel, k.Stream.Scope
		number, ok := numberOf[k.Stream.Channel]
		if !ok {
			distinct = append(distinct, k.Stream.Channel)
			number = int64(len(distinct))
			numberOf[k.Stream.Channel] = number
		}
		numbers[0][i] = number
		if !k.Exists {
			continue
		}
		for j, number := range [...]int64{
			bigint(k.OwnEpoch), bigint(k.Head.Sequence), bigint(k.Head.Epoch),
			flag(k.Closed) + 2*flag(k.EverClosed) + 4*flag(k.Ephemeral),
			bigint(k.Backlog), k.RetentionAge.Microseconds(), bigint(k.Base.Sequence),
		} {
			numbers[j+1][i] = number
		}
	}
	arguments := []any{distinct, channels, scopes}
	for _, column := range numbers {
		arguments = append(arguments, column)
	}
	return arguments
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
