package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Names, payloads and messages come from whoever may publish. On a terminal
// their control characters could move the cursor, change its settings or forge
// output, so they are shown as what they are: \x1b, \u009b, \r. Pipes and files
// get the bytes.

// clean makes a name or a message fit for one line of the output.
func (d display) clean(text string) string {
	if !d.terminal {
		return text
	}
	return visible(text, "")
}

// cleanPayload is clean for text of several lines.
func (d display) cleanPayload(payload []byte) []byte {
	if !d.terminal {
		return payload
	}
	return []byte(visible(string(payload), "\n\t"))
}

// jsonLines writes objects to w. Of what JSON leaves unescaped, a terminal gets
// as escapes of JSON what it might act on: the objects stay the same.
func (d display) jsonLines(w io.Writer) jsonLines {
	if d.terminal {
		w = jsonEscaper{w}
	}
	return newJSONLines(w)
}

// jsonEscaper writes whole lines of JSON.
type jsonEscaper struct{ w io.Writer }

func (e jsonEscaper) Write(line []byte) (int, error) {
	var out strings.Builder
	for _, r := range string(line) {
		if r != '\n' && acts(r) {
			fmt.Fprintf(&out, `\u%04x`, r)
		} else {
			out.WriteRune(r)
		}
	}
	if _, err := io.WriteString(e.w, out.String()); err != nil {
		return 0, err
	}
	return len(line), nil
}

// visible escapes what a terminal would act on, except for the characters in
// keep, and bytes that are no UTF-8: some terminals take them for controls.
func visible(text, keep string) string {
	var out strings.Builder
	for i, size := 0, 0; i < len(text); i += size {
		var r rune
		r, size = utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&out, `\x%02x`, text[i])
		case !acts(r) || strings.ContainsRune(keep, r):
			out.WriteRune(r)
		case r == '\n':
			out.WriteString(`\n`)
		case r == '\r':
			out.WriteString(`\r`)
		case r == '\t':
			out.WriteString(`\t`)
		case r < utf8.RuneSelf:
			fmt.Fprintf(&out, `\x%02x`, r)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.String()
}

// acts reports whether a terminal may do anything else with r than to show it
// where the cursor is: the controls C0, DEL and C1, and those that change the
// direction of writing, by which a text reads as another.
func acts(r rune) bool {
	switch {
	case r < 0x20, r >= 0x7f && r <= 0x9f:
		return true
	case r == '\u061c', r == '\u200e', r == '\u200f':
		return true
	case r >= '\u202a' && r <= '\u202e', r >= '\u2066' && r <= '\u2069':
		return true
	}
	return false
}
