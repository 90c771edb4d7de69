import { nameParts, parts, plain, type Part } from './visible';

/** Text of others, inert: isolated from what stands around it, and with escapes. */
export function Text({ value, keep }: { value: string; keep?: string }) {
  return <Isolated parts={parts(value, keep)} />;
}

function Isolated({ parts }: { parts: Part[] }) {
  return <bdi>{parts.map((p) => (p.escaped ? <span class="escape">{p.text}</span> : p.text))}</bdi>;
}

/** How much of a name is seen at once, about, where room is short. */
const longName = 100;

/** A stream's name. The scope may be empty. */
export function StreamText({ channel, scope }: { channel: string; scope: string }) {
  return (
    <span
      class="stream-name"
      title={channel.length > longName || scope.length > longName ? `${plain(channel)} › ${plain(scope)}` : undefined}
    >
      <span class="channel">
        <Isolated parts={nameParts(channel)} />
      </span>
      <span class="scope">{scope === '' ? <i>no scope</i> : <Isolated parts={nameParts(scope)} />}</span>
    </span>
  );
}
