// The frame around the views.
import { useEffect, useRef } from 'preact/hooks';
import { askingForToken, setToken, token, tokenWanted } from './api';
import { TokenDialog } from './dialogs';
import { HealthView } from './health';
import { Notice } from './parts';
import { PublishForm } from './publish';
import { health, unreachable, watchReplica } from './replica';
import { link, route, type Route } from './route';
import { StreamView } from './stream';
import { StreamsView } from './streams';
import { setTheme, theme, type Theme } from './theme';
import { plain } from './visible';

const titles: Record<Route['view'], string> = {
  streams: 'Streams',
  stream: 'Stream',
  publish: 'Publish',
  health: 'Health',
};

export function App() {
  const { view, query, astray } = route.value;
  const main = useRef<HTMLElement>(null);
  const channel = query.get('channel') ?? '';
  const scope = query.get('scope') ?? '';
  const place = view === 'stream' ? `${view} ${channel}\0${scope}` : view;
  const shown = useRef(place);

  useEffect(watchReplica, []);
  useEffect(() => {
    const of = view === 'stream' ? `${plain(channel)} ${plain(scope)}` : titles[view];
    document.title = `${of} – Fanfare console`;
    if (shown.current !== place) {
      // As a new page would, so that the keyboard goes on from its beginning.
      shown.current = place;
      main.current?.focus({ preventScroll: true });
      scrollTo(0, 0);
    }
  }, [place]);

  return (
    <>
      <a class="skip" href="#main" onClick={(e) => (e.preventDefault(), main.current?.focus())}>
        Skip to the content
      </a>
      <Header view={view} />
      <main id="main" ref={main} tabIndex={-1} aria-label={titles[view]}>
        {tokenWanted.value !== '' && (
          <Notice kind="warn">
            {tokenWanted.value} Without one there is only its health to see.{' '}
            <button type="button" class="small" onClick={() => (askingForToken.value = true)}>
              Sign in
            </button>
          </Notice>
        )}
        {unreachable.value !== '' && (
          <Notice kind="bad">
            The console gets no answer: {unreachable.value}. It goes on asking; what it shows is what it heard last.
          </Notice>
        )}
        {astray !== '' && <Notice kind="warn">{astray}</Notice>}
        {view === 'streams' && <StreamsView />}
        {view === 'stream' && <StreamView key={place} name={{ channel, scope }} />}
        {view === 'publish' && (
          <section class="panel narrow" aria-labelledby="publish-title">
            <h2 id="publish-title">Publish a frame</h2>
            <PublishForm stream={{ channel, scope }} />
          </section>
        )}
        {view === 'health' && <HealthView />}
      </main>
      {askingForToken.value && <TokenDialog />}
    </>
  );
}

function Header({ view }: { view: Route['view'] }) {
  const item = (to: Route['view'], name: string) => (
    <a href={link(to)} aria-current={view === to ? 'page' : view === 'stream' && to === 'streams' ? 'true' : undefined}>
      {name}
    </a>
  );
  return (
    <header class={`top ${token.value === '' ? '' : 'with-token'}`}>
      <h1>
        <a href={link('streams')} aria-label="Fanfare console">
          <svg viewBox="0 0 32 32" width="26" height="26" aria-hidden="true">
            <g fill="none" stroke="currentColor" stroke-width="2.8" stroke-linecap="round">
              <path d="M4 16h8" />
              <path d="M12 16c5 0 5-9 14-9M12 16h14M12 16c5 0 5 9 14 9" />
            </g>
            <circle cx="5" cy="16" r="3.4" fill="currentColor" />
          </svg>
          <span class="wordmark">Fanfare</span>
        </a>
      </h1>
      <nav aria-label="Views">
        {item('streams', 'Streams')}
        {item('publish', 'Publish')}
        {item('health', 'Health')}
      </nav>
      <div class="top-end">
        <State />
        {token.value !== '' && (
          <button type="button" class="quiet small" onClick={() => setToken('')}>
            Forget token
          </button>
        )}
        <ThemeChoice />
      </div>
    </header>
  );
}

function State() {
  const h = health.value;
  const [kind, text] =
    unreachable.value !== ''
      ? ['bad', 'no answer']
      : !h
        ? ['warn', 'asking']
        : h.status === 'ready'
          ? h.channel.listening && h.store.answering
            ? ['good', 'ready']
            : ['warn', 'ready, with a fault']
          : h.draining
            ? ['warn', 'draining']
            : ['bad', 'not ready'];
  return (
    <span role="status">
      <a class={`state ${kind}`} href={link('health')}>
        <span class="dot" aria-hidden="true" />
        <span class="unseen">The replica is </span>
        {text}
      </a>
    </span>
  );
}

function ThemeChoice() {
  return (
    <label class="theme">
      <span class="unseen">Colours</span>
      <select value={theme.value} onChange={(e) => setTheme(e.currentTarget.value as Theme)}>
        <option value="system">System</option>
        <option value="light">Light</option>
        <option value="dark">Dark</option>
      </select>
    </label>
  );
}
