-- The chat's tables and its role, for a database that fanfare serve has set up. Run as
-- a user who owns Fanfare's schema and may create roles. It may be run again, also by
-- several servers at once.
select pg_advisory_xact_lock(hashtext('chat'));

create schema if not exists chat;

create table if not exists chat.rooms (
  name  text primary key,
  title text not null
);

-- A message and its place in the room's stream, which the transaction that writes the
-- one learns from publishing the other. Whoever reads messages so knows in the same
-- snapshot up to where they reach.
create table if not exists chat.messages (
  -- In the order of the stream: a row gets its id while its transaction holds the stream.
  message_id bigint      generated always as identity primary key,
  room       text        not null references chat.rooms,
  -- The page that wrote it gave it this, so that one sent twice is stored once.
  key        uuid        not null,
  author     text        not null,
  body       text        not null,
  sent       timestamptz not null,
  -- Which server of the application wrote it.
  server     text        not null,
  epoch      bigint      not null,
  sequence   bigint      not null,
  unique (room, key)
);

create index if not exists messages_of_room on chat.messages (room, message_id desc);

insert into chat.rooms (name, title) values
  ('lobby', 'Lobby'), ('garden', 'Garden'), ('kitchen', 'Kitchen'), ('engine-room', 'Engine room')
on conflict do nothing;

do $$ begin
  if not exists (select from pg_roles where rolname = 'chat_app') then
    create role chat_app nologin;
  end if;
end $$;
grant chat_app to current_user;

grant usage on schema chat to chat_app;
grant select on chat.rooms to chat_app;
grant select, insert on chat.messages to chat_app;

-- All that publishing needs. Fanfare's tables stay out of the role's reach.
grant usage on schema fanfare to chat_app;
grant execute on function fanfare.publish, fanfare.publish_ephemeral to chat_app;
