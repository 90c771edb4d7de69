// Numbers, sizes and times for people.
const whole = new Intl.NumberFormat('en');
const short = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });
const compact = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });

export function count(n: number | bigint): string {
  return whole.format(n);
}

/** For places with little room: 12.3K. */
export function brief(n: number): string {
  return n < 10_000 ? (n < 100 ? short.format(n) : whole.format(Math.round(n))) : compact.format(n);
}

export function rate(perSecond: number | undefined): string {
  if (perSecond === undefined) {
    return '–';
  }
  return perSecond < 100 ? perSecond.toFixed(1) : brief(perSecond);
}

export function bytes(n: number): string {
  for (const [unit, size] of [
    ['GiB', 2 ** 30],
    ['MiB', 2 ** 20],
    ['KiB', 2 ** 10],
  ] as const) {
    if (n >= size) {
      return `${short.format(n / size)} ${unit}`;
    }
  }
  return n === 1 ? '1 byte' : `${n} bytes`;
}

/** A span of time in its largest unit: 3 min. */
export function span(milliseconds: number): string {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  for (const [unit, size] of [
    ['d', 86_400],
    ['h', 3600],
    ['min', 60],
  ] as const) {
    if (seconds >= size) {
      return `${Math.floor(seconds / size)} ${unit}`;
    }
  }
  return `${seconds} s`;
}

/** How long ago by a clock that may not be this machine's. */
export function ago(time: string | undefined, now: number): string {
  const at = Date.parse(time ?? '');
  if (Number.isNaN(at)) {
    return '–';
  }
  return now - at < 1500 ? 'now' : `${span(now - at)} ago`;
}

const clockForm = new Intl.DateTimeFormat('en-GB', {
  hour: '2-digit',
  minute: '2-digit',
  second: '2-digit',
  fractionalSecondDigits: 3,
});
const dateForm = new Intl.DateTimeFormat('en-GB', { dateStyle: 'medium', timeStyle: 'short' });

export function clock(time: Date): string {
  return Number.isNaN(time.getTime()) ? '–' : clockForm.format(time);
}

export function date(time: string | undefined): string {
  const at = new Date(time ?? '');
  return Number.isNaN(at.getTime()) ? '–' : dateForm.format(at);
}

export function plural(n: number | bigint, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 || n === 1n ? one : many}`;
}
