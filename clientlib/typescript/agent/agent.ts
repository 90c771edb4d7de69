// The conformance agent: it does what the runner says, one JSON object a line, with
// the client's public interface alone. clientlib/conformance describes the lines.
import { createInterface } from 'node:readline';

import { Client, FanfareError, Position, type Event, type NewFrame, type Published, type Start, type Subscription } from '@fanfare/client';

interface FrameCommand {
  channel: string;
  scope: string;
  payload: string;
  content_type?: string;
  event_type?: string;
  headers?: Record<string, string>;
  idempotency_key?: string;
  expected_sequence?: string;
  ephemeral?: boolean;
}

interface Command extends FrameCommand {
  op: string;
  id: string;
  targets: string[];
  tokens?: boolean | string[];
  frames: FrameCommand[];
  start: { oldest?: boolean; live?: boolean; after?: string; last?: string };
}

let client: Client | undefined;
/** Those that the source of the client has left. */
let tokens: string[] = [];
const subscriptions = new Map<string, Subscription>();

for await (const line of createInterface({ input: process.stdin })) {
  if (line.trim() === '') {
    continue;
  }
  const command = JSON.parse(line) as Command;
  if (command.op === 'quit') {
    break;
  }
  // Commands run side by side: one that waits for a server holds up no other.
  run(command).catch((error: unknown) => report('error', command.id, failure(error)));
}
client?.close();
process.exit(0);

async function run(command: Command): Promise<void> {
  switch (command.op) {
    case 'connect':
      client = new Client({
        targets: command.targets,
        channelOptions: { 'grpc.enable_http_proxy': 0 },
        ...(command.tokens && { token }),
      });
      report('connected', undefined, { language: 'typescript', features: [] });
      break;
    case 'tokens':
      tokens = command.tokens as string[];
      break;
    case 'publish':
      report('published', command.id, result(await connected().publish(frameOf(command))));
      break;
    case 'publish_batch': {
      const results = await connected().publishBatch(command.frames.map(frameOf));
      report('published_batch', command.id, { results: results.map(result) });
      break;
    }
    case 'subscribe':
      await follow(command);
      break;
    case 'unsubscribe':
      await subscriptions.get(command.id)?.close();
      break;
    default:
      report('error', command.id, { code: 'UNIMPLEMENTED', reason: '' });
  }
}

/** The next token if that is wanted and there is one. */
function token(refresh: boolean): string {
  if (refresh && tokens.length > 1) {
    tokens.shift();
  }
  return tokens[0]!;
}

function connected(): Client {
  if (client === undefined) {
    throw new FanfareError('FAILED_PRECONDITION', 'connect comes first');
  }
  return client;
}

async function follow({ id, channel, scope, start }: Command): Promise<void> {
  const subscription = connected().subscribe({ channel, scope, start: startOf(start) });
  subscriptions.set(id, subscription);
  for await (const event of subscription) {
    const { name, ...fields } = described(event);
    report(name, id, fields);
  }
  report('ended', id, {});
}

function described(event: Event): Record<string, unknown> & { name: string } {
  switch (event.type) {
    case 'frame':
      return {
        name: 'frame',
        position: event.position ?? null,
        payload: Buffer.from(event.payload).toString('base64'),
        content_type: event.contentType,
        event_type: event.eventType,
        headers: event.headers,
        ephemeral: event.ephemeral,
      };
    case 'subscribed':
      return { name: 'subscribed', head: event.head, oldest: String(event.oldest), resume_after: event.resumeAfter, resumed: event.resumed };
    case 'caughtUp':
      return { name: 'caught_up', position: event.position };
    case 'gap':
      return { name: 'gap', reason: event.reason, requested: event.requested, oldest: String(event.oldest), head: event.head, resume_after: event.resumeAfter };
    case 'status':
      return { name: 'status', listening: event.listening };
    case 'closed':
      return { name: 'closed', last: event.last };
    case 'interrupted':
      console.error(`${event.error.code} ${event.error.reason}: ${event.error.message}; again in ${Math.round(event.retryIn)} ms`);
      return { name: 'interrupted' };
  }
}

function frameOf(command: FrameCommand): NewFrame {
  return {
    channel: command.channel,
    scope: command.scope,
    payload: Buffer.from(command.payload ?? '', 'base64'),
    contentType: command.content_type,
    eventType: command.event_type,
    headers: command.headers,
    idempotencyKey: command.idempotency_key || undefined,
    expected: command.expected_sequence === undefined ? undefined : { sequence: BigInt(command.expected_sequence) },
    ephemeral: command.ephemeral,
  };
}

function startOf(start: Command['start']): Start {
  if (start.after !== undefined) {
    return { after: Position.parse(start.after) };
  }
  if (start.last !== undefined) {
    return { last: BigInt(start.last) };
  }
  return start.live ? 'live' : 'oldest';
}

function result({ position, duplicate }: Published): Record<string, unknown> {
  return { position: position ?? null, duplicate };
}

function failure(error: unknown): Record<string, unknown> {
  console.error(error);
  return error instanceof FanfareError ? { code: error.code, reason: error.reason } : { code: 'INTERNAL', reason: '' };
}

function report(event: string, id: string | undefined, fields: Record<string, unknown>): void {
  process.stdout.write(`${JSON.stringify({ event, id, ...fields })}\n`);
}
