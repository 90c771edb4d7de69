// A frame's bytes as text, if they are text.

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** What is shown of a payload at most, in characters or bytes. */
const shownLimit = 64 << 10;
const previewLimit = 240;

export interface Shown {
  text: string;
  /** The payload is not UTF-8: text has its bytes in hexadecimal. */
  binary: boolean;
  /** There is more than text has. */
  cut: boolean;
}

export function preview(payload: Uint8Array): Shown {
  return show(payload, previewLimit);
}

export function full(payload: Uint8Array, contentType: string): Shown {
  const shown = show(payload, shownLimit);
  if (!shown.binary && !shown.cut && (contentType.includes('json') || /^\s*[[{]/.test(shown.text))) {
    return { ...shown, text: indentJSON(shown.text) };
  }
  return shown;
}

function show(payload: Uint8Array, limit: number): Shown {
  // A cut within a character is no reason to take a text for bytes.
  const cut = payload.length > limit;
  let end = Math.min(limit, payload.length);
  for (let back = 0; cut && back < 3 && (payload[end]! & 0xc0) === 0x80; back++) {
    end--;
  }
  try {
    return { text: decoder.decode(payload.subarray(0, end)), binary: false, cut };
  } catch {
    return { text: hex(payload.subarray(0, Math.ceil(limit / 3))), binary: true, cut: payload.length > limit / 3 };
  }
}

function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (b) => b.toString(16).padStart(2, '0')).join(' ');
}

/** Indents JSON without reading its numbers, which may be greater than JavaScript's. */
export function indentJSON(text: string): string {
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  let out = '';
  let depth = 0;
  const line = () => '\n' + '  '.repeat(depth);
  for (const [piece] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    switch (piece) {
      case '{':
      case '[':
        depth++;
        out += piece + line();
        break;
      case '}':
      case ']':
        depth--;
        out = /[{[]\s*$/.test(out) ? out.trimEnd() + piece : out + line() + piece;
        break;
      case ',':
        out += piece + line();
        break;
      case ':':
        out += ': ';
        break;
      default:
        out += piece;
    }
  }
  return out;
}

export function toBase64(bytes: Uint8Array): string {
  let binary = '';
  // A call has a limit on its arguments.
  for (let from = 0; from < bytes.length; from += 0x8000) {
    binary += String.fromCharCode(...bytes.subarray(from, from + 0x8000));
  }
  return btoa(binary);
}
