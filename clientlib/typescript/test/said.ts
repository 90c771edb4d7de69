import type { TestContext } from 'node:test';

import { create } from '@bufbuild/protobuf';
import { fanfareServiceDefinition, PublishResponseSchema, type PublishRequest, type PublishResponse, type SubscribeRequest, type SubscribeResponse } from '@fanfare/client/protocol';
import { Server, ServerCredentials, type sendUnaryData, type ServerUnaryCall, type ServerWritableStream } from '@grpc/grpc-js';

export type Subscribing = ServerWritableStream<SubscribeRequest, SubscribeResponse>;
export type Publishing = ServerUnaryCall<PublishRequest, PublishResponse>;

/** What a server says that no Fanfare server would. */
export interface Said {
  subscribe?(call: Subscribing): void;
  publish?(call: Publishing, done: sendUnaryData<PublishResponse>): void;
}

/** Serves until the test ends, and returns the address. */
export async function serve(t: TestContext, said: Said): Promise<string> {
  const server = new Server();
  server.addService(fanfareServiceDefinition, { ...said });
  t.after(() => server.forceShutdown());
  return new Promise((resolve, reject) => {
    server.bindAsync('127.0.0.1:0', ServerCredentials.createInsecure(), (error, port) =>
      error ? reject(error) : resolve(`127.0.0.1:${port}`));
  });
}

/** Answers a publish. */
export function answer(_: Publishing, done: sendUnaryData<PublishResponse>): void {
  done(null, create(PublishResponseSchema, { position: { epoch: 7n, sequence: 1n } }));
}
