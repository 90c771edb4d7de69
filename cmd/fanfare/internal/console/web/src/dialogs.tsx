// The dialogs: for a token, and before a stream is closed.
import { useState } from 'preact/hooks';
import { askingForToken, messageOf, setToken, tokenWanted } from './api';
import { Dialog, Notice } from './parts';
import { closeStream, positionText, type Stream } from './protocol';
import { StreamText, Text } from './text';

function notNow() {
  askingForToken.value = false;
}

export function TokenDialog() {
  const submit = (event: Event) => {
    event.preventDefault();
    const value = String(new FormData(event.currentTarget as HTMLFormElement).get('token') ?? '');
    const bare = value.trim().replace(/^bearer\s+/i, '');
    if (bare !== '') {
      setToken(bare);
    }
  };
  return (
    <Dialog title="Sign in with a token" onClose={notNow}>
      <form onSubmit={submit}>
        <p role="alert">{tokenWanted.value}</p>
        <p>
          Paste one that allows what you want to see: <i>subscribe</i> for streams, <i>publish</i> for the form,{' '}
          <i>admin</i> for closing. It is kept in this tab only, until the tab is closed, and sent in a header.
        </p>
        <div class="field">
          <label for="token">Token</label>
          <input id="token" name="token" type="password" autocomplete="off" required autofocus spellcheck={false} />
        </div>
        <div class="dialog-buttons">
          <button type="button" onClick={notNow}>
            Not now
          </button>
          <button type="submit" class="primary">
            Use it
          </button>
        </div>
      </form>
    </Dialog>
  );
}

export function CloseDialog({ stream, onDone }: { stream: Stream; onDone: (closed: boolean) => void }) {
  const [fault, setFault] = useState('');
  const [busy, setBusy] = useState(false);
  const close = async () => {
    setBusy(true);
    setFault('');
    try {
      await closeStream({ channel: stream.channel, scope: stream.scope ?? '' }, stream.head?.epoch ?? '0');
      onDone(true);
    } catch (err) {
      setFault(messageOf(err));
      setBusy(false);
    }
  };
  return (
    <Dialog title="Close this stream?" onClose={() => onDone(false)}>
      <p class="named">
        <StreamText channel={stream.channel} scope={stream.scope ?? ''} />
      </p>
      <p>
        Its subscribers, at every replica, get what was published before, then are told that it is closed, and end. What
        it holds can no longer be replayed. The next publish opens it again, with a new numbering. Its head is{' '}
        <code class="position">{positionText(stream.head)}</code>.
      </p>
      {fault !== '' && (
        <Notice kind="bad">
          Not closed: <Text value={fault} />
        </Notice>
      )}
      <div class="dialog-buttons">
        <button type="button" autofocus onClick={() => onDone(false)}>
          Keep it open
        </button>
        <button type="button" class="danger" aria-disabled={busy} onClick={() => !busy && void close()}>
          {busy ? 'Closing…' : 'Close the stream'}
        </button>
      </div>
    </Dialog>
  );
}
