import { create, type MessageInitShape } from '@bufbuild/protobuf';

import { SubscribeResponseSchema, type SubscribeRequest, type SubscribeResponse } from '../src/gen/fanfare/v1/fanfare_pb.js';
import type { Event } from '../src/events.js';
import { FanfareError } from '../src/errors.js';
import { Position } from '../src/position.js';
import { Subscription, type SubscribeOptions } from '../src/subscription.js';

/** What a call of the fake server does: it sends these, or throws. */
export type Step = SubscribeResponse | Error | 'wait';

/** A server whose calls are written down before. */
export class Fake {
  readonly requests: SubscribeRequest[] = [];
  readonly signals: AbortSignal[] = [];
  /** Errors that another token mends. */
  renews: (error: FanfareError) => boolean = () => false;
  /** Responses that were taken. */
  taken = 0;
  readonly #calls: Step[][];

  constructor(...calls: Step[][]) {
    this.#calls = calls;
  }

  /** A subscription to it that does not wait before it resumes. */
  subscribe(options: Partial<SubscribeOptions> = {}, max = 0): Subscription {
    return new Subscription({ channel: 'c', scope: 's', ...options }, {
      open: (request, signal) => this.#open(request, signal),
      renews: (error) => this.renews(error),
      backoff: { min: 0, max },
      began: () => {},
      ended: () => {},
    });
  }

  /** The starts of all calls, as text. */
  get starts(): string[] {
    return this.requests.map(({ start }) => {
      const { case: name, value } = start;
      return typeof value === 'object' ? `${name} ${value.epoch}-${value.sequence}` : `${name} ${value}`;
    });
  }

  async *#open(request: SubscribeRequest, signal: AbortSignal): AsyncGenerator<SubscribeResponse> {
    const steps = this.#calls[this.requests.length];
    this.requests.push(request);
    this.signals.push(signal);
    if (steps === undefined) {
      throw new FanfareError('UNIMPLEMENTED', `call ${this.requests.length} was not expected`);
    }
    for (const step of steps) {
      if (step === 'wait') {
        await new Promise((_, reject) => signal.addEventListener('abort', () => reject(new Error('cancelled'))));
      } else if (step instanceof Error) {
        throw step;
      } else {
        this.taken++;
        yield step;
      }
    }
  }
}

export function at(text: string): { epoch: bigint; sequence: bigint } {
  const { epoch, sequence } = Position.parse(text);
  return { epoch, sequence };
}

export function frames(...positions: string[]): SubscribeResponse {
  return create(SubscribeResponseSchema, {
    frames: positions.map((position) => (position === 'ephemeral' ? { ephemeral: true } : { position: at(position) })),
  });
}

export function notice(value: MessageInitShape<typeof SubscribeResponseSchema>['notice']): SubscribeResponse {
  return create(SubscribeResponseSchema, { notice: value! });
}

export function subscribed(resumeAfter: string, head = resumeAfter, resumed = false): SubscribeResponse {
  return notice({ case: 'subscribed', value: { head: at(head), oldest: 1n, resumeAfter: at(resumeAfter), resumed } });
}

export function caughtUp(position: string): SubscribeResponse {
  return notice({ case: 'caughtUp', value: { position: at(position) } });
}

export function progress(position: string): SubscribeResponse {
  return notice({ case: 'progress', value: { position: at(position) } });
}

export function closed(last: string): SubscribeResponse {
  return notice({ case: 'closed', value: { last: at(last) } });
}

export function gap(requested: string, resumeAfter: string, reason: number): SubscribeResponse {
  return notice({ case: 'gap', value: { reason, requested: at(requested), oldest: 1n, head: at(resumeAfter), resumeAfter: at(resumeAfter) } });
}

/** An event in a few words. */
export function told(event: Event): string {
  switch (event.type) {
    case 'frame':
      return event.ephemeral ? 'ephemeral' : String(event.position);
    case 'subscribed':
      return `subscribed after ${event.resumeAfter}${event.resumed ? ', resumed' : ''}`;
    case 'caughtUp':
      return `caught up at ${event.position}`;
    case 'gap':
      return `gap ${event.reason} ${event.requested} ${event.resumeAfter}`;
    case 'status':
      return event.listening ? 'listening' : 'not listening';
    case 'closed':
      return `closed at ${event.last}`;
    case 'interrupted':
      return `interrupted ${event.error.code} ${event.error.reason}`.trimEnd();
  }
}

/** Everything that a subscription brings to its end. */
export async function all(events: AsyncIterable<Event>): Promise<string[]> {
  const got: string[] = [];
  for await (const event of events) {
    got.push(told(event));
  }
  return got;
}
