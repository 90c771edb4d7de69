// The form that publishes a frame.
import { useId, useRef, useState } from 'preact/hooks';
import { ApiError, messageOf } from './api';
import { bytes } from './format';
import { Notice } from './parts';
import { toBase64 } from './payload';
import { positionText, publish, type NewFrame, type Published, type StreamName } from './protocol';
import { streamLink } from './route';
import { Text } from './text';

interface Failure {
  /** The control that the server's field is; empty if it is none. */
  control: string;
  message: string;
}

interface Props {
  stream: StreamName;
  text?: string;
  /** The names are given by what is around the form. */
  fixed?: boolean;
  /** What is seldom needed is folded away. */
  short?: boolean;
  onPublished?: (name: StreamName) => void;
}

/** The controls by the fields of the protocol. */
const controls: Record<string, string> = {
  channel: 'channel',
  scope: 'scope',
  payload: 'payload',
  content_type: 'content-type',
  event_type: 'event-type',
  idempotency_key: 'key',
  headers: 'headers',
  ephemeral: 'ephemeral',
};

export function PublishForm({ stream, text = '', fixed = false, short = false, onPublished }: Props) {
  const form = useRef<HTMLFormElement>(null);
  const more = useRef<HTMLDetailsElement>(null);
  // What was typed outlives a look at the other source.
  const typed = useRef(text);
  const [fromFile, setFromFile] = useState(false);
  const [file, setFile] = useState<File>();
  const [ephemeral, setEphemeral] = useState(false);
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState<Failure>();
  const [done, setDone] = useState<{ frame: NewFrame; answer: Published }>();

  const submit = async (event: Event) => {
    event.preventDefault();
    if (busy) {
      return;
    }
    const fields = new FormData(form.current!);
    const value = (name: string) => String(fields.get(name) ?? '');
    setBusy(true);
    setFailure(undefined);
    setDone(undefined);
    try {
      if (fromFile && !file) {
        setFailure({ control: 'payload', message: 'choose a file first' });
        return;
      }
      const headers = headersOf(value('headers'));
      const payload = fromFile ? new Uint8Array(await file!.arrayBuffer()) : new TextEncoder().encode(value('payload'));
      const frame: NewFrame = {
        channel: fixed ? stream.channel : value('channel'),
        scope: fixed ? stream.scope : value('scope'),
        payload: toBase64(payload),
        contentType: value('content-type'),
        eventType: value('event-type'),
        headers,
        idempotencyKey: ephemeral ? '' : value('key'),
        ephemeral,
      };
      const answer = await publish(frame);
      setDone({ frame, answer });
      onPublished?.({ channel: frame.channel, scope: frame.scope });
    } catch (err) {
      const field = err instanceof ApiError ? err.field.replace(/^frame\./, '').replace(/\[.*/, '') : '';
      const control = controls[field] ?? '';
      if (more.current?.querySelector(`[name="${control}"]`)) {
        more.current.open = true;
      }
      // The control stands for the field, by a name that people know.
      setFailure({ control, message: messageOf(err).replace(/\bframe\.(?=[a-z])/, '') });
    } finally {
      setBusy(false);
    }
  };

  const keyDown = (event: KeyboardEvent) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey) && !event.isComposing) {
      event.preventDefault();
      form.current!.requestSubmit();
    }
  };

  return (
    <form ref={form} class="publish" onSubmit={submit} onKeyDown={keyDown} noValidate>
      {!fixed && (
        <div class="pair">
          <Field name="channel" label="Channel" hint="What kind of thing" failure={failure}>
            {(a) => <input {...a} defaultValue={stream.channel} autocomplete="off" spellcheck={false} />}
          </Field>
          <Field name="scope" label="Scope" hint="Which one; may be empty" failure={failure}>
            {(a) => <input {...a} defaultValue={stream.scope} autocomplete="off" spellcheck={false} />}
          </Field>
        </div>
      )}
      <fieldset class="payload">
        <legend>Payload</legend>
        <div class="choices">
          <label>
            <input type="radio" name="source" checked={!fromFile} onChange={() => setFromFile(false)} /> Text
          </label>
          <label>
            <input type="radio" name="source" checked={fromFile} onChange={() => setFromFile(true)} /> File
          </label>
        </div>
        {fromFile ? (
          <Field name="payload" label="File" hint={file ? bytes(file.size) : 'Its bytes, unchanged'} failure={failure}>
            {(a) => <input {...a} type="file" onChange={(e) => setFile(e.currentTarget.files?.[0])} />}
          </Field>
        ) : (
          <Field name="payload" label="Text" hint="Ctrl+Enter or ⌘+Enter publishes it" failure={failure}>
            {(a) => (
              <textarea
                {...a}
                rows={4}
                spellcheck={false}
                defaultValue={typed.current}
                onInput={(e) => (typed.current = e.currentTarget.value)}
              />
            )}
          </Field>
        )}
      </fieldset>
      <details class="more" ref={more} open={!short}>
        <summary>Types, key, headers, ephemeral</summary>
        <div class="pair">
          <Field name="content-type" label="Content type" failure={failure}>
            {(a) => (
              <input
                {...a}
                key={`${fromFile} ${file?.type}`}
                defaultValue={fromFile ? (file?.type ?? '') : 'text/plain'}
                list="content-types"
                autocomplete="off"
                spellcheck={false}
              />
            )}
          </Field>
          <datalist id="content-types">
            <option value="text/plain" />
            <option value="application/json" />
            <option value="application/octet-stream" />
          </datalist>
          <Field name="event-type" label="Event type" hint="Browsers get it as the event’s name" failure={failure}>
            {(a) => <input {...a} autocomplete="off" spellcheck={false} />}
          </Field>
        </div>
        <Field
          name="key"
          label="Idempotency key"
          hint={ephemeral ? 'Not for ephemeral frames' : 'Published again with the same key, it is stored once'}
          failure={failure}
        >
          {(a) => <input {...a} disabled={ephemeral} autocomplete="off" spellcheck={false} />}
        </Field>
        <Field name="headers" label="Headers" hint="A line for each, as name: value" failure={failure}>
          {(a) => <textarea {...a} rows={2} autocomplete="off" spellcheck={false} />}
        </Field>
        <label class="check">
          <input
            type="checkbox"
            name="ephemeral"
            checked={ephemeral}
            onChange={(e) => setEphemeral(e.currentTarget.checked)}
          />
          <span>
            Ephemeral
            <small>Reaches those who are subscribed now, and is not stored</small>
          </span>
        </label>
      </details>
      <div class="submit">
        <button type="submit" class="primary" aria-disabled={busy}>
          {busy ? 'Publishing…' : 'Publish'}
        </button>
        <Outcome failure={failure} done={done} fixed={fixed} />
      </div>
    </form>
  );
}

/** Reads lines of names and values. */
function headersOf(lines: string): Record<string, string> {
  const headers: Record<string, string> = {};
  for (const line of lines.split('\n')) {
    if (line.trim() === '') {
      continue;
    }
    const colon = line.indexOf(':');
    const name = line.slice(0, Math.max(0, colon)).trim();
    if (name === '') {
      throw new ApiError(`headers: “${line.trim()}” is not a name, a colon and a value`, 0, '', 'headers');
    }
    if (Object.hasOwn(headers, name)) {
      throw new ApiError(`headers: “${name}” stands there twice`, 0, '', 'headers');
    }
    headers[name] = line.slice(colon + 1).trim();
  }
  return headers;
}

function Outcome(props: {
  failure: Failure | undefined;
  done: { frame: NewFrame; answer: Published } | undefined;
  fixed: boolean;
}) {
  if (props.failure) {
    return (
      <Notice kind="bad">
        Not published: <Text value={props.failure.message} />
      </Notice>
    );
  }
  if (!props.done) {
    return null;
  }
  const { frame, answer } = props.done;
  return (
    <Notice kind="good">
      {frame.ephemeral ? (
        'Published, not stored.'
      ) : (
        <>
          {answer.duplicate ? 'Was published before, at ' : 'Published at '}
          <code class="position">{positionText(answer.position)}</code>
        </>
      )}
      {!props.fixed && (
        <>
          {' '}
          <a href={streamLink(frame)}>Watch the stream</a>
        </>
      )}
    </Notice>
  );
}

interface FieldProps {
  name: string;
  label: string;
  hint?: string;
  failure: Failure | undefined;
  children: (attributes: Attributes) => preact.JSX.Element;
}

interface Attributes {
  id: string;
  name: string;
  'aria-invalid': boolean;
  'aria-describedby': string;
}

function Field({ name, label, hint, failure, children }: FieldProps) {
  const id = useId();
  const wrong = failure?.control === name;
  return (
    <div class={`field ${wrong ? 'wrong' : ''}`}>
      <label for={id}>{label}</label>
      {children({ id, name, 'aria-invalid': wrong, 'aria-describedby': `${id}-hint` })}
      <small id={`${id}-hint`}>{wrong ? <Text value={failure.message} /> : hint}</small>
    </div>
  );
}
