// Names and payloads come from whoever may publish. What could make a text read as
// another, or hide in it, is shown as an escape: controls, what changes the direction
// of writing, and what has no width.

/** A stretch of text, or a character that is shown as an escape. */
export interface Part {
  text: string;
  escaped: boolean;
}

const acts =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]|[\ud800-\udfff]/gu;

export function parts(text: string, keep = ''): Part[] {
  const out: Part[] = [];
  let from = 0;
  for (const match of text.matchAll(acts)) {
    if (keep.includes(match[0])) {
      continue;
    }
    if (match.index > from) {
      out.push({ text: text.slice(from, match.index), escaped: false });
    }
    out.push({ text: escape(match[0]), escaped: true });
    from = match.index + match[0].length;
  }
  if (from < text.length) {
    out.push({ text: text.slice(from), escaped: false });
  }
  return out;
}

/** A name, in which spaces at its ends, which nobody would see, are escapes, too. */
export function nameParts(name: string): Part[] {
  const begins = name.length - name.trimStart().length;
  const ends = Math.max(begins, name.trimEnd().length);
  const escapes = (text: string) => Array.from(text, (c) => ({ text: escape(c), escaped: true }));
  return [...escapes(name.slice(0, begins)), ...parts(name.slice(begins, ends)), ...escapes(name.slice(ends))];
}

/** The same as one text, for titles and what is read aloud. */
export function plain(text: string): string {
  return parts(text)
    .map((p) => p.text)
    .join('');
}

function escape(character: string): string {
  switch (character) {
    case '\n':
      return '\\n';
    case '\r':
      return '\\r';
    case '\t':
      return '\\t';
  }
  const code = character.codePointAt(0)!.toString(16);
  return code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, '0')}`;
}
