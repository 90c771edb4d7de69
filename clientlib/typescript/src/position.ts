const limit = 1n << 63n;

/**
 * A place in a stream. As a starting point it is exclusive: delivery begins with
 * the frame after it.
 *
 * Compare positions for equality only, and store them as text:
 * `position.toString()`, `Position.parse(text)`. Both numbers are below 2^63,
 * which is why they are bigints.
 */
export class Position {
  /** Before the first frame of a stream that has never existed. */
  static readonly zero = new Position(0n, 0n);

  /**
   * Identity of one numbering of the stream, and of the run of the server that
   * the frame was stored in. It may change from one frame to the next.
   */
  readonly epoch: bigint;
  /** The frame's number in the stream, from 1; 0 is before the first frame. */
  readonly sequence: bigint;

  /** @throws RangeError if a number is negative or not below 2^63. */
  constructor(epoch: bigint, sequence: bigint) {
    for (const part of [epoch, sequence]) {
      if (part < 0n || part >= limit) {
        throw new RangeError(`${part} is outside the numbers of a position, 0 to 2^63-1`);
      }
    }
    this.epoch = epoch;
    this.sequence = sequence;
  }

  /**
   * Reads the text form, EPOCH-SEQUENCE.
   *
   * @throws SyntaxError if the text is none.
   */
  static parse(text: string): Position {
    const parts = /^(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})$/.exec(text);
    if (!parts) {
      throw new SyntaxError(`${JSON.stringify(text)} is no position: EPOCH-SEQUENCE is needed, both decimal`);
    }
    return new Position(BigInt(parts[1]!), BigInt(parts[2]!));
  }

  /** Whether both are the same place. */
  equals(other: Position): boolean {
    return this.epoch === other.epoch && this.sequence === other.sequence;
  }

  /** The text form, EPOCH-SEQUENCE. */
  toString(): string {
    return `${this.epoch}-${this.sequence}`;
  }

  /** The text form, since JSON has no bigint. */
  toJSON(): string {
    return this.toString();
  }
}
