// The live tail, shown: newest first, one row to a frame, which opens.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { bytes, clock, plural } from './format';
import { full, preview } from './payload';
import type { StreamName } from './protocol';
import { Tail, type Item, type Note, type ShownFrame } from './tail';
import type { Frame, SubscriptionStatus } from './fanfare-module';
import { Text } from './text';
import { plain } from './visible';

/** How often new frames are said at most to those who listen, in milliseconds. */
const sayEvery = 3000;

export function TailView({ name }: { name: StreamName }) {
  const tail = useMemo(() => new Tail(name), [name.channel, name.scope]);
  useEffect(() => tail.watch(), [tail]);
  const paused = tail.paused.value;
  return (
    <section class="panel tail" aria-labelledby="tail-title">
      <div class="panel-head">
        <h3 id="tail-title">Live tail</h3>
        <div class="actions">
          <button type="button" class="small" onClick={() => tail.clear()}>
            Clear
          </button>
          <button
            type="button"
            class={`small ${paused ? 'primary' : ''}`}
            aria-pressed={paused}
            onClick={() => (paused ? tail.resume() : tail.pause())}
          >
            Pause{paused && tail.waiting.value > 0 && ` (${tail.waiting.value} new)`}
          </button>
        </div>
      </div>
      <p class="tail-state">
        <StatusText status={tail.status.value} />{' '}
        {paused ? 'Paused: what comes is kept and not shown.' : 'Newest first.'}
      </p>
      <Spoken tail={tail} />
      {tail.shown.value.length === 0 ? (
        <p class="empty">No frame yet. Publish one, and it appears here at once.</p>
      ) : (
        <ol class="tail-list" tabIndex={0} aria-label="Frames, newest first" reversed>
          {tail.shown.value.map((item) => (
            <Row key={item.key} item={item} />
          ))}
        </ol>
      )}
    </section>
  );
}

function StatusText({ status }: { status: SubscriptionStatus }) {
  switch (status.state) {
    case 'open':
      return <>Live.</>;
    case 'waiting':
      return (
        <>
          Interrupted, and tried again: <Text value={status.error?.message ?? 'no answer'} />.
        </>
      );
    case 'paused':
      return <>Not connected while the page is out of sight.</>;
    case 'ended':
      return <>Ended.</>;
    default:
      return <>Connecting…</>;
  }
}

/** Says what came, gathered, and nothing while the tail is paused. */
function Spoken({ tail }: { tail: Tail }) {
  const [said, say] = useState('');
  const told = useRef(0);
  useEffect(() => {
    const id = window.setInterval(() => {
      const n = tail.arrived.value - told.current;
      const newest = tail.shown.value.find((item) => item.kind === 'frame');
      if (n > 0 && newest) {
        told.current = tail.arrived.value;
        const { text, binary } = preview(newest.payload);
        say(
          `${plural(n, 'new frame')}, the newest: ${binary ? bytes(newest.payload.length) : plain(text.slice(0, 120))}`,
        );
      }
    }, sayEvery);
    return () => window.clearInterval(id);
  }, [tail]);
  return (
    <p class="unseen" role="log" aria-live="polite" aria-label="New frames">
      {said}
    </p>
  );
}

function Row({ item }: { item: Item }) {
  return <li class="tail-new">{item.kind === 'frame' ? <FrameRow item={item} /> : <NoteRow note={item} />}</li>;
}

function NoteRow({ note }: { note: Note }) {
  return (
    <p class={`tail-note ${note.kind}`}>
      {clock(note.at)} <Text value={note.text} />
    </p>
  );
}

function FrameRow({ item }: { item: ShownFrame }) {
  const [open, setOpen] = useState(false);
  const { frame, payload } = item;
  const shown = preview(payload);
  return (
    <details onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary>
        <span class="tail-meta">
          <b>{frame.position ? `#${frame.position.split('-')[1]}` : <span class="badge">ephemeral</span>}</b>
          <time dateTime={frame.created.toJSON() ?? ''}>{clock(frame.created)}</time>
          {frame.eventType !== '' && <Text value={frame.eventType} />}
          <span>{bytes(payload.length)}</span>
        </span>
        <span class="tail-preview">
          {payload.length === 0 ? <i>empty</i> : <Text value={shown.text} />}
          {shown.cut && '…'}
        </span>
      </summary>
      {open && <Opened item={item} />}
    </details>
  );
}

function Opened({ item: { frame, payload } }: { item: ShownFrame }) {
  const shown = full(payload, frame.contentType);
  const headers = Object.entries(frame.headers);
  return (
    <div class="tail-more">
      <dl class="facts">
        <div class="fact wide">
          <dt>Position</dt>
          <dd>{frame.position ? <code class="position">{frame.position}</code> : 'none: it is ephemeral'}</dd>
        </div>
        <div class="fact">
          <dt>Content type</dt>
          <dd>{frame.contentType === '' ? '–' : <Text value={frame.contentType} />}</dd>
        </div>
        <div class="fact">
          <dt>Event type</dt>
          <dd>{frame.eventType === '' ? '–' : <Text value={frame.eventType} />}</dd>
        </div>
        {headers.map(([name, value]) => (
          <div class="fact" key={name}>
            <dt>
              <Text value={name} />
            </dt>
            <dd>
              <Text value={value} />
            </dd>
          </div>
        ))}
      </dl>
      <pre tabIndex={0} role="group" aria-label={shown.binary ? 'Payload in hexadecimal' : 'Payload'}>
        <Text value={shown.text} keep={'\n\t'} />
      </pre>
      <p class="tail-state">
        {shown.binary && 'The payload is not UTF-8: its bytes are shown in hexadecimal. '}
        {shown.cut && `Only the beginning of ${bytes(payload.length)} is shown. `}
        <button type="button" class="small" onClick={() => save(frame, payload)}>
          Save the payload
        </button>
      </p>
    </div>
  );
}

function save(frame: Frame, payload: Uint8Array) {
  const url = URL.createObjectURL(new Blob([payload as BlobPart]));
  const link = document.createElement('a');
  link.href = url;
  link.download = `frame-${frame.position ?? 'ephemeral'}`;
  link.click();
  URL.revokeObjectURL(url);
}
