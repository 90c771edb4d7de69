// Where the reader is, kept behind the # of the address: the server is not asked for
// it, whatever prefix it is behind. Names of streams are no secrets, tokens never
// stand here.
import { signal } from '@preact/signals';
import type { StreamName } from './protocol';

export interface Route {
  view: 'streams' | 'stream' | 'publish' | 'health';
  query: URLSearchParams;
}

export function parseRoute(hash: string): Route {
  const [path = '', query = ''] = hash.replace(/^#\/?/, '').split('?', 2);
  const view = path === 'stream' || path === 'publish' || path === 'health' ? path : 'streams';
  return { view, query: new URLSearchParams(query) };
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
