-- The shop's tables, and what its role may do. Run by the role that Fanfare's
-- schema belongs to; running it again changes nothing.

create schema if not exists shop;

create table if not exists shop.orders (
  order_id bigint generated always as identity primary key,
  version  int    not null default 1,
  status   text   not null default 'open' check (status in ('open', 'paid', 'cancelled')),
  cents    bigint not null check (cents > 0),
  receipt  text   not null -- of the transaction that changed the order last
);

-- Every change of an order, written by a trigger: what committed, whatever the
-- application says. Subscribers must see the same.
create table if not exists shop.order_log (
  log_id   bigint generated always as identity primary key,
  order_id bigint not null,
  version  int    not null,
  status   text   not null,
  cents    bigint not null,
  receipt  text   not null
);

create or replace function shop.log_order() returns trigger language plpgsql as $$
begin
  insert into shop.order_log (order_id, version, status, cents, receipt)
  values (new.order_id, new.version, new.status, new.cents, new.receipt);
  return null;
end $$;

create or replace trigger log_order after insert or update on shop.orders
  for each row execute function shop.log_order();

-- The application's role. A real one logs in with it; the example, which knows
-- no password, does SET ROLE, for which its user must be a member.
do $$
begin
  if not exists (select from pg_roles where rolname = 'orders_app') then
    create role orders_app nologin;
  end if;
end $$;
grant orders_app to current_user;

grant usage on schema shop to orders_app;
grant select, insert, update on shop.orders to orders_app;
grant select, insert on shop.order_log to orders_app;

-- All that publishing needs. Fanfare's tables stay out of the role's reach.
grant usage on schema fanfare to orders_app;
grant execute on function fanfare.publish to orders_app;
