// The first screen of a server without streams.
import { at, token } from './api';
import { Command } from './parts';
import { PublishForm } from './publish';
import { go, streamLink } from './route';

const first = { channel: 'chat/messages', scope: 'lobby' };

export function Welcome() {
  return (
    <div class="welcome">
      <section class="panel">
        <h2>{token.value === '' ? 'No stream yet' : 'No stream yet, or none that your token shows'}</h2>
        <p>
          A stream exists from its first frame on. It is named by a <b>channel</b>, what kind of thing is published, and
          a <b>scope</b>, which one. Publish a frame here, and you see it arrive.
        </p>
        <PublishForm stream={first} text="hello, world" short onPublished={(name) => go(streamLink(name))} />
      </section>
      <section class="panel">
        <h2>Or from a terminal</h2>
        <p>
          Leave one of the first two running, and publish with one of the others. This page shows the stream as soon as
          it is there.
        </p>
        <Command label="Subscribe with the program" text="fanfare subscribe chat/messages lobby" />
        <Command label="Subscribe with curl" text={`curl -N '${at('v1/streams', { ...first })}'`} />
        <Command label="Publish with the program" text="fanfare publish chat/messages lobby --data 'hello, world'" />
        <Command
          label="Publish with curl; a payload is base64"
          text={`curl '${at('v1/publish')}' \\
  -H 'content-type: application/json' \\
  -d '{"frame": {"channel": "chat/messages",
    "scope": "lobby", "payload": "aGVsbG8="}}'`}
        />
      </section>
    </div>
  );
}
