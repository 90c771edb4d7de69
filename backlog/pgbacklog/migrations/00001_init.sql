-- Fanfare's schema, version 1.
--
-- It is run with a search_path that holds Fanfare's schema alone, so names are
-- unqualified here. Functions that are called from outside keep that path (SET
-- search_path FROM CURRENT) whatever their callers' is. Those without the clause
-- are only called by them, since setting the path for each call costs more than
-- most of them do. Functions whose names begin with an underscore are for Fanfare
-- itself.

-- +goose Up

-- pg_temp last: unless it is named it comes first, and a caller's temporary
-- tables would stand in for these.
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- One row. Values that functions need, because applications publish by SQL.
create table settings (
  only_row           boolean  primary key default true check (only_row),
  schema_version     int      not null,
  oldest_binary      int      not null, -- the lowest schema version whose binaries may use this schema
  envelope_version   int      not null default 1,
  notify_channel     text     collate "C" not null,
  inline_bytes       int      not null default 4096,     -- payloads up to this travel in the announcement
  max_frame_bytes    int      not null default 1048576,
  grace              interval not null default '30 seconds',
  grace_rows         int      not null default 16384,    -- per stream, beyond the backlog
  grace_bytes        bigint   not null default 67108864, -- per stream, beyond the backlog
  idempotency_window interval not null default '24 hours'
);
insert into settings (schema_version, oldest_binary, notify_channel)
values (1, 1, 'fanfare_' || current_schema());

-- What new subscriptions may replay of a channel's streams, or of those of all
-- channels that begin with it, and how long streams are kept. Null is inherited,
-- as _policy says; the row of the empty prefix, if there is one, is the schema's
-- default. set_policy writes it.
create table policies (
  channel          text     collate "C" not null check (octet_length(channel) <= 255),
  prefix           boolean  not null,
  backlog          bigint   check (backlog >= 0),
  retention_age    interval check (retention_age >= '0'), -- 0: any age
  stream_retention interval check (stream_retention > '0'),
  primary key (channel, prefix),
  check (prefix or channel <> ''),
  check (num_nonnulls(backlog, retention_age, stream_retention) > 0)
) with (fillfactor = 10); -- few rows a page, or the planner would rather read them all than use the index

-- Keys of the digest by which replicas tell announcements of these functions
-- from those of any role that can connect. pads: RFC 2104 with SHA-256.
create table announcement_keys (
  key_id    bigint generated always as identity primary key,
  key       bytea not null,
  inner_pad bytea not null,
  outer_pad bytea not null,
  created   timestamptz not null default now()
);

-- A stream's row is its lock and its counter. Everything that changes with a
-- publish is outside the index, and pages are left half empty, so that updates
-- stay heap-only. Names have no CHECK, which every update would read, plan and
-- evaluate again: who publishes has checked them.
create table streams (
  channel      text   collate "C" not null,
  scope        text   collate "C" not null,
  stream_id    bigint not null,            -- identity of this numbering; random
  epoch        bigint not null,            -- the stream's own epoch; random, bit 62 set
  previous_epoch bigint,                   -- that of the numbering before
  head         bigint not null default 0,  -- newest sequence
  head_origin  bigint not null,            -- origin of the frame at head
  floor        bigint not null default 0,  -- frames at or below it may be gone
  floor_origin bigint not null,            -- origin of the frame at floor
  closed       boolean not null default false,
  ever_closed  boolean not null default false,
  ephemeral    boolean not null default false, -- has ever carried an ephemeral frame
  stored_bytes bigint not null default 0,  -- payload bytes of the rows above floor
  created      timestamptz not null,
  updated      timestamptz not null,
  closed_at    timestamptz,
  primary key (channel, scope)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Rows are never updated. Deletes go from the floor up, a range at a time.
create table channel_frames (
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
-- Payloads are opaque and often compressed already.
alter table channel_frames alter column payload set storage external;

-- Numberings that a reopening ended. Their frames stay for the grace, so that
-- subscriptions that were reading them can finish.
create table retired_streams (
  stream_id    bigint primary key,
  channel      text   collate "C" not null,
  scope        text   collate "C" not null,
  epoch        bigint not null,
  head         bigint not null,
  head_origin  bigint not null,
  floor        bigint not null,
  floor_origin bigint not null,
  created      timestamptz not null,
  retired      timestamptz not null
);
create index retired_streams_name on retired_streams (channel, scope);

-- Keyed by name, not by identity: a key stays known when the stream is closed,
-- reopened or trimmed.
create table idempotency_keys (
  channel  text   collate "C" not null,
  scope    text   collate "C" not null,
  key      text   collate "C" not null check (octet_length(key) between 1 and 255),
  digest   bytea  not null,
  epoch    bigint not null,
  sequence bigint not null,
  created  timestamptz not null,
  primary key (channel, scope, key)
);
create index idempotency_keys_created on idempotency_keys using brin (created) with (pages_per_range = 16, autosummarize = on);

-- +goose StatementBegin
do $$
declare
  v_key bytea := sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8'));
  v_inner bytea := v_key || decode(repeat('00', 32), 'hex');
  v_outer bytea := v_inner;
begin
  for i in 0 .. 63 loop
    v_outer := set_byte(v_outer, i, get_byte(v_inner, i) # 92);
    v_inner := set_byte(v_inner, i, get_byte(v_inner, i) # 54);
  end loop;
  insert into announcement_keys (key, inner_pad, outer_pad) values (v_key, v_inner, v_outer);
end $$;
-- +goose StatementEnd

-- A random number of 62 bits. Without a SET clause, so that it is inlined.
-- +goose StatementBegin
create function _random() returns bigint language sql volatile as $$
  select ('x' || substr(replace(gen_random_uuid()::text, '-', ''), 17, 16))::bit(64)::bigint & 4611686018427387903
$$;
-- +goose StatementEnd

-- One row: what an announcement needs besides its frames, so that a publish reads it
-- at once. It follows settings and announcement_keys by their triggers.
--
-- The origin is the last computed one, because computing one reads the control
-- file, which costs more than a publish. It is used while start and timeline are the
-- same.
create table announcing (
  only_row       boolean     primary key default true check (only_row),
  notify_channel text        collate "C" not null,
  inline_bytes   int         not null,
  prefix         text        collate "C" not null, -- of every envelope: its version and the key
  inner_prefix   bytea       not null,             -- the key's inner pad and the prefix
  outer_pad      bytea       not null,
  started        timestamptz not null default '-infinity',
  timeline       text        collate "C" not null default '',
  origin         bigint      not null default 0
);

-- +goose StatementBegin
create function _follow_settings() returns trigger
language plpgsql security definer set search_path from current as $$
begin
  insert into announcing as a (notify_channel, inline_bytes, prefix, inner_prefix, outer_pad)
  select g.notify_channel, g.inline_bytes, p.prefix, k.inner_pad || convert_to(p.prefix, 'UTF8'), k.outer_pad
    from settings g, announcement_keys k, concat(E'F1\t', k.key_id, E'\t') p(prefix)
   order by k.key_id desc limit 1
  on conflict (only_row) do update
    set notify_channel = excluded.notify_channel, inline_bytes = excluded.inline_bytes, prefix = excluded.prefix,
        inner_prefix = excluded.inner_prefix, outer_pad = excluded.outer_pad;
  -- Without a key nothing can be announced, and publishing fails.
  delete from announcing where not exists (select from settings) or not exists (select from announcement_keys);
  return null;
end $$;
-- +goose StatementEnd
create trigger announcing after insert or update or delete on settings for each statement execute function _follow_settings();
create trigger announcing after insert or update or delete on announcement_keys for each statement execute function _follow_settings();
update settings set notify_channel = notify_channel; -- the first row

-- Of what ephemeral frames use a stream, updated notes at most one in this time,
-- so that they write nothing but rarely; a stream that has carried one is kept for
-- so much longer.
-- +goose StatementBegin
create function _use_interval() returns interval language sql immutable as $$ select interval '1 minute' $$;
-- +goose StatementEnd

-- This server's origin, 62 bits: it differs between a server and one that was
-- restored or promoted from it, so that a sequence given twice is not the same
-- position. Origins have bit 62 clear and own epochs have it set, so a combined
-- epoch is never 0.
-- +goose StatementBegin
create function _server_origin() returns bigint language plpgsql stable as $$
declare
  v_timeline text := case when pg_is_in_recovery() then 'recovery' else substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) end;
  v_origin   bigint;
begin
  select a.origin into v_origin from announcing a where a.started = pg_postmaster_start_time() and a.timeline = v_timeline;
  if not found then
    select ('x' || encode(substr(sha256(convert_to(
              c.system_identifier || ' ' || v_timeline || ' ' || extract(epoch from pg_postmaster_start_time()), 'UTF8')),
              1, 8), 'hex'))::bit(64)::bigint & 4611686018427387903
      into strict v_origin
      from pg_control_system() c;
  end if;
  return v_origin;
end $$;
-- +goose StatementEnd

-- The same for callers from outside.
-- +goose StatementBegin
create function _origin() returns bigint language plpgsql stable security definer set search_path from current as $$
begin
  return _server_origin();
end $$;
-- +goose StatementEnd

-- Stores the origin for _server_origin, and returns it. Fanfare calls it whenever
-- it has connected to a server; without it that is slower, not wrong.
-- +goose StatementBegin
create function _remember_origin() returns bigint language plpgsql volatile security definer set search_path from current as $$
declare
  v_timeline text := substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);
  v_origin   bigint := _server_origin();
begin
  if exists (select from announcing a where a.origin = v_origin and a.started = pg_postmaster_start_time() and a.timeline = v_timeline) then
    return v_origin;
  end if;
  perform _pin_settings(800); -- another replica may be doing the same
  update announcing set started = pg_postmaster_start_time(), timeline = v_timeline, origin = v_origin;
  return v_origin;
end $$;
-- +goose StatementEnd

-- The key of the advisory lock under which a stream's row is created. Every
-- creator takes it first: an INSERT … ON CONFLICT alone would wait for an
-- uncommitted one. Without a SET clause, so that it is inlined.
-- +goose StatementBegin
create function _creation_lock(p_channel text, p_scope text) returns bigint
language sql stable as $$
  select hashtextextended(current_schema() || E'\n' || p_channel || E'\n' || p_scope, 1)
$$;
-- +goose StatementEnd

-- Sends entries to the replicas, in order, in few notifications; one that is too
-- long for a notification, in parts. The digest and the number of each envelope let
-- a receiver tell it from forgeries and replays; the number also keeps PostgreSQL
-- from folding equal payloads of a transaction into one. Returns how many it sent.
-- +goose StatementBegin
create function _announce(p_entries text[], p_origin bigint) returns int
language plpgsql volatile as $$
declare
  v_channel text;
  v_prefix  text;
  v_inner   bytea;
  v_outer   bytea;
  v_index   bigint;
  v_head    text; -- of each envelope, after the digest
  v_room    int;  -- for entries, of which each takes a byte more than its length
  v_longest int;
  v_sent    int := 0;
  v_from    int := 1;
  v_ignored text;
begin
  if p_entries is null then return 0; end if;
  select a.notify_channel, a.prefix, a.inner_prefix, a.outer_pad, (select max(octet_length(e.entry)) + 1 from unnest(p_entries) e(entry))
    into strict v_channel, v_prefix, v_inner, v_outer, v_longest from announcing a;
  v_index := coalesce(nullif(current_setting('fanfare.envelopes', true), ''), '0')::bigint;
  v_head := concat_ws(E'\t', p_origin, pg_backend_pid(), pg_current_xact_id(), '');
  -- 65: digest and tab.
  v_room := 7999 - 65 - octet_length(v_prefix) - octet_length(v_head) - length((v_index + cardinality(p_entries))::text);
  if v_longest > v_room then
    for i in 1 .. cardinality(p_entries) loop
      if octet_length(p_entries[i]) >= v_room then
        v_sent := v_sent + _announce(nullif(p_entries[v_from:i - 1], '{}'), p_origin);
        v_index := coalesce(nullif(current_setting('fanfare.envelopes', true), ''), '0')::bigint;
        v_sent := v_sent + _announce_parts(p_entries[i], p_origin, v_index + 1);
        v_from := i + 1;
      end if;
    end loop;
    return v_sent + _announce(nullif(p_entries[v_from:], '{}'), p_origin);
  end if;
  -- Those that begin within so many bytes of the whole share an envelope: then it has
  -- room for its last one, whichever that is.
  v_room := v_room - v_longest + 1;
  select count(pg_notify(v_channel,
           v_prefix || encode(sha256(v_outer || sha256(v_inner || convert_to(n.body, 'UTF8'))), 'hex') || E'\t' || n.body))
    into v_sent
    from (select concat(v_head, v_index + row_number() over (order by e.envelope), E'\n', string_agg(e.entry, E'\n' order by e.ord)) as body
            from (select u.entry, u.ord, (sum(octet_length(u.entry) + 1) over (order by u.ord rows unbounded preceding) - octet_length(u.entry) - 1) / v_room as envelope
                    from unnest(p_entries) with ordinality u(entry, ord)) e
           group by e.envelope
           order by e.envelope
          offset 0) n; -- a fence, or the body would be made twice
  v_ignored := set_config('fanfare.envelopes', (v_index + v_sent)::text, true);
  return v_sent;
end $$;
-- +goose StatementEnd

-- Sends the parts of an entry, each in an envelope of its own, of which the first
-- has the given number. They are cut at 7,500 bytes or before the character that
-- would be cut: every part is text, as a notification must be. Returns how many it
-- sent.
-- +goose StatementBegin
create function _announce_parts(p_entry text, p_origin bigint, p_index bigint) returns int
language plpgsql volatile as $$
declare
  -- Bytes, of which a slice is found at once; characters would be counted from the
  -- beginning for each.
  v_entry   bytea := convert_to(p_entry, 'UTF8');
  v_length  int := octet_length(v_entry);
  v_from    int := 0;
  v_to      int;
  v_parts   text[] := '{}';
  v_ignored text;
begin
  while v_from < v_length loop
    v_to := least(v_from + 7500, v_length);
    while v_to < v_length and get_byte(v_entry, v_to) & 192 = 128 loop -- within a character
      v_to := v_to - 1;
    end loop;
    v_parts := v_parts || convert_from(substr(v_entry, v_from + 1, v_to - v_from), 'UTF8');
    v_from := v_to;
  end loop;
  v_ignored := set_config('fanfare.envelopes', (p_index - 1)::text, true);
  for i in 1 .. cardinality(v_parts) loop
    perform _announce(array[E'S\t' || p_index || E'\t' || i || E'\t' || cardinality(v_parts) || E'\t' || v_parts[i]], p_origin);
  end loop;
  return cardinality(v_parts);
end $$;
-- +goose StatementEnd

-- The entry of an announcement for a frame: whole if it fits, otherwise null, and
-- _pointer stands for it. p_micros is its time. Without a SET clause, so that it is
-- inlined.
-- +goose StatementBegin
create function _entry(p_channel text, p_scope text, p_epoch bigint, p_sequence bigint, p_micros bigint,
  p_content_type text, p_event_type text, p_headers text, p_payload bytea, p_inline_bytes int) returns text language sql stable as $$
  select case
    when octet_length(p_payload) <= p_inline_bytes
     and octet_length(p_payload) * 4 / 3 + octet_length(p_channel) + octet_length(p_scope) + octet_length(p_content_type)
       + octet_length(p_event_type) + coalesce(octet_length(p_headers), 0) <= 7600
    then concat_ws(E'\t', 'D', p_channel, p_scope, p_epoch, p_sequence, p_micros, p_content_type, p_event_type, coalesce(p_headers, ''),
           replace(encode(p_payload, 'base64'), E'\n', '')) end
$$;
-- +goose StatementEnd

-- The entry for a frame that does not fit, or null if it has no row.
-- +goose StatementBegin
create function _pointer(p_channel text, p_scope text, p_epoch bigint, p_stream bigint, p_sequence bigint) returns text
language plpgsql stable as $$
begin
  return (select concat_ws(E'\t', 'P', p_channel, p_scope, p_epoch, p_sequence, f.id)
            from channel_frames f where f.stream_id = p_stream and f.sequence = p_sequence);
end $$;
-- +goose StatementEnd

-- The entry for an ephemeral frame, always whole: it is nowhere else. p_epoch is
-- the stream's own, p_sequence and p_head_origin are the head's, which the frame
-- follows. Without a SET clause, so that it is inlined.
-- +goose StatementBegin
create function _ephemeral_entry(p_channel text, p_scope text, p_epoch bigint, p_sequence bigint, p_head_origin bigint, p_micros bigint,
  p_content_type text, p_event_type text, p_headers text, p_payload bytea) returns text language sql stable as $$
  select concat_ws(E'\t', 'E', p_channel, p_scope, p_epoch, p_sequence, p_head_origin, p_micros, p_content_type, p_event_type, coalesce(p_headers, ''),
           replace(encode(p_payload, 'base64'), E'\n', ''))
$$;
-- +goose StatementEnd

-- The bounds of a channel's streams. Each comes from the closest policy that sets
-- it: that of the channel, then those of its prefixes from the longest on, then
-- the built-in one. retention_age null means any age.
--
-- Of a channel as many prefixes are looked up as policies have lengths, by the
-- primary key: going through all policies for each of many streams would take
-- longer than the rest of a read.
--
-- The body is parsed here, so that it finds its table under any search_path, and
-- has no SET clause, so that it is inlined.
-- +goose StatementBegin
create function _policy(p_channel text) returns table (backlog bigint, retention_age interval, stream_retention interval)
language sql stable begin atomic
  select coalesce((array_agg(p.backlog order by p.prefix, octet_length(p.channel) desc) filter (where p.backlog is not null))[1], 1000),
         nullif((array_agg(p.retention_age order by p.prefix, octet_length(p.channel) desc) filter (where p.retention_age is not null))[1], '0'),
         coalesce((array_agg(p.stream_retention order by p.prefix, octet_length(p.channel) desc) filter (where p.stream_retention is not null))[1], '7 days')
    from (select p_channel as channel, false as prefix
          union all
          select left(p_channel, l.n), true
            from unnest((select array_agg(distinct length(q.channel)) from policies q where q.prefix)) l(n)
           where l.n <= length(p_channel)) c
   join policies p on p.channel = c.channel and p.prefix = c.prefix;
end;
-- +goose StatementEnd

-- Deletes what is beyond the backlog and the grace of a stream whose row the
-- caller has locked, at most 4,096 rows and 128 MiB. The range is bounded from below by the
-- floor, so that dead index entries of earlier trims are not scanned again.
-- +goose StatementBegin
create function _trim(p_channel text, p_scope text) returns bigint
language plpgsql volatile set search_path from current as $$
declare
  s        streams;
  p        record;
  g        settings;
  v_now    timestamptz := clock_timestamp();
  v_limit  bigint; -- at or below it, frames are beyond the backlog
  v_cut    bigint; -- at or below it, frames are deleted
  v_first  bigint;
  v_origin bigint;
  v_bytes  bigint;
begin
  select * into s from streams where channel = p_channel and scope = p_scope for no key update;
  if not found or s.floor >= s.head then return 0; end if;
  select * into strict p from _policy(p_channel);
  select * into strict g from settings;
  v_limit := s.head - p.backlog;
  if s.closed and s.closed_at < v_now - g.grace then
    v_limit := s.head;
  elsif p.retention_age is not null then
    select f.sequence into v_first from channel_frames f
     where f.stream_id = s.stream_id and f.sequence > greatest(s.floor, v_limit) and f.created >= v_now - p.retention_age
     order by f.sequence limit 1;
    v_limit := greatest(v_limit, coalesce(v_first - 1, s.head));
  end if;
  if v_limit <= s.floor then return 0; end if;
  select f.sequence into v_first from channel_frames f
   where f.stream_id = s.stream_id and f.sequence > s.floor and f.sequence <= v_limit and f.created >= v_now - g.grace
   order by f.sequence limit 1;
  v_cut := greatest(coalesce(v_first - 1, v_limit), v_limit - g.grace_rows);
  if s.stored_bytes > g.grace_bytes and v_cut < v_limit then
    select max(w.sequence) into v_first
      from (select f.sequence, sum(f.size) over (order by f.sequence desc) as bytes
              from channel_frames f
             where f.stream_id = s.stream_id and f.sequence > v_cut and f.sequence <= v_limit) w
     where w.bytes > g.grace_bytes;
    v_cut := greatest(v_cut, v_first);
  end if;
  v_cut := least(v_cut, s.floor + 4096);
  if s.stored_bytes > g.grace_bytes then
    -- Large payloads have many pieces to delete, while the row is locked.
    select min(w.sequence) into v_first
      from (select f.sequence, sum(f.size) over (order by f.sequence) as bytes
              from channel_frames f
             where f.stream_id = s.stream_id and f.sequence > s.floor and f.sequence <= v_cut) w
     where w.bytes >= 134217728;
    v_cut := least(v_cut, v_first);
  end if;
  if v_cut <= s.floor then return 0; end if;
  select f.origin into v_origin from channel_frames f where f.stream_id = s.stream_id and f.sequence = v_cut;
  with gone as (
    delete from channel_frames f
     where f.stream_id = s.stream_id and f.sequence > s.floor and f.sequence <= v_cut
    returning f.size)
  select coalesce(sum(size), 0) into v_bytes from gone;
  update streams set floor = v_cut, floor_origin = coalesce(v_origin, s.floor_origin), stored_bytes = stored_bytes - v_bytes
   where channel = p_channel and scope = p_scope;
  return v_cut - s.floor;
end $$;
-- +goose StatementEnd

-- Pins what the transaction needs to its end, also for its commit, which waits
-- for PostgreSQL's lock of notifying transactions. A lost flush would give the
-- same sequences to other frames. A SET clause of a function would be undone
-- before the commit.
-- +goose StatementBegin
create function _pin_settings(p_lock_timeout_ms int) returns void
language plpgsql volatile as $$
declare
  v_ignored text;
begin
  if current_setting('synchronous_commit') not in ('on', 'remote_apply') then
    v_ignored := set_config('synchronous_commit', 'on', true);
  end if;
  if p_lock_timeout_ms is not null then
    v_ignored := set_config('lock_timeout', p_lock_timeout_ms::text, true);
  end if;
end $$;
-- +goose StatementEnd

-- Locks a stream's row, creating it if need be, and waits for whoever holds it.
-- place is where the row is as long as this transaction does not change it: an
-- update that finds it there need not look for it again, among all versions of it
-- that an old transaction of the database keeps.
-- +goose StatementBegin
create function _lock_stream(p_channel text, p_scope text, p_origin bigint, out r streams, out place tid)
language plpgsql volatile as $$
declare
  v record;
begin
  loop
    select t as r, t.ctid as place into v from streams t where t.channel = p_channel and t.scope = p_scope for no key update;
    exit when found;
    perform pg_advisory_xact_lock(_creation_lock(p_channel, p_scope));
    insert into streams as t (channel, scope, stream_id, epoch, head_origin, floor_origin, created, updated)
    select p_channel, p_scope, _random(), _random() | 4611686018427387904, p_origin, p_origin, clock_timestamp(), clock_timestamp()
     where not exists (select from streams t where t.channel = p_channel and t.scope = p_scope)
    on conflict do nothing -- a creation that this REPEATABLE READ snapshot does not see: 40001 rather than 23505
    returning t as r, t.ctid as place into v;
    exit when found;
  end loop;
  r := v.r;
  place := v.place;
end $$;
-- +goose StatementEnd

-- Raises XX000: an update of a locked stream found no row at its place. A frame
-- above a head that stayed behind would be one that nobody is sent.
-- +goose StatementBegin
create function _raise_missed() returns void
language plpgsql volatile as $$
begin
  raise exception using errcode = 'XX000', message = 'fanfare: a stream''s row is not where it was locked';
end $$;
-- +goose StatementEnd

-- Waits until nobody else holds a stream or is creating it, and holds it or keeps
-- others from creating it. It comes before a transaction has locked anything.
-- +goose StatementBegin
create function _await_stream(p_channel text, p_scope text, p_lock_timeout_ms int) returns void
language plpgsql volatile security definer set search_path from current as $$
begin
  perform _pin_settings(p_lock_timeout_ms);
  perform from streams t where t.channel = p_channel and t.scope = p_scope for no key update;
  if not found then
    perform pg_advisory_xact_lock(_creation_lock(p_channel, p_scope));
  end if;
end $$;
-- +goose StatementEnd

-- The indexes, from 1, of the named streams that others hold or are creating,
-- without waiting. FOR SHARE, so that two who ask at once do not see each other.
-- +goose StatementBegin
create function _held_streams(p_channel text[], p_scope text[]) returns int[]
language plpgsql volatile security definer set search_path from current as $$
declare
  v_held int[] := '{}';
begin
  for i in 1 .. cardinality(p_channel) loop
    perform from streams t where t.channel = p_channel[i] and t.scope = p_scope[i] for share skip locked;
    continue when found;
    if exists (select from streams t where t.channel = p_channel[i] and t.scope = p_scope[i])
       or not pg_try_advisory_xact_lock_shared(_creation_lock(p_channel[i], p_scope[i])) then
      v_held := v_held || i;
    end if;
  end loop;
  return v_held;
end $$;
-- +goose StatementEnd

-- Creates those of the named streams that do not exist and that nobody else is
-- creating, without waiting. The rows are locked by being new. places are where
-- they are, as for _lock_stream.
-- +goose StatementBegin
create function _create_streams(p_channel text[], p_scope text[], p_origin bigint, out made streams[], out places tid[])
language plpgsql volatile as $$
declare
  v_channel text[];
  v_scope   text[];
  v_now     timestamptz := clock_timestamp();
begin
  with missing as materialized (
    select distinct n.channel, n.scope from unnest(p_channel, p_scope) n(channel, scope)
     where not exists (select from streams t where t.channel = n.channel and t.scope = n.scope))
  select array_agg(m.channel), array_agg(m.scope) into v_channel, v_scope
    from missing m
   where pg_try_advisory_xact_lock(_creation_lock(m.channel, m.scope));
  if v_channel is null then return; end if;
  with n as (
    insert into streams (channel, scope, stream_id, epoch, head_origin, floor_origin, created, updated)
    select m.channel, m.scope, _random(), _random() | 4611686018427387904, p_origin, p_origin, v_now, v_now
      from unnest(v_channel, v_scope) m(channel, scope)
     -- Committed between the two statements: then it counts as busy, this time.
     where not exists (select from streams t where t.channel = m.channel and t.scope = m.scope)
    returning streams as r, streams.ctid as place)
  select array_agg(n.r), array_agg(n.place) into made, places from n;
end $$;
-- +goose StatementEnd

-- The short way for one frame without key and expectation, which is what most
-- applications publish, and lanes, and who publishes ephemeral frames. status is null
-- if it takes the long way.
-- +goose StatementBegin
create function _publish_one(p_channel text, p_scope text, p_payload bytea, p_content_type text, p_event_type text, p_headers text,
  p_ephemeral boolean, p_mode text, p_origin bigint, out status smallint, out epoch bigint, out sequence bigint)
language plpgsql volatile as $$
declare
  -- The stream's row. Variables of their own cost less than a composite one.
  v_place       tid; -- as _lock_stream says
  v_stream      bigint;
  v_epoch       bigint;
  v_head        bigint;
  v_head_origin bigint;
  v_closed      boolean;
  v_ephemeral   boolean;
  v_bytes       bigint;
  v_updated     timestamptz;

  v_now     timestamptz;
  v_inline  int;
  v_entry   text;
  v_sent    int;
begin
  loop
    if p_mode = 'batch' then
      select t.ctid, t.stream_id, t.epoch, t.head, t.head_origin, t.closed, t.ephemeral, t.stored_bytes, t.updated, (select a.inline_bytes from announcing a)
        into v_place, v_stream, v_epoch, v_head, v_head_origin, v_closed, v_ephemeral, v_bytes, v_updated, v_inline
        from streams t where t.channel = p_channel and t.scope = p_scope for no key update skip locked;
      exit when found;
      if (_create_streams(array[p_channel], array[p_scope], p_origin)).made is null then
        status := 5;
        return;
      end if;
    else
      select t.ctid, t.stream_id, t.epoch, t.head, t.head_origin, t.closed, t.ephemeral, t.stored_bytes, t.updated, (select a.inline_bytes from announcing a)
        into v_place, v_stream, v_epoch, v_head, v_head_origin, v_closed, v_ephemeral, v_bytes, v_updated, v_inline
        from streams t where t.channel = p_channel and t.scope = p_scope for no key update;
      exit when found;
      perform _lock_stream(p_channel, p_scope, p_origin);
    end if;
  end loop;
  if v_closed or v_head = 9223372036854775807 then return; end if;
  v_now := clock_timestamp();
  if p_ephemeral then
    status := 6;
    epoch := v_epoch # v_head_origin;
    sequence := v_head;
    if not v_ephemeral or v_updated < v_now - _use_interval() then
      update streams t set ephemeral = true, updated = v_now where t.ctid = v_place;
      if not found then perform _raise_missed(); end if;
    end if;
    v_entry := _ephemeral_entry(p_channel, p_scope, v_epoch, v_head, v_head_origin, (extract(epoch from v_now) * 1000000)::bigint,
      p_content_type, p_event_type, p_headers, p_payload);
  else
    status := 0;
    epoch := v_epoch # p_origin;
    sequence := v_head + 1;
    insert into channel_frames (stream_id, sequence, id, payload, size, content_type, event_type, headers, origin, created)
    values (v_stream, _publish_one.sequence, gen_random_uuid(), p_payload, octet_length(p_payload), p_content_type, p_event_type, p_headers::jsonb, p_origin, v_now);
    update streams t
       set head = _publish_one.sequence, head_origin = p_origin, stored_bytes = v_bytes + octet_length(p_payload), updated = v_now
     where t.ctid = v_place;
    if not found then perform _raise_missed(); end if;
    if v_head >> 6 <> sequence >> 6 then
      perform _trim(p_channel, p_scope);
    end if;
    v_entry := coalesce(_entry(p_channel, p_scope, v_epoch, sequence, (extract(epoch from v_now) * 1000000)::bigint,
        p_content_type, p_event_type, p_headers, p_payload, v_inline),
      _pointer(p_channel, p_scope, v_epoch, v_stream, sequence));
  end if;
  v_sent := _announce(array[v_entry], p_origin);
end $$;
-- +goose StatementEnd

-- Publishes frames. The caller has checked the limits. p_key, p_expected,
-- p_expected_epoch and p_ephemeral may be null as a whole. Ephemeral frames have
-- neither a key nor an expectation; they create and reopen a stream and take
-- their place in its order as durable ones do, but are announced only, and the head
-- stays where it is.
--
-- p_mode 'batch' never waits for a lock that an application may hold: items of
-- streams it cannot have at once come back with status 5. 'lane' waits.
-- 'atomic' waits, and raises if an item is refused (FN001 to FN004), with the
-- item's index in the detail.
--
-- random_page_cost: of streams, rows are found by name alone. A plan that was made
-- while they were few, and reads them all, would be used until they are analysed.
--
-- status: 0 stored, 1 duplicate, 2 key used for another content, 3 expectation
-- failed, 4 sequence exhausted, 5 busy, 6 ephemeral and announced or, if the rest
-- of an atomic batch are duplicates, announced before. epoch (combined) and
-- sequence are the frame's for 0, of the frame published first for 1 and 2, the
-- head's for 3 and 6.
-- +goose StatementBegin
create function _publish(
  p_channel text[], p_scope text[], p_payload bytea[], p_content_type text[], p_event_type text[], p_headers text[],
  p_key text[], p_expected bigint[], p_expected_epoch bigint[], p_ephemeral boolean[], p_mode text, p_lock_timeout_ms int,
  out status smallint[], out epoch bigint[], out sequence bigint[])
language plpgsql volatile security definer set search_path from current set random_page_cost = 0 as $$
declare
  c_max     constant bigint := 9223372036854775807;
  v_n       int := cardinality(p_channel);
  v_now     timestamptz;
  v_origin  bigint := _server_origin();
  rows      streams[];  -- the rows that this transaction has locked; a change is made here first
  places    tid[];      -- where they are, as _lock_stream says
  v_retired streams[];  -- those that it reopens, as they were
  v_special boolean;    -- a row of rows is closed or near the last sequence
  v_repeat  boolean := false; -- an atomic batch that was published before
  v_channel text;
  v_scope   text;
  i_row     int[];      -- by item: index in rows, null if the stream is busy
  v_key     idempotency_keys;
  v_digest  bytea;
  r         int;
  v_head    bigint;
  v_epoch   bigint;
  v_due     streams[];  -- those to trim
  v_all     boolean;    -- every stream with a new durable frame has its new head
  v_micros  bigint;
  one       record;
  v_ignored text;
begin
  v_ignored := _pin_settings(p_lock_timeout_ms); -- assigned and not performed: PERFORM starts an executor

  -- A stream's row lock is held to the commit: that is what makes sequence order
  -- equal commit order. Statements after it see what its last holder committed,
  -- because each takes a new snapshot (READ COMMITTED, VOLATILE).
  if p_mode = 'batch' then
    -- One batch at a time in the schema: replicas would skip each other's streams.
    v_ignored := pg_advisory_xact_lock(hashtextextended(current_schema(), 0));
  end if;
  if v_n = 1 and (p_key is null or p_key[1] is null) and (p_expected is null or p_expected[1] is null) then
    one := _publish_one(p_channel[1], p_scope[1], p_payload[1], p_content_type[1], p_event_type[1], p_headers[1],
      coalesce(p_ephemeral[1], false), p_mode, v_origin);
    if one.status is not null then
      status := array[one.status];
      epoch := array[one.epoch];
      sequence := array[one.sequence];
      return;
    end if;
  end if;
  if p_mode = 'batch' then
    select array_agg(l.r), array_agg(l.place) into rows, places
      from (select t as r, t.ctid as place
              from (select distinct u.channel, u.scope from unnest(p_channel, p_scope) u(channel, scope)) n
              join streams t on t.channel = n.channel and t.scope = n.scope
             order by t.channel, t.scope
               for no key update of t skip locked) l;
  else
    for v_channel, v_scope in
      select distinct u.channel collate "C", u.scope collate "C" from unnest(p_channel, p_scope) u(channel, scope) order by 1, 2
    loop
      one := _lock_stream(v_channel, v_scope, v_origin);
      rows := rows || one.r;
      places := places || one.place;
    end loop;
  end if;
  for v_attempt in 1 .. 2 loop
    select array_agg(t.ordinality::int order by u.ord), bool_or(t.closed or t.head > c_max - v_n)
      into i_row, v_special
      from unnest(p_channel, p_scope) with ordinality u(channel, scope, ord)
      left join unnest(rows) with ordinality t on t.channel = u.channel and t.scope = u.scope;
    exit when p_mode <> 'batch' or v_attempt = 2 or array_position(i_row, null) is null;
    one := _create_streams(p_channel, p_scope, v_origin);
    rows := rows || one.made;
    places := places || one.places;
  end loop;
  v_now := clock_timestamp(); -- under the locks: ascends with the sequence unless the clock steps

  if v_special or array_remove(p_key, null) <> '{}' or array_remove(p_expected, null) <> '{}' then
    -- Decided one by one, in order of arrival.
    status := array_fill(5::smallint, array[v_n]);
    epoch := array_fill(null::bigint, array[v_n]);
    sequence := epoch;
    for i in 1 .. v_n loop
      r := i_row[i];
      continue when r is null;
      if p_ephemeral[i] then
        if rows[r].closed then
          v_retired := v_retired || rows[r];
          rows[r] := _reopened(rows[r], v_origin);
        end if;
        rows[r].ephemeral := true;
        status[i] := 6;
        epoch[i] := rows[r].epoch # rows[r].head_origin;
        sequence[i] := rows[r].head;
        continue;
      end if;
      -- Before the rest: a retry gets its old answer, also of a closed stream.
      if p_key[i] is not null then
        v_digest := sha256(sha256(p_payload[i]) || convert_to(
          p_content_type[i] || E'\n' || p_event_type[i] || E'\n' || coalesce(p_headers[i]::jsonb::text, ''), 'UTF8'));
        select * into v_key from idempotency_keys k where k.channel = p_channel[i] and k.scope = p_scope[i] and k.key = p_key[i];
        if found then
          status[i] := case when v_key.digest = v_digest then 1 else 2 end;
          epoch[i] := v_key.epoch;
          sequence[i] := v_key.sequence;
          continue;
        end if;
      end if;
      if rows[r].closed or (rows[r].head = 0 and not rows[r].ephemeral) then
        v_head := 0;
        v_epoch := 0;
      else
        v_head := rows[r].head;
        v_epoch := rows[r].epoch # rows[r].head_origin;
      end if;
      if p_expected[i] is not null and (p_expected[i] <> v_head or p_expected_epoch[i] <> v_epoch) then
        status[i] := 3;
        epoch[i] := v_epoch;
        sequence[i] := v_head;
        continue;
      end if;
      if v_head = c_max then
        status[i] := 4;
        continue;
      end if;
      if rows[r].closed then
        v_retired := v_retired || rows[r];
        rows[r] := _reopened(rows[r], v_origin);
      end if;
      rows[r].head := v_head + 1;
      rows[r].head_origin := v_origin;
      status[i] := 0;
      epoch[i] := rows[r].epoch # v_origin;
      sequence[i] := v_head + 1;
      if p_key[i] is not null then
        insert into idempotency_keys values (p_channel[i], p_scope[i], p_key[i], v_digest, epoch[i], sequence[i], v_now);
      end if;
    end loop;
    if p_mode = 'atomic' then
      perform _raise_refused(status, epoch, sequence);
      v_repeat := 1 = any (status);
    end if;
    -- Streams created for items that were all refused do not exist.
    delete from streams t
     using unnest(rows) n
     where n.head = 0 and (not n.ephemeral or v_repeat) and not t.ephemeral and not t.closed and t.channel = n.channel and t.scope = n.scope;
    if v_repeat or not status && '{0,6}' then return; end if;
    if v_retired is not null then
      insert into retired_streams (stream_id, channel, scope, epoch, head, head_origin, floor, floor_origin, created, retired)
      select t.stream_id, t.channel, t.scope, t.epoch, t.head, t.head_origin, t.floor, t.floor_origin, t.created, v_now
        from unnest(v_retired) t;
    end if;
  else
    -- n: the durable ones up to the item.
    select array_agg(case when q.r is null then 5::smallint when q.ephemeral then 6::smallint else 0::smallint end order by q.ord),
           array_agg(q.epoch # case when q.n = 0 then q.head_origin else v_origin end order by q.ord), array_agg(q.head + q.n order by q.ord)
      into status, epoch, sequence
      from (select u.ord, u.r, u.ephemeral, t.epoch, t.head, t.head_origin,
                   count(*) filter (where u.ephemeral is not true) over (partition by u.r order by u.ord rows unbounded preceding) as n
              from unnest(i_row, p_ephemeral) with ordinality u(r, ephemeral, ord)
              left join unnest(rows) with ordinality t on t.ordinality = u.r) q;
    if not status && '{0,6}' then return; end if;
  end if;
  insert into channel_frames (stream_id, sequence, id, payload, size, content_type, event_type, headers, origin, created)
  select t.stream_id, u.sequence, gen_random_uuid(), u.payload, octet_length(u.payload), u.content_type, u.event_type, u.headers::jsonb, v_origin, v_now
    from unnest(status, i_row, _publish.sequence, p_payload, p_content_type, p_event_type, p_headers)
         u(status, r, sequence, payload, content_type, event_type, headers)
    join unnest(rows) with ordinality t on t.ordinality = u.r
   where u.status = 0;

  with changed as (
    update streams t
       set head = coalesce(g.head, n.head), head_origin = case when g.head is null then n.head_origin else v_origin end,
           stored_bytes = n.stored_bytes + coalesce(g.bytes, 0), updated = v_now, ephemeral = n.ephemeral or g.ephemeral, stream_id = n.stream_id,
           epoch = n.epoch, previous_epoch = n.previous_epoch, floor = n.floor, floor_origin = n.floor_origin, closed = false, closed_at = null
      from (select u.r, min(u.sequence) filter (where u.status = 0) - 1 as before, max(u.sequence) filter (where u.status = 0) as head,
                   sum(octet_length(u.payload)) filter (where u.status = 0) as bytes, bool_or(u.status = 6) as ephemeral
              from unnest(status, i_row, _publish.sequence, p_payload) u(status, r, sequence, payload)
             where u.status in (0, 6)
             group by u.r) g
      join unnest(rows) with ordinality n on n.ordinality = g.r
     where t.ctid = places[g.r] and (g.head is not null or t.closed or not t.ephemeral or t.updated < v_now - _use_interval())
    returning t as r, g.before)
  -- Every 64 frames of a stream: a trim at every publish would scan the dead
  -- index entries of the last ones again and again.
  select array_agg(c.r) filter (where c.before >> 6 <> (c.r).head >> 6),
         count(c.before) = (select count(distinct u.r) from unnest(status, i_row) u(status, r) where u.status = 0)
    into v_due, v_all
    from changed c;
  if not v_all then perform _raise_missed(); end if;
  if v_due is not null then
    perform _trim(d.channel, d.scope) from unnest(v_due) d cross join lateral _policy(d.channel) p
      where d.head - p.backlog > d.floor;
  end if;

  v_micros := (extract(epoch from v_now) * 1000000)::bigint;
  perform _announce(array_agg(
                      case e.status
                        when 0 then coalesce(_entry(e.channel, e.scope, e.epoch # v_origin, e.sequence, v_micros,
                                                    e.content_type, e.event_type, e.headers, e.payload, a.inline_bytes),
                                             _pointer(e.channel, e.scope, e.epoch # v_origin, (rows[e.r]).stream_id, e.sequence))
                        else _ephemeral_entry(e.channel, e.scope, (rows[e.r]).epoch, e.sequence, (rows[e.r]).epoch # e.epoch, v_micros,
                                              e.content_type, e.event_type, e.headers, e.payload) end order by e.ord), v_origin)
     from unnest(status, i_row, _publish.epoch, _publish.sequence, p_channel, p_scope, p_payload, p_content_type, p_event_type, p_headers)
          with ordinality e(status, r, epoch, sequence, channel, scope, payload, content_type, event_type, headers, ord)
    cross join announcing a
    where e.status in (0, 6);
end $$;
-- +goose StatementEnd

-- Raises 40001, for _begin_batch.
-- +goose StatementBegin
create function _raise_isolation() returns text language plpgsql volatile as $$
begin
  raise exception using errcode = '40001', message = 'fanfare: a batch needs an isolation level of READ COMMITTED';
end $$;
-- +goose StatementEnd

-- Pins what a batch of the service needs to its end, and waits for the batches of
-- other replicas, which would skip each other's streams. It is an expression for the
-- cost of a statement. 40001: the caller has relied on the role's isolation level
-- where that is not READ COMMITTED.
-- +goose StatementBegin
create function _begin_batch(p_lock_timeout_ms int) returns text language sql volatile as $$
  select case when current_setting('transaction_isolation') = 'read committed' then '' else _raise_isolation() end
      || case when current_setting('synchronous_commit') in ('on', 'remote_apply') then '' else set_config('synchronous_commit', 'on', true) end
      || set_config('lock_timeout', p_lock_timeout_ms::text, true)
      || pg_advisory_xact_lock(hashtextextended(current_schema(), 0))::text
$$;
-- +goose StatementEnd

-- Publishes a durable frame that has neither key nor expectation, in a transaction of
-- its own, with what _publish guarantees in mode 'batch', of which it is the short way:
-- {status, epoch, sequence} as there. p_id is a random id for its row: making one here
-- would take a tenth of the whole.
--
-- One statement locks, numbers, stores and announces, since starting a statement
-- costs more than what most of it does. It takes the row only as its snapshot sees
-- it: one that another transaction has changed after that, and has unlocked since, is
-- not found at its place. Then, and whenever it is not as simple as that, nothing is
-- done, and the long way looks again.
-- +goose StatementBegin
create function _batch_frame(p_channel text, p_scope text, p_payload bytea, p_content_type text, p_event_type text, p_headers text, p_id uuid, p_lock_timeout_ms int)
returns bigint[]
language plpgsql volatile security definer set search_path from current set random_page_cost = 0 as $$
declare
  v_epoch    bigint;
  v_sequence bigint;
  v_ignored  text;
  r          record;
begin
  v_ignored := _begin_batch(p_lock_timeout_ms);
  with s as (
    update streams t
       set head = t.head + 1, head_origin = a.origin, stored_bytes = t.stored_bytes + octet_length(p_payload), updated = clock_timestamp()
      from announcing a
     where t.ctid = (select l.ctid from streams l where l.channel = p_channel and l.scope = p_scope for no key update skip locked)
       and not t.closed and t.head < 9223372036854775807
       and a.started = pg_postmaster_start_time() and a.timeline = substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
    returning t.stream_id, t.epoch, t.head, t.head_origin as origin, t.updated,
              a.notify_channel, a.prefix, a.inner_prefix, a.outer_pad, a.inline_bytes),
  f as (
    insert into channel_frames (stream_id, sequence, id, payload, size, content_type, event_type, headers, origin, created)
    select s.stream_id, s.head, p_id, p_payload, octet_length(p_payload), p_content_type, p_event_type, p_headers::jsonb, s.origin, s.updated from s)
  select e.epoch, e.head, pg_notify(e.notify_channel,
           e.prefix || encode(sha256(e.outer_pad || sha256(e.inner_prefix || convert_to(e.body, 'UTF8'))), 'hex') || E'\t' || e.body)
    into v_epoch, v_sequence, v_ignored
    from (select s.epoch # s.origin as epoch, s.head, s.notify_channel, s.prefix, s.inner_prefix, s.outer_pad,
                 concat(s.origin, E'\t', pg_backend_pid(), E'\t', pg_current_xact_id(), E'\t1\n',
                   coalesce(_entry(p_channel, p_scope, s.epoch, s.head, (extract(epoch from s.updated) * 1000000)::bigint,
                                   p_content_type, p_event_type, p_headers, p_payload, s.inline_bytes),
                            concat_ws(E'\t', 'P', p_channel, p_scope, s.epoch, s.head, p_id))) as body
            from s offset 0) e;
  if v_epoch is null then
    select * into strict r from _publish(array[p_channel], array[p_scope], array[p_payload], array[p_content_type], array[p_event_type], array[p_headers],
      null, null, null, null, 'batch', p_lock_timeout_ms);
    return array[r.status[1], r.epoch[1], r.sequence[1]];
  end if;
  if v_sequence & 63 = 0 then
    perform _trim(p_channel, p_scope);
  end if;
  return array[0, v_epoch, v_sequence];
end $$;
-- +goose StatementEnd

-- The same for many frames, which come by stream. The first five arrays are by stream,
-- each once: its name, how many of the frames and how many bytes of payload are for
-- it, and a random number of which a new stream is made. The others are by frame:
-- p_stream is the index of its stream, from 1, and p_nth counts those of the stream,
-- from 1.
--
-- By stream, epoch (combined) is that of its frames, and before the sequence that the
-- first of them follows; null if it was not as simple as that, or another holds it.
-- status, others_epoch and others_sequence are what _publish returns for the frames of
-- those streams, null if there are none.
-- +goose StatementBegin
create function _batch_frames(p_stream_channel text[], p_stream_scope text[], p_count int[], p_bytes bigint[], p_seed uuid[],
  p_stream int[], p_nth int[], p_id uuid[], p_channel text[], p_scope text[], p_payload bytea[], p_content_type text[], p_event_type text[], p_headers text[], p_lock_timeout_ms int,
  out epoch bigint[], out before bigint[], out status smallint[], out others_epoch bigint[], out others_sequence bigint[])
language plpgsql volatile security definer set search_path from current set random_page_cost = 0 as $$
declare
  v_origin  bigint := _server_origin();
  v_ord     int[];    -- of the streams that are published to, ascending; these by it:
  v_stream  bigint[]; -- their identities
  v_own     bigint[]; -- and own epochs
  v_due     int[];    -- those to trim
  v_new     int[];    -- those that this transaction may create
  v_now     timestamptz;
  v_micros  bigint;
  r         record;
  v_ignored text;
begin
  v_ignored := _begin_batch(p_lock_timeout_ms);
  -- As in _batch_frame. Later statements have new snapshots, but no more to do with
  -- these rows.
  with s as (
    update streams t
       set head = t.head + g.count, head_origin = v_origin, stored_bytes = t.stored_bytes + g.bytes, updated = clock_timestamp()
      from (select l.ctid as place, u.ord, u.count, u.bytes
              from unnest(p_stream_channel, p_stream_scope, p_count, p_bytes) with ordinality u(channel, scope, count, bytes, ord)
             cross join lateral (select t.ctid from streams t where t.channel = u.channel and t.scope = u.scope for no key update skip locked) l
            offset 0) g
     where t.ctid = g.place and not t.closed and t.head <= 9223372036854775807 - g.count
    returning g.ord::int, t.stream_id, t.epoch, t.head - g.count as before, t.head)
  select array_agg(n.ord), array_agg(n.stream_id), array_agg(n.epoch), array_agg(n.before), array_agg(n.ord) filter (where n.before >> 6 <> n.head >> 6)
    into v_ord, v_stream, v_own, before, v_due
    from (select * from s order by s.ord) n;
  v_now := clock_timestamp(); -- under the locks, as in _publish

  if cardinality(v_ord) is distinct from cardinality(p_stream_channel) then
    select array_agg(u.ord::int) into v_new
      from unnest(p_stream_channel, p_stream_scope) with ordinality u(channel, scope, ord)
     where u.ord <> all (coalesce(v_ord, '{}'))
       and (select true from streams t where t.channel = u.channel and t.scope = u.scope) is null
       and pg_try_advisory_xact_lock(_creation_lock(u.channel, u.scope));
    with n as materialized (
      select u.ord, uuid_hash_extended(p_seed[u.ord], 1) & 4611686018427387903 as stream_id, uuid_hash_extended(p_seed[u.ord], 2) & 4611686018427387903 | 4611686018427387904 as epoch
        from unnest(v_new) u(ord)
       -- Committed between the two statements: then the long way finds it.
       where (select true from streams t where t.channel = p_stream_channel[u.ord] and t.scope = p_stream_scope[u.ord]) is null),
    i as (
      insert into streams (channel, scope, stream_id, epoch, head, head_origin, floor_origin, stored_bytes, created, updated)
      select p_stream_channel[n.ord], p_stream_scope[n.ord], n.stream_id, n.epoch, p_count[n.ord], v_origin, v_origin, p_bytes[n.ord], v_now, v_now from n)
    select array_agg(h.stream_id order by u.ord), array_agg(h.epoch order by u.ord), array_agg(h.before order by u.ord)
      into v_stream, v_own, before
      from generate_series(1, cardinality(p_stream_channel)) u(ord)
      left join (select a.ord, a.stream_id, a.epoch, a.before from unnest(v_ord, v_stream, v_own, before) a(ord, stream_id, epoch, before)
                 union all
                 select n.ord, n.stream_id, n.epoch, 0 from n) h on h.ord = u.ord;
  end if;

  insert into channel_frames (stream_id, sequence, id, payload, size, content_type, event_type, headers, origin, created)
  select v_stream[f.r], before[f.r] + f.nth, f.id, f.payload, octet_length(f.payload), f.content_type, f.event_type, f.headers::jsonb, v_origin, v_now
    from unnest(p_stream, p_nth, p_id, p_payload, p_content_type, p_event_type, p_headers) f(r, nth, id, payload, content_type, event_type, headers)
   where v_stream[f.r] is not null;
  if v_due is not null then
    perform _trim(d.channel, d.scope)
       from unnest(v_due) u(ord), streams d cross join lateral _policy(d.channel) p
      where d.channel = p_stream_channel[u.ord] and d.scope = p_stream_scope[u.ord] and d.head - p.backlog > d.floor;
  end if;
  v_micros := (extract(epoch from v_now) * 1000000)::bigint;
  -- In the order of the arrays, which is that of each stream.
  perform _announce(array_agg(coalesce(
              _entry(f.channel, f.scope, v_own[f.r], before[f.r] + f.nth, v_micros, f.content_type, f.event_type, f.headers, f.payload, a.inline_bytes),
              _pointer(f.channel, f.scope, v_own[f.r], v_stream[f.r], before[f.r] + f.nth))), v_origin)
     from announcing a, unnest(p_stream, p_nth, p_channel, p_scope, p_payload, p_content_type, p_event_type, p_headers)
                          f(r, nth, channel, scope, payload, content_type, event_type, headers)
    where v_stream[f.r] is not null;

  if array_position(v_stream, null) is not null then
    select array_agg(f.channel) as channel, array_agg(f.scope) as scope, array_agg(f.payload) as payload,
           array_agg(f.content_type) as content_type, array_agg(f.event_type) as event_type, array_agg(f.headers) as headers
      into r
      from unnest(p_stream, p_channel, p_scope, p_payload, p_content_type, p_event_type, p_headers) f(r, channel, scope, payload, content_type, event_type, headers)
     where v_stream[f.r] is null;
    select o.status, o.epoch, o.sequence into strict status, others_epoch, others_sequence
      from _publish(r.channel, r.scope, r.payload, r.content_type, r.event_type, r.headers, null, null, null, null, 'batch', p_lock_timeout_ms) o;
  end if;
  select array_agg(u.own # v_origin) into epoch from unnest(v_own) u(own);
end $$;
-- +goose StatementEnd

-- The row that a closed stream gets when it is published to again.
-- +goose StatementBegin
create function _reopened(p_row streams, p_origin bigint) returns streams
language plpgsql volatile as $$
begin
  p_row.stream_id := _random();
  p_row.previous_epoch := p_row.epoch;
  p_row.epoch := _random() | 4611686018427387904;
  p_row.head := 0;
  p_row.head_origin := p_origin;
  p_row.floor := 0;
  p_row.floor_origin := p_origin;
  p_row.stored_bytes := 0;
  p_row.closed := false;
  p_row.closed_at := null;
  return p_row;
end $$;
-- +goose StatementEnd

-- Raises the error of a status, FN001, FN002 or FN004, with the frame's index
-- (from 0) and the position in a JSON detail.
-- +goose StatementBegin
create function _raise_status(p_index int, p_status smallint, p_epoch bigint, p_sequence bigint) returns void
language plpgsql immutable as $$
declare
  v_detail text := json_build_object('index', p_index, 'status', p_status, 'epoch', p_epoch, 'sequence', p_sequence);
begin
  case p_status
    when 2 then raise exception using errcode = 'FN001', detail = v_detail,
      message = format('fanfare: the idempotency key was used for another content, published at %s-%s', p_epoch, p_sequence);
    when 3 then raise exception using errcode = 'FN002', detail = v_detail,
      message = format('fanfare: the stream''s head is %s-%s, not the expected one', p_epoch, p_sequence);
    when 4 then raise exception using errcode = 'FN004', detail = v_detail,
      message = 'fanfare: the stream has no sequence left; close it to start a new numbering';
  end case;
end $$;
-- +goose StatementEnd

-- Raises if an item of an atomic batch was refused, or only some of the durable
-- ones are duplicates.
-- +goose StatementBegin
create function _raise_refused(p_status smallint[], p_epoch bigint[], p_sequence bigint[]) returns void
language plpgsql immutable as $$
begin
  for i in 1 .. cardinality(p_status) loop
    if p_status[i] between 2 and 4 then
      perform _raise_status(i - 1, p_status[i], p_epoch[i], p_sequence[i]);
    end if;
  end loop;
  if 1 = any (p_status) and 0 = any (p_status) then
    raise exception using errcode = 'FN003',
      message = 'fanfare: some frames of the batch were published before and others were not';
  end if;
end $$;
-- +goose StatementEnd

-- Closes a stream. outcome: 0 closed, 1 was closed or does not exist, 3 the
-- head's position has another epoch. epoch (combined) and sequence are the
-- head's, 0 if the stream does not exist.
-- +goose StatementBegin
create function _close(p_channel text, p_scope text, p_expected_epoch bigint, p_lock_timeout_ms int,
  out outcome smallint, out epoch bigint, out sequence bigint)
language plpgsql volatile security definer set search_path from current as $$
declare
  s     streams;
  v_now timestamptz;
begin
  perform _pin_settings(p_lock_timeout_ms);
  select * into s from streams t where t.channel = p_channel and t.scope = p_scope for no key update;
  if not found then
    -- It may be being created by a transaction that has not committed.
    perform pg_advisory_xact_lock(_creation_lock(p_channel, p_scope));
    select * into s from streams t where t.channel = p_channel and t.scope = p_scope for no key update;
  end if;
  if s.stream_id is null then
    outcome := 1;
    epoch := 0;
    sequence := 0;
    return;
  end if;
  epoch := s.epoch # s.head_origin;
  sequence := s.head;
  if p_expected_epoch <> epoch then
    outcome := 3;
  elsif s.closed then
    outcome := 1;
  else
    outcome := 0;
    v_now := clock_timestamp();
    update streams t set closed = true, ever_closed = true, closed_at = v_now, updated = v_now
     where t.channel = p_channel and t.scope = p_scope;
    perform _announce(array[concat_ws(E'\t', 'C', p_channel, p_scope, s.epoch, s.head, s.head_origin)], _server_origin());
  end if;
end $$;
-- +goose StatementEnd

-- Raises 22023 (invalid_parameter_value) for what is outside the limits that
-- the service enforces for calls.
-- +goose StatementBegin
create function _check_text(p_field text, p_value text, p_min int, p_max int) returns void
language plpgsql immutable as $$
begin
  if p_value is null then
    raise exception using errcode = '22023', message = format('fanfare: %s must not be null', p_field);
  elsif octet_length(p_value) < p_min then
    raise exception using errcode = '22023', message = format('fanfare: %s must not be empty', p_field);
  elsif octet_length(p_value) > p_max then
    raise exception using errcode = '22023',
      message = format('fanfare: %s has %s bytes, the limit is %s', p_field, octet_length(p_value), p_max);
  elsif p_value collate "C" ~ E'[\\x01-\\x1f\\x7f-\\u009f]' then
    raise exception using errcode = '22023', message = format('fanfare: %s contains a control character', p_field);
  end if;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
create function _check_frame(p_channel text, p_scope text, p_payload bytea, p_content_type text, p_event_type text, p_headers jsonb,
  p_key text, p_expected bigint, p_expected_epoch bigint) returns void
language plpgsql stable as $$
declare
  v_max   int;
  v_count int;
  v_bytes int;
begin
  perform _check_text('channel', p_channel, 1, 255);
  perform _check_text('scope', p_scope, 0, 255);
  perform _check_text('content_type', p_content_type, 0, 255);
  perform _check_text('event_type', p_event_type, 0, 255);
  if starts_with(p_event_type, 'fanfare.') then
    raise exception using errcode = '22023', message = 'fanfare: event_type must not begin with "fanfare.", which is reserved';
  end if;
  if p_key is not null then
    perform _check_text('idempotency_key', p_key, 1, 255);
  end if;
  if p_expected < 0 then
    raise exception using errcode = '22023', message = 'fanfare: expected_sequence must not be negative';
  end if;
  if p_expected_epoch is not null and (p_expected is null or p_expected_epoch < 0) then
    raise exception using errcode = '22023', message = 'fanfare: expected_epoch goes with expected_sequence and must not be negative';
  end if;
  if p_payload is null then
    raise exception using errcode = '22023', message = 'fanfare: payload must not be null';
  end if;
  select g.max_frame_bytes into strict v_max from settings g;
  if octet_length(p_payload) > v_max then
    raise exception using errcode = '22023',
      message = format('fanfare: payload has %s bytes, the limit is %s', octet_length(p_payload), v_max);
  end if;
  if p_headers is null or p_headers = '{}' then return; end if;
  if jsonb_typeof(p_headers) <> 'object' then
    raise exception using errcode = '22023', message = 'fanfare: headers must be a JSON object of strings';
  end if;
  if exists (select from jsonb_each(p_headers) h where jsonb_typeof(h.value) <> 'string') then
    raise exception using errcode = '22023', message = 'fanfare: headers must be a JSON object of strings';
  end if;
  perform _check_text('headers', h.key, 1, 8192) from jsonb_each(p_headers) h;
  select count(*), sum(octet_length(h.key) + octet_length(h.value)) into v_count, v_bytes from jsonb_each_text(p_headers) h;
  if v_count > 32 then
    raise exception using errcode = '22023', message = format('fanfare: headers has %s entries, the limit is 32', v_count);
  end if;
  if v_bytes > 8192 then
    raise exception using errcode = '22023', message = format('fanfare: headers has %s bytes, the limit is 8192', v_bytes);
  end if;
end $$;
-- +goose StatementEnd

-- Publishes a frame in the caller's transaction: numbered, stored, bounded and
-- announced as by RPC. Call it last: the stream's row stays locked to the end of
-- the transaction.
--
-- Errors: 22023 a field is outside its limit, FN001 the key was used for another
-- content, FN002 the head is not the expected one, FN004 no sequence is left.
-- +goose StatementBegin
create function publish(channel text, scope text, payload bytea, content_type text default '', event_type text default '',
  headers jsonb default null, idempotency_key text default null, expected_sequence bigint default null, expected_epoch bigint default null,
  out epoch bigint, out sequence bigint, out duplicate boolean)
language plpgsql volatile security definer set search_path from current as $$
declare
  r record;
begin
  perform _check_frame(channel, scope, payload, content_type, event_type, headers, idempotency_key, expected_sequence, expected_epoch);
  select * into strict r
    from _publish(array[channel], array[scope], array[payload], array[content_type], array[event_type],
      array[nullif(headers, '{}')::text], array[idempotency_key], array[expected_sequence], array[expected_epoch], null, 'lane', null);
  epoch := r.epoch[1];
  sequence := r.sequence[1];
  duplicate := r.status[1] = 1;
  if r.status[1] > 1 then
    perform _raise_status(0, r.status[1], epoch, sequence);
  end if;
end $$;
-- +goose StatementEnd

-- Publishes an ephemeral frame in the caller's transaction: it is announced when
-- that commits, in the order of the stream's frames, and is neither numbered nor
-- stored. The rest is as for publish. Error: 22023 a field is outside its limit.
-- +goose StatementBegin
create function publish_ephemeral(channel text, scope text, payload bytea, content_type text default '', event_type text default '',
  headers jsonb default null) returns void
language plpgsql volatile security definer set search_path from current as $$
begin
  perform _check_frame(channel, scope, payload, content_type, event_type, headers, null, null, null);
  perform _publish(array[channel], array[scope], array[payload], array[content_type], array[event_type],
    array[nullif(headers, '{}')::text], null, null, null, array[true], 'lane', null);
end $$;
-- +goose StatementEnd

-- Publishes many frames in the caller's transaction, all or nothing. Streams
-- are locked in one order, so that batches cannot deadlock each other. Arrays
-- have one element a frame; those with a default may be null. Errors as for
-- publish, with the frame's index (from 0) in the detail; FN003: some frames
-- were published before under their keys and others were not.
-- +goose StatementBegin
create function publish_batch(channels text[], scopes text[], payloads bytea[], content_types text[] default null, event_types text[] default null,
  headers jsonb[] default null, idempotency_keys text[] default null, expected_sequences bigint[] default null, expected_epochs bigint[] default null)
returns table (epoch bigint, sequence bigint, duplicate boolean)
language plpgsql volatile security definer set search_path from current as $$
declare
  v_n int := coalesce(cardinality(channels), 0);
  v_bytes bigint := 0;
  v_text text[];
  r record;
begin
  if v_n = 0 or v_n > 1000 then
    raise exception using errcode = '22023', message = format('fanfare: channels has %s entries, the limit is 1 to 1000', v_n);
  end if;
  if cardinality(scopes) is distinct from v_n or cardinality(payloads) is distinct from v_n
     or cardinality(content_types) <> v_n or cardinality(event_types) <> v_n or cardinality(headers) <> v_n
     or cardinality(idempotency_keys) <> v_n or cardinality(expected_sequences) <> v_n or cardinality(expected_epochs) <> v_n then
    raise exception using errcode = '22023', message = 'fanfare: the arrays of a batch must have the same length';
  end if;
  content_types := coalesce(content_types, array_fill(''::text, array[v_n]));
  event_types := coalesce(event_types, array_fill(''::text, array[v_n]));
  headers := coalesce(headers, array_fill(null::jsonb, array[v_n]));
  idempotency_keys := coalesce(idempotency_keys, array_fill(null::text, array[v_n]));
  expected_sequences := coalesce(expected_sequences, array_fill(null::bigint, array[v_n]));
  expected_epochs := coalesce(expected_epochs, array_fill(null::bigint, array[v_n]));
  for i in 1 .. v_n loop
    begin
      perform _check_frame(channels[i], scopes[i], payloads[i], content_types[i], event_types[i], headers[i],
        idempotency_keys[i], expected_sequences[i], expected_epochs[i]);
    exception when invalid_parameter_value then
      raise exception using errcode = '22023', message = sqlerrm, detail = format('frame %s of the batch, counted from 0', i - 1);
    end;
    v_bytes := v_bytes + octet_length(payloads[i]);
  end loop;
  if v_bytes > 4194304 then
    raise exception using errcode = '22023', message = format('fanfare: payloads has %s bytes, the limit of a batch is 4194304', v_bytes);
  end if;
  select array_agg(nullif(h.h, '{}')::text order by h.n) into v_text from unnest(headers) with ordinality h(h, n);
  select * into strict r
    from _publish(channels, scopes, payloads, content_types, event_types, v_text,
      idempotency_keys, expected_sequences, expected_epochs, null, 'atomic', null);
  return query
    select u.epoch, u.sequence, u.status = 1
      from unnest(r.epoch, r.sequence, r.status) u(epoch, sequence, status);
end $$;
-- +goose StatementEnd

-- Closes a stream in the caller's transaction. Its subscribers get what was
-- published before, then are told, and end. Returns the last position; 0, 0 if
-- the stream does not exist. FN002: the head's position has another epoch.
-- +goose StatementBegin
create function close_stream(channel text, scope text, expected_epoch bigint default null,
  out epoch bigint, out sequence bigint, out already_closed boolean)
language plpgsql volatile security definer set search_path from current as $$
declare
  r record;
begin
  perform _check_text('channel', channel, 1, 255);
  perform _check_text('scope', scope, 0, 255);
  select * into strict r from _close(channel, scope, expected_epoch, null);
  epoch := r.epoch;
  sequence := r.sequence;
  already_closed := r.outcome = 1;
  if r.outcome = 3 then
    raise exception using errcode = 'FN002', message = format('fanfare: the stream''s head is %s-%s, not of the expected epoch', epoch, sequence);
  end if;
end $$;
-- +goose StatementEnd

-- Sets a policy, in place of what was set for the same channel or prefix; if all
-- is null there is none any more. The caller has checked the limits. Returns
-- whether that changed anything. FN005: there are as many policies as may be.
-- +goose StatementBegin
create function _set_policy(p_channel text, p_prefix boolean, p_backlog bigint, p_retention_age interval, p_stream_retention interval, p_lock_timeout_ms int)
returns boolean
language plpgsql volatile security definer set search_path from current as $$
declare
  c_max constant int := 1000;
begin
  perform _pin_settings(p_lock_timeout_ms);
  -- One at a time: two could each see room for one more.
  perform pg_advisory_xact_lock(hashtextextended(current_schema(), 4));
  if num_nonnulls(p_backlog, p_retention_age, p_stream_retention) = 0 then
    delete from policies p where p.channel = p_channel and p.prefix = p_prefix;
    if not found then return false; end if;
  else
    -- Ages in microseconds alone: a month or a day has no fixed length.
    insert into policies as p (channel, prefix, backlog, retention_age, stream_retention)
    values (p_channel, p_prefix, p_backlog,
            make_interval(secs => extract(epoch from p_retention_age)::double precision),
            make_interval(secs => extract(epoch from p_stream_retention)::double precision))
    on conflict (channel, prefix) do update
      set backlog = excluded.backlog, retention_age = excluded.retention_age, stream_retention = excluded.stream_retention
      where (p.backlog, p.retention_age, p.stream_retention) is distinct from (excluded.backlog, excluded.retention_age, excluded.stream_retention);
    if not found then return false; end if;
    if (select count(*) from policies) > c_max then
      raise exception using errcode = 'FN005',
        message = format('fanfare: the schema has %s policies, the most it may have', c_max);
    end if;
  end if;
  perform _announce(array['H'], _server_origin());
  return true;
end $$;
-- +goose StatementEnd

-- Sets the backlog of the schema's default alone. Returns whether that changed
-- anything.
-- +goose StatementBegin
create function _set_default_backlog(p_backlog bigint, p_lock_timeout_ms int) returns boolean
language plpgsql volatile security definer set search_path from current as $$
declare
  p policies;
begin
  if exists (select from policies q where q.channel = '' and q.prefix and q.backlog = p_backlog) then return false; end if;
  perform _pin_settings(p_lock_timeout_ms);
  perform pg_advisory_xact_lock(hashtextextended(current_schema(), 4)); -- before the rest of the row is read
  select * into p from policies q where q.channel = '' and q.prefix;
  return _set_policy('', true, p_backlog, p.retention_age, p.stream_retention, null);
end $$;
-- +goose StatementEnd

-- Raises 22023 for an age that a policy may not set.
-- +goose StatementBegin
create function _check_age(p_field text, p_age interval) returns void
language plpgsql immutable as $$
begin
  if extract(epoch from p_age) < 0 then
    raise exception using errcode = '22023', message = format('fanfare: %s must not be negative', p_field);
  elsif extract(epoch from p_age) > 876000 * 3600::numeric then
    raise exception using errcode = '22023', message = format('fanfare: %s must be at most 876000 hours, 100 years', p_field);
  end if;
end $$;
-- +goose StatementEnd

-- Sets what new subscriptions may replay of the streams of a channel, or of all
-- channels that begin with it, and how long those streams are kept; in place of
-- what was set for the same before. Null is inherited, and a policy that sets
-- nothing is removed. Errors: 22023 a field is outside its limit, FN005 there are
-- as many policies as may be.
-- +goose StatementBegin
create function set_policy(channel text, prefix boolean default false, backlog bigint default null,
  retention_age interval default null, stream_retention interval default null) returns void
language plpgsql volatile security definer set search_path from current as $$
begin
  if prefix is null then
    raise exception using errcode = '22023', message = 'fanfare: prefix must not be null';
  end if;
  perform _check_text('channel', channel, case when prefix then 0 else 1 end, 255);
  if backlog < 0 then
    raise exception using errcode = '22023', message = 'fanfare: backlog must not be negative';
  end if;
  perform _check_age('retention_age', retention_age);
  perform _check_age('stream_retention', stream_retention);
  if extract(epoch from stream_retention) = 0 then
    raise exception using errcode = '22023', message = 'fanfare: stream_retention must not be 0';
  end if;
  perform _set_policy(channel, prefix, backlog, retention_age, stream_retention, null);
end $$;
-- +goose StatementEnd

-- What a new subscription needs to know. base is the sequence before the oldest
-- frame that it may replay.
create view stream_states as
select s.channel, s.scope, s.stream_id, s.epoch, s.head, s.head_origin, s.floor, s.floor_origin, s.closed, s.ever_closed, s.previous_epoch, s.ephemeral,
       s.stored_bytes, s.created, s.updated, p.backlog, p.retention_age, b.base,
       case when b.base = s.head then s.head_origin
            when b.base = s.floor then s.floor_origin
            else (select f.origin from channel_frames f where f.stream_id = s.stream_id and f.sequence = b.base) end as base_origin
  from streams s
  cross join lateral _policy(s.channel) p
  cross join lateral (
    select case
      when p.retention_age is null then greatest(s.floor, s.head - p.backlog)
      else coalesce((select f.sequence - 1 from channel_frames f
                      where f.stream_id = s.stream_id and f.sequence > greatest(s.floor, s.head - p.backlog)
                        and f.created >= clock_timestamp() - p.retention_age
                      order by f.sequence limit 1), s.head) end as base) b;

-- +goose StatementBegin
do $$
begin
  -- Functions are executable by everyone unless revoked, in the same
  -- transaction that creates them.
  execute format('revoke all on all functions in schema %I from public', current_schema());
  execute format('revoke all on all tables in schema %I from public', current_schema());
end $$;
-- +goose StatementEnd
