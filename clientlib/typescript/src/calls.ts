import { fromBinary, toBinary, type DescMessage, type DescMethodServerStreaming, type DescMethodUnary, type MessageShape } from '@bufbuild/protobuf';
import type { Client, Metadata, ServiceError } from '@grpc/grpc-js';

import { errorOf, FanfareError } from './errors.js';
import { longestTimer } from './retry.js';
import { onAbort } from './signals.js';

// How long what has come may take to be read.
const readingMilliseconds = 1_000;

const unchanged = (bytes: Buffer): Buffer => bytes;

/** Encodes a request. What cannot be encoded is INVALID_ARGUMENT. */
export function encode<I extends DescMessage>(schema: I, request: MessageShape<I>): Buffer {
  try {
    const bytes = toBinary(schema, request);
    return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  } catch (cause) {
    throw new FanfareError('INVALID_ARGUMENT', cause instanceof Error ? cause.message : String(cause), { cause });
  }
}

/** Decodes a response, whose bytes fields are views of it. */
function decode<O extends DescMessage>(schema: O, bytes: Buffer): MessageShape<O> {
  // Not as a Buffer: its parts would be Buffers, too, whose slice is no copy.
  return fromBinary(schema, new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength));
}

function pathOf(method: { parent: { typeName: string }; name: string }): string {
  return `/${method.parent.typeName}/${method.name}`;
}

/** What every call is made with. */
export interface CallOptions {
  metadata: Metadata;
  /** Cancels the call when it is aborted. */
  signal: AbortSignal;
}

/**
 * Makes a call with one response, which may take so many milliseconds. It rejects with
 * a FanfareError.
 */
export function callUnary<I extends DescMessage, O extends DescMessage>(
  client: Client,
  method: DescMethodUnary<I, O>,
  request: Buffer,
  { metadata, signal }: CallOptions,
  timeout: number,
): Promise<MessageShape<O>> {
  return new Promise((resolve, reject) => {
    const done = (error: ServiceError | null, response?: MessageShape<O>) => {
      forget();
      if (error) {
        reject(errorOf(error));
      } else {
        resolve(response!);
      }
    };
    const call = client.makeUnaryRequest(
      pathOf(method), unchanged, (bytes: Buffer) => decode(method.output, bytes), request, metadata,
      timeout === Infinity ? {} : { deadline: Date.now() + timeout }, done);
    const forget = onAbort(signal, () => call.cancel());
  });
}

/**
 * Makes a call with many responses, which are read as they are taken: a few
 * messages wait here, the rest in the server. It throws a FanfareError, also where
 * nothing came for so long that the way to the server must be broken: servers send
 * heartbeats.
 */
export async function* callServerStreaming<I extends DescMessage, O extends DescMessage>(
  client: Client,
  method: DescMethodServerStreaming<I, O>,
  request: Buffer,
  { metadata, signal }: CallOptions,
  idleTimeout: number,
): AsyncGenerator<MessageShape<O>, void, undefined> {
  const call = client.makeServerStreamRequest<Buffer, MessageShape<O>>(
    pathOf(method), unchanged, (bytes) => decode(method.output, bytes), request, metadata);
  const cancel = () => call.cancel();
  // The iterator throws errors while it is read. One that comes afterwards, of the
  // cancellation, would have no listener and end the process.
  call.on('error', () => {});
  const forget = onAbort(signal, cancel);
  let idle = false;
  try {
    const responses = call[Symbol.asyncIterator]() as AsyncIterator<MessageShape<O>>;
    for (;;) {
      let timer = setTimeout(() => {
        // The process may have been busy, or stopped, and what came not been read.
        timer = setTimeout(() => {
          idle = true;
          cancel();
        }, readingMilliseconds);
      }, Math.min(idleTimeout, longestTimer));
      const result = await responses.next().finally(() => clearTimeout(timer));
      if (result.done) {
        return;
      }
      yield result.value;
    }
  } catch (thrown) {
    throw idle ? new FanfareError('UNAVAILABLE', `nothing came from the server for ${idleTimeout} ms`) : errorOf(thrown);
  } finally {
    forget();
    cancel();
  }
}
