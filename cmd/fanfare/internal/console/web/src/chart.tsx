// Charts of the last minutes, drawn by uPlot, and the small ones in tables.
import uPlot from 'uplot';
import { useEffect, useRef } from 'preact/hooks';
import { brief } from './format';
import { chartWindow } from './rates';
import { shownTheme } from './theme';

export interface Series {
  label: string;
  /** A custom property of the style sheet. */
  color: string;
  points: { at: number; value: number }[];
}

export interface ChartProps {
  title: string;
  unit: string;
  series: Series[];
}

function colorOf(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Series of one chart have their points at the same times. */
function dataOf(series: Series[]): uPlot.AlignedData {
  const times = series[0]!.points.map((p) => p.at / 1000);
  return [times, ...series.map((s) => s.points.map((p) => p.value))] as uPlot.AlignedData;
}

const height = 120;
const whole = [1, 2, 5].flatMap((n) => Array.from({ length: 12 }, (_, i) => n * 10 ** i)).sort((a, b) => a - b);

function options(width: number, series: Series[]): uPlot.Options {
  const axis: uPlot.Axis = {
    stroke: colorOf('--muted'),
    font: '11px system-ui, sans-serif',
    grid: { stroke: colorOf('--line'), width: 1 },
    ticks: { show: false },
  };
  return {
    width,
    height,
    padding: [6, 18, 0, 0],
    cursor: { show: false },
    legend: { show: false },
    scales: {
      x: { time: false, range: () => [(performance.now() - chartWindow) / 1000, performance.now() / 1000] },
      y: { range: (_, __, max) => [0, Math.max(1, max * 1.15)] },
    },
    axes: [
      {
        ...axis,
        // Below the 0 of the other axis, whose lower half hangs into this one.
        size: 27,
        gap: 9,
        space: 62,
        incrs: [60, 120, 300],
        splits: (_, __, min, max, every) => {
          const out = [];
          for (let at = max; at > min - 1; at -= every) {
            out.unshift(at);
          }
          return out;
        },
        values: (u, splits) => splits.map((s) => minutesBack((u.scales['x']!.max ?? 0) - s)),
      },
      { ...axis, size: 46, space: 30, incrs: whole, values: (_, splits) => splits.map(brief) },
    ],
    series: [
      {},
      ...series.map((s, i): uPlot.Series => ({
        label: s.label,
        stroke: colorOf(s.color),
        width: 2,
        points: { show: false },
        // Lines that run together are still seen to be two.
        ...(i === 0 ? { fill: colorOf(`${s.color}-fill`) } : { dash: [6, 4] }),
      })),
    ],
  };
}

function minutesBack(seconds: number): string {
  return seconds < 1 ? 'now' : `−${Math.round(seconds / 60)} min`;
}

/** What a chart shows, for those who do not see it. */
function description({ title, unit, series }: ChartProps): string {
  const lines = series.map((s) => {
    const values = s.points.map((p) => p.value);
    return values.length === 0
      ? `${s.label}: no values yet`
      : `${s.label}: now ${brief(values.at(-1)!)} ${unit}, at most ${brief(Math.max(...values))}`;
  });
  return `${title}, last 5 minutes. ${lines.join('. ')}.`;
}

export function Chart(props: ChartProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(undefined);
  const painted = shownTheme.value;
  const { series } = props;

  useEffect(() => {
    const element = place.current!;
    const drawn = new uPlot(options(element.clientWidth, series), dataOf(series), element);
    plot.current = drawn;
    const sized = new ResizeObserver(() => drawn.setSize({ width: element.clientWidth, height }));
    sized.observe(element);
    return () => {
      sized.disconnect();
      drawn.destroy();
    };
  }, [painted, series.map((s) => s.label).join()]);
  useEffect(() => plot.current?.setData(dataOf(series)));

  return (
    <figure class="chart">
      <figcaption>
        <b>{props.title}</b>
        <span class="legend">
          {series.map((s) => (
            <span class={`key key${s.color}`} key={s.label}>
              {s.label} <b>{s.points.length > 0 ? brief(s.points.at(-1)!.value) : '–'}</b> {props.unit}
            </span>
          ))}
        </span>
      </figcaption>
      <div class="plot" ref={place} role="img" aria-label={description(props)} />
    </figure>
  );
}

/** The shape of a rate, in a row of a table. */
export function Sparkline({ points }: { points: { value: number }[] }) {
  const shown = points.slice(-30);
  const max = Math.max(1, ...shown.map((p) => p.value));
  const path = shown
    .map((p, i) => `${i === 0 ? 'M' : 'L'}${(i + 30 - shown.length) * 2.5} ${(17 - (p.value / max) * 15).toFixed(1)}`)
    .join('');
  return (
    <svg class="spark" viewBox="0 0 73 18" width="73" height="18" aria-hidden="true">
      <path d={path} />
    </svg>
  );
}
