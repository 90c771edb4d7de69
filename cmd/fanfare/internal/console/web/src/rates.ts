// Rates are differences of counters between polls: the sequence of a stream's head,
// and what /healthz counts. What was published and trimmed in between counts, too;
// ephemeral frames have no sequence.

/** A counter's value at a time of performance.now(). */
export interface Reading {
  at: number;
  value: bigint;
}

/** How far back a rate looks, in milliseconds: long enough to be steady. */
const window = 10_000;
/** How far back charts look. */
export const chartWindow = 5 * 60_000;

/** The readings of one counter, for charts and rates. */
export class Counter {
  readonly readings: Reading[] = [];

  /** Takes a reading. A counter that goes back has begun anew. */
  read(value: bigint, at = performance.now()) {
    const last = this.readings.at(-1);
    if (last && value < last.value) {
      this.readings.length = 0;
    }
    this.readings.push({ at, value });
    while (this.readings[0] && this.readings[0].at < at - chartWindow) {
      this.readings.shift();
    }
  }

  /** The mean of the last seconds, per second; undefined before the second reading. */
  rate(): number | undefined {
    const last = this.readings.at(-1);
    if (!last) {
      return undefined;
    }
    const first = this.readings.find((r) => r.at >= last.at - window)!;
    return last === first ? undefined : perSecond(first, last);
  }

  /** The rate between each two readings, for a chart. */
  rates(): { at: number; value: number }[] {
    return this.readings.slice(1).map((r, i) => ({ at: r.at, value: perSecond(this.readings[i]!, r) }));
  }
}

function perSecond(from: Reading, to: Reading): number {
  return (Number(to.value - from.value) * 1000) / (to.at - from.at);
}
