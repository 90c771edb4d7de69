-- Fanfare's tables on SQLite, version 1. They are those of PostgreSQL in SQLite's
-- types: times are microseconds since 1970 in UTC, ages are microseconds, and
-- texts are compared byte by byte.

-- +goose Up

-- One row.
create table settings (
  only_row           integer primary key check (only_row = 1),
  schema_version     integer not null,
  oldest_binary      integer not null, -- the lowest schema version whose binaries may use this file
  max_frame_bytes    integer not null default 1048576,
  grace              integer not null default 30000000,
  grace_rows         integer not null default 16384,    -- per stream, beyond the backlog
  grace_bytes        integer not null default 67108864, -- per stream, beyond the backlog
  idempotency_window integer not null default 86400000000
) strict;
insert into settings (only_row, schema_version, oldest_binary) values (1, 1, 1);

-- What a new subscription may replay; see backlog.Policy. Null is inherited.
create table policies (
  channel          text    not null,
  prefix           integer not null check (prefix in (0, 1)),
  backlog          integer check (backlog >= 0),
  retention_age    integer check (retention_age >= 0), -- 0: any age
  stream_retention integer check (stream_retention > 0),
  primary key (channel, prefix),
  check (channel <> '' or prefix = 1)
) strict, without rowid;

create table streams (
  channel        text    not null,
  scope          text    not null,
  stream_id      integer not null,           -- identity of this numbering; random
  epoch          integer not null,           -- the stream's own epoch; random, bit 62 set
  previous_epoch integer,                    -- that of the numbering before
  head           integer not null default 0, -- newest sequence
  head_origin    integer not null,           -- origin of the frame at head
  floor          integer not null default 0, -- frames at or below it may be gone
  floor_origin   integer not null,           -- origin of the frame at floor
  closed         integer not null default 0,
  ever_closed    integer not null default 0,
  ephemeral      integer not null default 0, -- has ever carried an ephemeral frame
  stored_bytes   integer not null default 0, -- payload bytes of the rows above floor
  created        integer not null,
  updated        integer not null,
  closed_at      integer,
  primary key (channel, scope)
) strict, without rowid;

-- Rows are never updated. They are appended in the order of commit, whatever
-- their stream is; id is that order. The payload is last, so that sizes are read
-- without it.
create table channel_frames (
  id           integer primary key,
  stream_id    integer not null,
  sequence     integer not null,
  size         integer not null,
  origin       integer not null,
  created      integer not null,
  content_type text    not null,
  event_type   text    not null,
  headers      text,             -- a JSON object; null: none
  payload      blob    not null
) strict;
create unique index channel_frames_position on channel_frames (stream_id, sequence);

-- Numberings that a reopening ended. Their frames stay for the grace.
create table retired_streams (
  stream_id    integer primary key,
  channel      text    not null,
  scope        text    not null,
  epoch        integer not null,
  head         integer not null,
  head_origin  integer not null,
  floor        integer not null,
  floor_origin integer not null,
  created      integer not null,
  retired      integer not null
) strict;
create index retired_streams_name on retired_streams (channel, scope);

-- Keyed by name, not by identity: a key stays known when the stream is closed,
-- reopened or trimmed.
create table idempotency_keys (
  channel  text    not null,
  scope    text    not null,
  key      text    not null,
  digest   blob    not null,
  epoch    integer not null,
  sequence integer not null,
  created  integer not null,
  primary key (channel, scope, key)
) strict, without rowid;
create index idempotency_keys_created on idempotency_keys (created);
