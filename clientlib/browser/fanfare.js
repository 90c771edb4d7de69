// Fanfare's client for web pages. The manual is README.md beside this file, the types
// are in fanfare.d.ts.

/**
 * Reads text/event-stream as the WHATWG's HTML standard says ("Interpreting an event
 * stream"), from chunks that may end anywhere: within a character, within CRLF, within
 * a byte-order mark.
 */
export class EventStreamParser {
  // Decodes what is not UTF-8 to U+FFFD, and drops one leading byte-order mark.
  #decoder = new TextDecoder();
  #afterCR = false;
  // The parts of a line whose end has not come. Chunks are not joined before: a line
  // of a megabyte would be copied for each.
  #line = [];
  #data = [];
  #type = '';
  #id;
  #on;

  /**
   * @param {object} on
   * @param {(event: {type: string, data: string, lastEventId: string}) => void} on.event
   *   called for each event
   * @param {(id: string) => void} [on.id] called at the end of each block when it, or
   *   one before it, has set the last event id, before its event
   * @param {(milliseconds: number) => void} [on.retry] called for each retry field
   * @param {string} [lastEventId] what a connection before this one has set
   */
  constructor(on, lastEventId = '') {
    this.#on = on;
    this.#id = lastEventId;
  }

  /** @param {Uint8Array} bytes */
  push(bytes) {
    const text = this.#decoder.decode(bytes, { stream: true });
    let from = 0;
    if (this.#afterCR && text !== '') {
      this.#afterCR = false;
      from = text[0] === '\n' ? 1 : 0;
    }
    const ends = /\r\n?|\n/g;
    ends.lastIndex = from;
    for (let end = ends.exec(text); end; end = ends.exec(text)) {
      this.#line.push(text.slice(from, end.index));
      from = ends.lastIndex;
      // Whether a line feed follows is seen in the next chunk; the line ends now.
      this.#afterCR = end[0] === '\r' && from === text.length;
      const line = this.#line.join('');
      this.#line = [];
      this.#take(line);
    }
    if (from < text.length) {
      this.#line.push(text.slice(from));
    }
  }

  #take(line) {
    if (line === '') {
      this.#dispatch();
      return;
    }
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1);
    switch (field) {
      case 'event':
        this.#type = value;
        break;
      case 'data':
        this.#data.push(value);
        break;
      case 'id':
        if (!value.includes('\0')) {
          this.#id = value;
        }
        break;
      case 'retry':
        if (/^[0-9]+$/.test(value)) {
          this.#on.retry?.(Number(value));
        }
        break;
    }
  }

  #dispatch() {
    const [type, data] = [this.#type || 'message', this.#data];
    this.#type = '';
    this.#data = [];
    this.#on.id?.(this.#id);
    if (data.length > 0) {
      this.#on.event({ type, data: data.join('\n'), lastEventId: this.#id });
    }
  }
}
