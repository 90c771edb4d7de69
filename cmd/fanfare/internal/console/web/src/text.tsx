import { parts } from './visible';

/** Text of others, inert: isolated from what stands around it, and with escapes. */
export function Text({ value, keep }: { value: string; keep?: string }) {
  return <bdi>{parts(value, keep).map((p) => (p.escaped ? <span class="escape">{p.text}</span> : p.text))}</bdi>;
}

/** A stream's name. The scope may be empty. */
export function StreamText({ channel, scope }: { channel: string; scope: string }) {
  return (
    <span class="stream-name">
      <Text value={channel} />
      <span class="scope">{scope === '' ? <i>no scope</i> : <Text value={scope} />}</span>
    </span>
  );
}
