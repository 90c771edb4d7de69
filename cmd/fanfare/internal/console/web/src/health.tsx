// The view of the replica's health, in words.
import { health, serverNow, unreachable } from './replica';
import { bytes, count, date, span } from './format';
import { Fact, Notice } from './parts';
import type { Health } from './protocol';
import { Overview } from './overview';
import { Text } from './text';

type Kind = 'good' | 'warn' | 'bad';

interface Finding {
  kind: Kind;
  what: string;
  /** What it means, and what to do. */
  advice: string;
}

const kinds: Record<string, string> = {
  postgresql: 'a LISTEN connection to PostgreSQL',
  'in-process': 'the process itself: the store is embedded',
  poll: 'polls of the database',
};

export function findings(h: Health): Finding[] {
  const out: Finding[] = [];
  const now = Date.parse(h.now);
  const since = (time: string) => span(now - Date.parse(time));
  const fresh = now - Date.parse(h.started) < 5000;
  if (h.draining) {
    out.push({
      kind: 'warn',
      what: 'The server is draining.',
      advice:
        'It is about to stop. Subscribers resume at another replica after their last position. Nothing is to be done.',
    });
  }
  if (h.store.answering) {
    out.push({ kind: 'good', what: 'The store answers.', advice: `It has for ${since(h.store.since)}.` });
  } else if (fresh) {
    out.push({
      kind: 'warn',
      what: 'The store has not answered yet.',
      advice: 'The server has just started. Wait a moment.',
    });
  } else {
    out.push({
      kind: 'bad',
      what: `The store has not answered for ${since(h.store.since)}.`,
      advice:
        'Nothing can be published or replayed here until it does; publishers are told that nothing was stored. See that ' +
        'the database runs, that this host reaches it and that it allows one more connection. The server’s log has the driver’s words.',
    });
  }
  if (h.channel.listening) {
    out.push({
      kind: 'good',
      what: 'New frames are heard of.',
      advice: `By ${kinds[h.channel.kind] ?? h.channel.kind}, for ${since(h.channel.since)}.`,
    });
  } else {
    out.push({
      kind: fresh ? 'warn' : 'bad',
      what: `New frames have not been heard of for ${since(h.channel.since)}.`,
      advice:
        'Subscriptions that go on wait, and new ones cannot begin here. No durable frame is lost. The connection that listens must ' +
        'reach PostgreSQL itself, not a pooler of transactions. The server tries again by itself; its log says why it fails.',
    });
  }
  if (h.channel.kind === 'poll') {
    out.push({
      kind: 'warn',
      what: 'The server polls.',
      advice:
        'Frames come late by up to the interval of the polls, and ephemeral ones are refused. A direct connection to PostgreSQL lets it listen.',
    });
  }
  if (h.hub.slow_subscribers > 0) {
    out.push({
      kind: 'warn',
      what: `${count(h.hub.slow_subscribers)} slow ${h.hub.slow_subscribers === 1 ? 'subscription was' : 'subscriptions were'} ended since the start.`,
      advice:
        'Ephemeral frames came faster than they took them. They resume by themselves; if this goes on, find the subscribers that read slowly.',
    });
  }
  return out;
}

const symbols: Record<Kind, string> = { good: '✓', warn: '!', bad: '✕' };
const words: Record<Kind, string> = { good: 'well', warn: 'note', bad: 'fault' };

/** What a replica that does not answer is found to be; what it said before is no longer so. */
const silent: Finding[] = [
  {
    kind: 'bad',
    what: 'The server does not answer.',
    advice:
      'Nobody knows how it is. See that its process runs and that this browser reaches it. Its subscribers go on at ' +
      'other replicas after their last positions, if there are some.',
  },
];

export function HealthView() {
  const h = health.value;
  const away = unreachable.value !== '';
  if (!h) {
    return away ? null : <p class="empty">Asking for the health…</p>;
  }
  return (
    <>
      <section class="panel" aria-labelledby="health-title">
        <h2 id="health-title">
          {away
            ? 'This replica gives no answer'
            : h.status === 'ready'
              ? 'This replica is ready'
              : 'This replica is not ready'}
          {!away && <small> for {span(serverNow() - Date.parse(h.since))}</small>}
        </h2>
        {!away && h.reasons.length > 0 && (
          <Notice kind={h.draining ? 'warn' : 'bad'}>
            It says: <Text value={h.reasons.join('; ')} />
          </Notice>
        )}
        <ul class="findings">
          {(away ? silent : findings(h)).map((f) => (
            <li class={f.kind}>
              <span class="symbol" role="img" aria-label={words[f.kind]}>
                {symbols[f.kind]}
              </span>
              <div>
                <b>{f.what}</b> <p>{f.advice}</p>
              </div>
            </li>
          ))}
        </ul>
      </section>
      <Overview />
      <section class="panel" aria-labelledby="holds-title">
        <h2 id="holds-title">What it holds</h2>
        <dl class="facts held">
          <Fact name="Subscriptions">{count(h.hub.subscribers)}</Fact>
          <Fact name="Resident streams">{count(h.hub.streams)}</Fact>
          <Fact name="Tails in memory">{bytes(h.hub.tail_bytes)}</Fact>
          <Fact name="Pages being replayed">{bytes(h.hub.page_bytes)}</Fact>
          <Fact name="Published here">{count(h.published)}</Fact>
          <Fact name="Live frames">{count(h.hub.frames)}</Fact>
          <Fact name="… of them ephemeral">{count(h.hub.ephemeral)}</Fact>
          <Fact name="Started">{date(h.started)}</Fact>
          <Fact name="Version">{h.version ? <Text value={h.version} /> : 'not known'}</Fact>
          <Fact name="Instance">{h.instance ? <Text value={h.instance} /> : 'has no name'}</Fact>
        </dl>
        <details class="about">
          <summary>How these figures come about</summary>
          <p>
            Everything is of this replica alone, except heads and backlogs, which are the store’s. Counts are since its
            start. A rate is the difference of two counts, over the last 10 seconds in tables and between two polls in
            charts; a poll goes 2 seconds after the answer to the one before, and none while this page is hidden. A
            stream’s rate is how far its head has moved, so ephemeral frames are not in it. <i>Behind</i> is how many
            durable frames the slowest subscriber of a stream has not been handed yet.
          </p>
        </details>
      </section>
    </>
  );
}
