// fanfare.js is beside the console at every server, the same for all pages, and is
// therefore not bundled.
import type * as fanfare from '../../../../../../clientlib/browser/fanfare.js';
import { base } from './api';

export type {
  Frame,
  Subscription,
  SubscribeOptions,
  SubscriptionStatus,
} from '../../../../../../clientlib/browser/fanfare.js';

let loading: Promise<typeof fanfare> | undefined;

/** Loads it, once; after a failure the next call tries again. */
export function loadFanfare(): Promise<typeof fanfare> {
  loading ??= (import(new URL('fanfare.js', base).href) as Promise<typeof fanfare>).catch((err: unknown) => {
    loading = undefined;
    throw err;
  });
  return loading;
}
