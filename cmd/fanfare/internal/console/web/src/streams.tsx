// The view of all streams.
import { useState, useEffect, useMemo } from 'preact/hooks';
import { tokenWanted } from './api';
import { ago, brief, count, plural, rate } from './format';
import { listing, listingFault, matchesOf, pageOf, type Row } from './listing';
import { Notice } from './parts';
import { usePoll } from './poll';
import { backlogOf, nameOf, sequenceOf } from './protocol';
import { serverNow, unreachable } from './replica';
import { link, replace, route, streamLink } from './route';
import { Overview } from './overview';
import { Sparkline } from './chart';
import { StreamText, Text } from './text';
import { Welcome } from './welcome';

type Order = 'name' | 'rate' | 'subscribers' | 'behind';

export function StreamsView() {
  const words = route.value.query.get('q') ?? '';
  const channel = route.value.query.get('channel') ?? '';
  const [tokens, setTokens] = useState<string[]>([]);
  const [order, setOrder] = useState<Order>('name');
  const pageToken = tokens.at(-1) ?? '';

  useEffect(() => setTokens([]), [words, channel]);
  useEffect(() => {
    listing.value = undefined;
  }, [words, channel, pageToken]);
  const ask = useMemo(
    () => (words === '' ? pageOf(channel, pageToken) : matchesOf(words)),
    [words, channel, pageToken],
  );
  usePoll(ask, [ask], words === '' ? 2000 : 3000);

  const shown = listing.value;
  if (shown && shown.rows.length === 0 && words === '' && channel === '' && pageToken === '') {
    return <Welcome />;
  }
  return (
    <>
      <Overview brief />
      <section class="panel" aria-labelledby="streams-title">
        <div class="panel-head">
          <h2 id="streams-title">Streams</h2>
          <Search words={words} channel={channel} />
        </div>
        {listingFault.value !== '' && unreachable.value === '' && (
          <Notice kind="bad">
            The streams cannot be listed: <Text value={listingFault.value} />
          </Notice>
        )}
        <Said words={words} channel={channel} />
        {shown && shown.rows.length > 0 && <Table rows={sorted(shown.rows, order)} order={order} onOrder={setOrder} />}
        {!shown && listingFault.value === '' && (
          <p class="empty">{tokenWanted.value === '' ? 'Asking for the streams…' : 'Sign in to see the streams.'}</p>
        )}
        {shown && (tokens.length > 0 || shown.next !== '') && (
          <nav class="pages" aria-label="Pages of the list">
            <button type="button" disabled={tokens.length === 0} onClick={() => setTokens(tokens.slice(0, -1))}>
              ← Previous
            </button>
            <span>Page {tokens.length + 1}</span>
            <button type="button" disabled={shown.next === ''} onClick={() => setTokens([...tokens, shown.next])}>
              Next →
            </button>
          </nav>
        )}
      </section>
    </>
  );
}

function Search({ words, channel }: { words: string; channel: string }) {
  const submit = (event: Event) => {
    event.preventDefault();
    const text = String(new FormData(event.currentTarget as HTMLFormElement).get('q') ?? '').trim();
    replace(link('streams', text === '' ? {} : { q: text }));
  };
  return (
    <form class="search" role="search" onSubmit={submit}>
      <label for="search">Find</label>
      <input
        id="search"
        name="q"
        type="search"
        key={words + channel}
        defaultValue={words || channel}
        placeholder="channel or scope"
        spellcheck={false}
      />
      <button type="submit">Find</button>
      {(words !== '' || channel !== '') && (
        <a class="button" href={link('streams')}>
          All
        </a>
      )}
    </form>
  );
}

/** What the list is of, when it is not of everything. */
function Said({ words, channel }: { words: string; channel: string }) {
  const shown = listing.value;
  if (!shown || (words === '' && channel === '')) {
    return null;
  }
  let said;
  if (channel !== '') {
    said = (
      <>
        Streams of the channel <Text value={channel} />.
      </>
    );
  } else if (shown.rows.length === 0) {
    said = (
      <>
        None of {plural(shown.searched, 'stream')} has “<Text value={words} />” in its channel or scope.
      </>
    );
  } else {
    said = (
      <>
        {plural(shown.rows.length, 'stream')} with “<Text value={words} />” in the channel or scope.
      </>
    );
  }
  return (
    <p class="said" role="status">
      {said}
      {shown.more && ` ${count(shown.searched)} names were looked at and there are more: a longer text finds fewer.`}
    </p>
  );
}

function sorted(rows: Row[], order: Order): Row[] {
  const by: Record<Exclude<Order, 'name'>, (r: Row) => number> = {
    rate: (r) => r.counter.rate() ?? 0,
    subscribers: (r) => r.stream.subscribers ?? 0,
    behind: (r) => Number(r.stream.behind ?? 0),
  };
  if (order === 'name') {
    return rows;
  }
  return [...rows].sort((a, b) => by[order](b) - by[order](a));
}

function Heading(props: { order: Order; is: Order; onOrder: (o: Order) => void; children: string; number?: boolean }) {
  const chosen = props.order === props.is;
  return (
    <th
      scope="col"
      class={props.number ? 'number' : ''}
      aria-sort={chosen ? (props.is === 'name' ? 'ascending' : 'descending') : 'none'}
    >
      <button type="button" class="sort" onClick={() => props.onOrder(props.is)}>
        {props.children}
        {chosen && <span aria-hidden="true">{props.is === 'name' ? '▲' : '▼'}</span>}
      </button>
    </th>
  );
}

/** Moves between the rows' links with the arrow keys. */
function walk(event: KeyboardEvent) {
  const step = event.key === 'ArrowDown' ? 1 : event.key === 'ArrowUp' ? -1 : 0;
  if (step === 0 || !(event.target instanceof HTMLAnchorElement)) {
    return;
  }
  const links = [...(event.currentTarget as HTMLElement).querySelectorAll('a')];
  links[links.indexOf(event.target) + step]?.focus();
  event.preventDefault();
}

function Table({ rows, order, onOrder }: { rows: Row[]; order: Order; onOrder: (o: Order) => void }) {
  const now = serverNow();
  return (
    <table class="streams" onKeyDown={walk}>
      <caption class="unseen">Streams; the arrow keys move between their links</caption>
      <thead>
        <tr>
          <Heading order={order} is="name" onOrder={onOrder}>
            Stream
          </Heading>
          <Heading order={order} is="rate" onOrder={onOrder} number>
            Frames/s
          </Heading>
          <th scope="col" class="number">
            Head
          </th>
          <th scope="col" class="number">
            Backlog
          </th>
          <Heading order={order} is="subscribers" onOrder={onOrder} number>
            Subscribers
          </Heading>
          <Heading order={order} is="behind" onOrder={onOrder} number>
            Behind
          </Heading>
          <th scope="col" class="number">
            Changed
          </th>
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <StreamRow key={`${row.stream.channel} ${row.stream.scope}`} row={row} now={now} />
        ))}
      </tbody>
    </table>
  );
}

function StreamRow({ row, now }: { row: Row; now: number }) {
  const { stream, counter } = row;
  const behind = Number(stream.behind ?? 0);
  return (
    <tr>
      <th scope="row">
        <a href={streamLink(nameOf(stream))}>
          <StreamText channel={stream.channel} scope={stream.scope ?? ''} />
        </a>
        {stream.closed && <span class="badge">closed</span>}
      </th>
      <td class="number rate" data-label="Frames/s">
        <Sparkline points={counter.rates()} />
        <span>{rate(counter.rate())}</span>
      </td>
      <td class="number" data-label="Head">
        {count(sequenceOf(stream.head))}
      </td>
      <td class="number" data-label="Backlog">
        {count(backlogOf(stream))}
      </td>
      <td class="number" data-label="Subscribers">
        {count(stream.subscribers ?? 0)}
      </td>
      <td class={`number ${behind > 0 ? 'some' : ''}`} data-label="Behind">
        {brief(behind)}
      </td>
      <td class="number" data-label="Changed">
        {ago(stream.updated, now)}
      </td>
    </tr>
  );
}
