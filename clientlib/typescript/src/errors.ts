import { BinaryReader } from '@bufbuild/protobuf/wire';
import { status, type ServiceError } from '@grpc/grpc-js';

import { Position } from './position.js';
import type { ErrorReason } from './gen/fanfare/v1/fanfare_pb.js';

/** The name of a canonical gRPC status code. */
export type Code = Exclude<keyof typeof status, 'OK'>;

/**
 * Why a server refused something: a name of the protocol's `ErrorReason`. Empty
 * if no Fanfare server said why, as for an error of the transport. Servers of
 * newer versions may have others.
 */
export type Reason = Exclude<keyof typeof ErrorReason, 'UNSPECIFIED'> | '' | (string & {});

/** What a {@link FanfareError} says beside its message. */
export interface ErrorDetails {
  /** Why; see {@link Reason}. Default: empty. */
  reason?: Reason | undefined;
  /** The field outside its limit. */
  field?: string | undefined;
  /** Milliseconds to wait before a retry, if retrying helps. */
  retryIn?: number | undefined;
  /** What else the server told. */
  metadata?: Readonly<Record<string, string>> | undefined;
  /** The error that this one comes from. */
  cause?: unknown;
}

/** An error of a call. */
export class FanfareError extends Error {
  /** The canonical status code, such as `'ABORTED'`. */
  readonly code: Code;
  /** Why, such as `'EXPECTATION_FAILED'`; see {@link Reason}. */
  readonly reason: Reason;
  /** The field outside its limit, such as `'frames[3].payload'`, if one is. */
  readonly field: string | undefined;
  /** Milliseconds that the server asks to wait before a retry, if retrying helps. */
  readonly retryIn: number | undefined;
  /**
   * What else the server told, such as `head`, the stream's position, with
   * `EXPECTATION_FAILED`.
   */
  readonly metadata: Readonly<Record<string, string>>;

  constructor(code: Code, message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.code = code;
    this.reason = details.reason ?? '';
    this.field = details.field;
    this.retryIn = details.retryIn;
    this.metadata = details.metadata ?? {};
  }

  /**
   * The position that the error speaks of, if any: the stream's head with
   * `EXPECTATION_FAILED`, what is stored under the key with `KEY_CONFLICT`.
   */
  get position(): Position | undefined {
    const text = this.metadata.head ?? this.metadata.position;
    try {
      return text === undefined ? undefined : Position.parse(text);
    } catch {
      return undefined;
    }
  }
}
// On the prototype: a property of each instance would be printed with its fields.
Object.defineProperty(FanfareError.prototype, 'name', { value: 'FanfareError', configurable: true, writable: true });

// Half of a surrogate pair alone is no text: encoders put U+FFFD in its place.
const notText = /\p{Surrogate}/u;

/** @throws FanfareError if a text cannot be sent as it is. */
export function checkText(field: string, text: string | undefined): void {
  if (text !== undefined && notText.test(text)) {
    throw invalidField(field, 'is not valid Unicode');
  }
}

/** The error of a field that the server would refuse if it could be sent. */
export function invalidField(field: string, message: string): FanfareError {
  return new FanfareError('INVALID_ARGUMENT', `${field} ${message}`, { reason: 'INVALID_FIELD', field });
}

/** Makes a FanfareError of whatever a call threw. */
export function errorOf(thrown: unknown): FanfareError {
  if (thrown instanceof FanfareError) {
    return thrown;
  }
  if (!isServiceError(thrown)) {
    return new FanfareError('INTERNAL', thrown instanceof Error ? thrown.message : String(thrown), { cause: thrown });
  }
  const code = (status[thrown.code] ?? 'UNKNOWN') as Code;
  return new FanfareError(code, thrown.details, { ...detailsOf(thrown), cause: thrown });
}

function isServiceError(thrown: unknown): thrown is ServiceError {
  return thrown instanceof Error && typeof (thrown as ServiceError).code === 'number' && 'metadata' in thrown;
}

function detailsOf(error: ServiceError): ErrorDetails {
  const [encoded] = error.metadata.get('grpc-status-details-bin');
  if (!(encoded instanceof Uint8Array)) {
    return {};
  }
  try {
    return decodeStatus(encoded);
  } catch {
    return {}; // not a google.rpc.Status: of some proxy, which has said what it can by the code
  }
}

const typePrefix = 'type.googleapis.com/google.rpc.';

// The four messages of google.rpc that statuses carry are read by hand: no
// package on npm has them without a second protobuf runtime.

function decodeStatus(encoded: Uint8Array): ErrorDetails {
  const details: ErrorDetails = {};
  for (const any of messages(encoded, 3)) {
    const value = messages(any, 2)[0] ?? new Uint8Array();
    switch (strings(any, 1)[0]) {
      case `${typePrefix}ErrorInfo`:
        decodeErrorInfo(value, details);
        break;
      case `${typePrefix}RetryInfo`:
        details.retryIn = milliseconds(messages(value, 1)[0] ?? new Uint8Array());
        break;
      case `${typePrefix}BadRequest`:
        details.field = messages(value, 1).flatMap((violation) => strings(violation, 1))[0];
        break;
    }
  }
  return details;
}

function decodeErrorInfo(encoded: Uint8Array, details: ErrorDetails): void {
  if (strings(encoded, 2)[0] !== 'fanfare.dev') {
    return; // a reason of somebody else's, with a meaning of its own
  }
  details.reason = strings(encoded, 1)[0] ?? '';
  details.metadata = Object.fromEntries(
    messages(encoded, 3).map((entry) => [strings(entry, 1)[0] ?? '', strings(entry, 2)[0] ?? '']),
  );
}

/** The milliseconds of a google.protobuf.Duration, rounded up. */
function milliseconds(encoded: Uint8Array): number {
  let total = 0;
  eachField(encoded, (field, reader) => {
    switch (field) {
      case 1:
        total += Number(reader.int64()) * 1000;
        return true;
      case 2:
        total += reader.int32() / 1e6;
        return true;
      default:
        return false;
    }
  });
  return Math.ceil(total);
}

/** The values of a length-delimited field. */
function messages(encoded: Uint8Array, wanted: number): Uint8Array[] {
  const values: Uint8Array[] = [];
  eachField(encoded, (field, reader) => {
    if (field !== wanted) {
      return false;
    }
    values.push(reader.bytes());
    return true;
  });
  return values;
}

function strings(encoded: Uint8Array, wanted: number): string[] {
  const decoder = new TextDecoder();
  return messages(encoded, wanted).map((value) => decoder.decode(value));
}

/** Calls take for each field; what it does not take is skipped. */
function eachField(encoded: Uint8Array, take: (field: number, reader: BinaryReader) => boolean): void {
  const reader = new BinaryReader(encoded);
  while (reader.pos < reader.len) {
    const [field, wireType] = reader.tag();
    if (!take(field, reader)) {
      reader.skip(wireType, field);
    }
  }
}
