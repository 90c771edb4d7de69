// The view of one stream.
import { useMemo, useState } from 'preact/hooks';
import { ApiError, messageOf } from './api';
import { Chart } from './chart';
import { CloseDialog } from './dialogs';
import { ago, count, date, rate } from './format';
import { Fact, Notice } from './parts';
import { usePoll } from './poll';
import { backlogOf, getStream, positionText, sequenceOf, type Stream, type StreamName } from './protocol';
import { PublishForm } from './publish';
import { chartWindow, Counter } from './rates';
import { serverNow, unreachable } from './replica';
import { link } from './route';
import { TailView } from './tail-view';
import { StreamText, Text } from './text';

interface Known {
  stream: Stream | undefined;
  fault: string;
}

export function StreamView({ name }: { name: StreamName }) {
  const [known, setKnown] = useState<Known>();
  const [closing, setClosing] = useState(false);
  const counter = useMemo(() => new Counter(), [name.channel, name.scope]);
  const behind = useMemo<{ at: number; value: number }[]>(() => [], [name.channel, name.scope]);

  usePoll(
    async (aborted) => {
      let next: Known;
      try {
        const stream = await getStream(name, aborted);
        const at = performance.now();
        counter.read(sequenceOf(stream.head), at);
        behind.push({ at, value: Number(stream.behind ?? 0) });
        while (behind[0] && behind[0].at < at - chartWindow) {
          behind.shift();
        }
        next = { stream, fault: '' };
      } catch (err) {
        const missing = err instanceof ApiError && err.status === 404;
        next = { stream: missing ? undefined : known?.stream, fault: missing ? '' : messageOf(err) };
      }
      if (!aborted.aborted) {
        setKnown(next);
      }
    },
    [name.channel, name.scope],
  );

  const stream = known?.stream;
  return (
    <>
      <section class="panel stream-head" aria-labelledby="stream-title">
        <div class="panel-head">
          <h2 id="stream-title">
            <StreamText channel={name.channel} scope={name.scope} />
            {stream?.closed && <span class="badge">closed</span>}
          </h2>
          <div class="actions">
            <a class="button" href={link('streams', { channel: name.channel })}>
              Streams of this channel
            </a>
            {/* Not disabled: that would take the focus away once it is closed. */}
            <button
              type="button"
              class="danger"
              aria-disabled={!stream || stream.closed === true}
              onClick={() => setClosing(stream !== undefined && !stream.closed)}
            >
              Close stream…
            </button>
          </div>
        </div>
        {known && known.fault !== '' && unreachable.value === '' && (
          <Notice kind="bad">
            The stream cannot be described: <Text value={known.fault} />
          </Notice>
        )}
        {known && !stream && known.fault === '' && (
          <Notice kind="warn">Nothing was published to this stream yet. It exists from its first frame on.</Notice>
        )}
        {stream?.closed && <Notice kind="warn">The stream is closed. The next publish opens it again.</Notice>}
        <Facts stream={stream} counter={counter} />
      </section>
      <div class="columns">
        <TailView name={name} />
        <div class="column">
          <section class="panel" aria-label="Charts">
            <Chart
              title="Frames"
              unit="/s"
              series={[{ label: 'published', color: '--series-1', points: counter.rates() }]}
            />
            <Chart
              title="Behind"
              unit="frames"
              series={[{ label: 'slowest subscriber', color: '--series-3', points: behind }]}
            />
          </section>
          <section class="panel" aria-labelledby="publish-title">
            <h3 id="publish-title">Publish to this stream</h3>
            <PublishForm stream={name} fixed short />
          </section>
        </div>
      </div>
      {closing && stream && <CloseDialog stream={stream} onDone={() => setClosing(false)} />}
    </>
  );
}

function Facts({ stream, counter }: { stream: Stream | undefined; counter: Counter }) {
  const now = serverNow();
  return (
    <dl class="facts">
      <Fact name="Frames/s">{rate(counter.rate())}</Fact>
      <Fact name="Subscribers">{stream ? count(stream.subscribers ?? 0) : '–'}</Fact>
      <Fact name="Behind">{stream ? count(BigInt(stream.behind ?? 0)) : '–'}</Fact>
      <Fact name="Backlog">{stream ? count(backlogOf(stream)) : '–'}</Fact>
      <Fact name="Head" wide>
        {stream ? <code class="position">{positionText(stream.head)}</code> : '–'}
      </Fact>
      <Fact name="Changed">{stream ? <span title={date(stream.updated)}>{ago(stream.updated, now)}</span> : '–'}</Fact>
      <Fact name="Created">{stream ? date(stream.created) : '–'}</Fact>
    </dl>
  );
}
