/**
 * The protocol's own messages, and its service for `@grpc/grpc-js`, for the calls
 * that {@link Client} does not have.
 *
 * ```ts
 * const Stub = makeGenericClientConstructor(fanfareServiceDefinition, 'FanfareService');
 * ```
 *
 * @packageDocumentation
 */
import { fromBinary, toBinary, type DescMessage } from '@bufbuild/protobuf';
import type { MethodDefinition, ServiceDefinition } from '@grpc/grpc-js';

import { FanfareService } from './gen/fanfare/v1/fanfare_pb.js';

export * from './gen/fanfare/v1/fanfare_pb.js';

/** Every call of FanfareService, as `@grpc/grpc-js` defines services. */
export const fanfareServiceDefinition: ServiceDefinition = Object.fromEntries(
  FanfareService.methods.map((method): [string, MethodDefinition<any, any>] => [
    method.localName,
    {
      path: `/${FanfareService.typeName}/${method.name}`,
      requestStream: method.methodKind === 'client_streaming' || method.methodKind === 'bidi_streaming',
      responseStream: method.methodKind === 'server_streaming' || method.methodKind === 'bidi_streaming',
      requestSerialize: serializer(method.input),
      requestDeserialize: deserializer(method.input),
      responseSerialize: serializer(method.output),
      responseDeserialize: deserializer(method.output),
    },
  ]),
);

function serializer(schema: DescMessage) {
  return (message: any): Buffer => Buffer.from(toBinary(schema, message));
}

function deserializer(schema: DescMessage) {
  return (bytes: Buffer) => fromBinary(schema, new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength));
}
