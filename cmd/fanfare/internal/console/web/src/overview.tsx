// What the replica does in all.
import { Chart } from './chart';
import { brief, bytes, rate } from './format';
import { health, heard, published, subscribers } from './replica';

function Tile({ label, value, unit, hint }: { label: string; value: string; unit?: string; hint: string }) {
  return (
    <div class="tile">
      <dt>{label}</dt>
      <dd>
        <b>{value}</b> {unit && <span>{unit}</span>}
        <small>{hint}</small>
      </dd>
    </div>
  );
}

/** With brief, a narrow window is spared what the tiles say already. */
export function Overview({ brief: short }: { brief?: boolean }) {
  const h = health.value;
  return (
    <section class={`overview ${short ? 'brief' : ''}`} aria-label="This replica">
      <dl class="tiles">
        <Tile label="Published" value={rate(published.rate())} unit="/s" hint="through this replica" />
        <Tile label="Live" value={rate(heard.rate())} unit="/s" hint="frames for its subscribers" />
        <Tile label="Subscribers" value={h ? brief(h.hub.subscribers) : '–'} hint="subscriptions here" />
        <Tile label="Resident streams" value={h ? brief(h.hub.streams) : '–'} hint="in memory" />
        <Tile label="Tails" value={h ? bytes(h.hub.tail_bytes) : '–'} hint="newest frames, in memory" />
      </dl>
      <div class="charts">
        <Chart
          title="Frames"
          unit="/s"
          series={[
            { label: 'published', color: '--series-1', points: published.rates() },
            { label: 'live', color: '--series-2', points: heard.rates() },
          ]}
        />
        <Chart title="Subscribers" unit="" series={[{ label: 'now', color: '--series-2', points: subscribers }]} />
      </div>
    </section>
  );
}
