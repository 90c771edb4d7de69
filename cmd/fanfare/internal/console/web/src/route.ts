// Where the reader is, kept behind the # of the address: the server is not asked for
// it, whatever prefix it is behind. Names of streams are no secrets, tokens never
// stand here.
import { signal } from '@preact/signals';
import type { StreamName } from './protocol';

export interface Route {
  view: 'streams' | 'stream' | 'publish' | 'health';
  query: URLSearchParams;
  /** Why the list is shown instead of what the address names; empty if it is not. */
  astray: string;
}

export function parseRoute(hash: string): Route {
  const [path = '', query = ''] = hash.replace(/^#\/?/, '').split('?', 2);
  const asked = new URLSearchParams(query);
  const instead = (astray: string): Route => ({ view: 'streams', query: new URLSearchParams(), astray });
  switch (path) {
    case 'stream':
      if (!asked.get('channel')) {
        return instead('This address names no stream: a channel is missing in it. Here are all streams.');
      }
      break;
    case '':
    case 'streams':
      return { view: 'streams', query: asked, astray: '' };
    case 'publish':
    case 'health':
      break;
    default:
      return instead('The console has nothing at this address. Here are all streams.');
  }
  return { view: path, query: asked, astray: '' };
}

export const route = signal(parseRoute(location.hash));

addEventListener('hashchange', () => (route.value = parseRoute(location.hash)));

export function link(view: Route['view'], query: Record<string, string> = {}): string {
  const q = new URLSearchParams(query).toString();
  return `#/${view}${q === '' ? '' : `?${q}`}`;
}

export function streamLink(name: StreamName): string {
  return link('stream', { channel: name.channel, scope: name.scope });
}

export function go(to: string) {
  location.hash = to;
}

/** Changes the address without a new entry in the history. */
export function replace(to: string) {
  history.replaceState(null, '', to);
  route.value = parseRoute(to);
}
