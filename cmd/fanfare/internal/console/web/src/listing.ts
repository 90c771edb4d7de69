// Which streams the list shows, and what is known of them.
import { batch, signal } from '@preact/signals';
import { ApiError, messageOf } from './api';
import { getStream, keyOf, largestPage, listStreams, nameOf, sequenceOf, type Stream } from './protocol';
import { Counter } from './rates';

/** Streams to a page of the list, and matches of a search that are shown. */
export const pageSize = 50;
const shownMatches = 25;
/** How many pages of names a search reads at most before it asks for a closer word. */
const searchedPages = 20;

export interface Row {
  stream: Stream;
  counter: Counter;
}

export interface Listing {
  rows: Row[];
  /** Where the next page begins; empty after the last. */
  next: string;
  /** All that was looked at did not fit. */
  more: boolean;
  /** How many names were looked at, in a search. */
  searched: number;
}

export const listing = signal<Listing | undefined>(undefined);
export const listingFault = signal('');

/** Counters outlive a page that is left and come back to, but not by much. */
let counters = new Map<string, Counter>();

function show(streams: Stream[], rest: Omit<Listing, 'rows'>) {
  const kept = new Map<string, Counter>();
  const rows = streams.map((stream) => {
    const key = keyOf(stream);
    const counter = counters.get(key) ?? new Counter();
    counter.read(sequenceOf(stream.head));
    kept.set(key, counter);
    return { stream, counter };
  });
  counters = kept;
  batch(() => {
    listing.value = { rows, ...rest };
    listingFault.value = '';
  });
}

/** Asks for what is shown, once. */
export type Ask = (signal: AbortSignal) => Promise<void>;

function telling(ask: Ask): Ask {
  return async (aborted) => {
    try {
      await ask(aborted);
    } catch (err) {
      if (!aborted.aborted) {
        listingFault.value = messageOf(err);
      }
    }
  };
}

/** One page, of all streams or of those of a channel. */
export function pageOf(channel: string, pageToken: string): Ask {
  return telling(async (aborted) => {
    const page = await listStreams({ channel, size: pageSize, token: pageToken }, aborted);
    if (!aborted.aborted) {
      show(page.streams, { next: page.next, more: false, searched: 0 });
    }
  });
}

/**
 * Streams whose channel or scope has a text in it. The names are read once; then those
 * that are shown are asked for one by one.
 */
export function matchesOf(text: string): Ask {
  const wanted = text.toLowerCase();
  let found: Stream[] | undefined;
  let more = false;
  let searched = 0;

  const search = async (aborted: AbortSignal) => {
    const matches: Stream[] = [];
    let pageToken = '';
    for (let pages = 0; pages < searchedPages; pages++) {
      const page = await listStreams({ size: largestPage, token: pageToken }, aborted);
      searched += page.streams.length;
      matches.push(...page.streams.filter((s) => matchesText(s, wanted)));
      pageToken = page.next;
      if (pageToken === '' || matches.length > shownMatches) {
        break;
      }
    }
    more = pageToken !== '' || matches.length > shownMatches;
    found = matches.slice(0, shownMatches);
  };

  return telling(async (aborted) => {
    if (!found) {
      searched = 0;
      await search(aborted);
    } else {
      found = await again(found, aborted);
    }
    if (!aborted.aborted) {
      show(found!, { next: '', more, searched });
    }
  });
}

function matchesText(s: Stream, wanted: string): boolean {
  return s.channel.toLowerCase().includes(wanted) || (s.scope ?? '').toLowerCase().includes(wanted);
}

/** Asks for streams anew, a few at a time, without those that are gone. */
async function again(streams: Stream[], aborted: AbortSignal): Promise<Stream[]> {
  const out: (Stream | undefined)[] = new Array(streams.length);
  let next = 0;
  const work = async () => {
    for (let i = next++; i < streams.length; i = next++) {
      out[i] = await getStream(nameOf(streams[i]!), aborted).catch((err: unknown) => {
        if (err instanceof ApiError && err.status === 404) {
          return undefined;
        }
        throw err;
      });
    }
  };
  await Promise.all([work(), work(), work()]);
  return out.filter((s) => s !== undefined);
}
