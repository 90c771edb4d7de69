package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// schemaTimeout bounds the creation and the removal of a schema.
const schemaTimeout = 30 * time.Second

// scratch is a schema that exists for one run of this program, and a notify
// channel of its own.
type scratch struct {
	url    string
	schema string
}

// newScratch creates a schema with the table that a reference writes to: columns,
// storage, primary key and settings are those of Fanfare's channel_frames.
func newScratch(ctx context.Context, url string) (*scratch, error) {
	s := &scratch{url: url, schema: "fanfare_limits_" + strings.ToLower(rand.Text()[:8])}
	return s, s.execute(ctx, `
create schema `+s.schema+`;
create table `+s.schema+`.rows (
  stream_id    bigint not null,
  sequence     bigint not null,
  id           uuid   not null,
  payload      bytea  not null,
  size         int    not null,
  content_type text   collate "C" not null,
  event_type   text   collate "C" not null,
  headers      jsonb,
  origin       bigint not null,
  created      timestamptz not null,
  primary key (stream_id, sequence)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 20000,
        toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 2000);
alter table `+s.schema+`.rows alter column payload set storage external;`)
}

// drop removes the schema, also when ctx has ended.
func (s *scratch) drop(ctx context.Context) error {
	return s.execute(ctx, "set client_min_messages = warning; drop schema if exists "+s.schema+" cascade")
}

// execute goes on when ctx ends: of a statement that was interrupted nobody knows
// whether there is something to remove.
func (s *scratch) execute(ctx context.Context, sql string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), schemaTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

// notifyChannel needs no quotes.
func (s *scratch) notifyChannel() string { return s.schema }

// origin stands for the server that numbered a frame, in 8 bytes like any other.
const origin int64 = 1 << 61

// insertAndNotify stores a frame and announces it, in one statement and thus one
// transaction. Parameters: stream, sequence, payload, origin.
func (s *scratch) insertAndNotify() string {
	return fmt.Sprintf(`
with stored as (
  insert into %s.rows (stream_id, sequence, id, payload, size, content_type, event_type, origin, created)
  values ($1, $2, gen_random_uuid(), $3::bytea, octet_length($3::bytea), '', '', $4, clock_timestamp())
  returning stream_id, sequence, payload, created)
select pg_notify('%s', stream_id || E'\t' || sequence || E'\t' || (extract(epoch from created) * 1000000)::bigint || E'\t'
         || replace(encode(payload, 'base64'), E'\n', ''))
  from stored`, s.schema, s.notifyChannel())
}

// insertMany stores frames. Parameters: streams, sequences, payloads, origin.
func (s *scratch) insertMany() string {
	return fmt.Sprintf(`
insert into %s.rows (stream_id, sequence, id, payload, size, content_type, event_type, origin, created)
select n.stream_id, n.sequence, gen_random_uuid(), n.payload, octet_length(n.payload), '', '', $4, clock_timestamp()
  from unnest($1::bigint[], $2::bigint[], $3::bytea[]) n(stream_id, sequence, payload)`, s.schema)
}
