package sse_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// errEnded is the end of an event stream that ended in order.
var errEnded = errors.New("the stream has ended")

// event is what a browser dispatches.
type event struct {
	kind, data, id string
}

// parser reads an event stream by the rules of the HTML standard, section 9.2.6, and
// nothing else. What a server must not send, though browsers bear it, is an error: a line
// that is no field, a field that does not exist, an end within a block, bytes that are
// not UTF-8, and an id in an event that is no frame: it has none.
type parser struct {
	source io.Reader
	// rest is read and not parsed; begun is true after the first bytes, of which a byte
	// order mark is dropped.
	rest  []byte
	begun bool
	err   error
	// searched is how much of rest has no line end.
	searched int

	data, kind  strings.Builder
	idBuffer    string
	lastEventID string
	retry       time.Duration
	// blocks counts those that dispatched nothing, comments the lines that are one.
	blocks, comments int
	// unfinished is true within a block.
	unfinished bool
	// named is true if the block has an id.
	named bool
}

func newParser(source io.Reader) *parser { return &parser{source: source} }

// next returns the next event that a browser would dispatch.
func (p *parser) next() (event, error) {
	for {
		if e, dispatched, err := p.block(); dispatched || err != nil {
			return e, err
		}
	}
}

// block reads the next block, which dispatches an event or only moves the id.
func (p *parser) block() (e event, dispatched bool, err error) {
	for {
		line, err := p.line()
		if err != nil {
			return event{}, false, err
		}
		if line == "" {
			p.unfinished = false
			e, dispatched = p.dispatch()
			if p.named && dispatched && strings.HasPrefix(e.kind, "fanfare.") && e.kind != "fanfare.frame" {
				return event{}, false, fmt.Errorf("the line with id %s is of the event %s", e.id, e)
			}
			p.named = false
			if !dispatched {
				p.blocks++
			}
			return e, dispatched, nil
		}
		p.unfinished = true
		if err := p.field(line); err != nil {
			return event{}, false, err
		}
	}
}

// line returns the next line, which ends with LF, CRLF or CR.
func (p *parser) line() (string, error) {
	for {
		i := bytes.IndexAny(p.rest[p.searched:], "\r\n")
		if i >= 0 {
			i += p.searched
		} else {
			p.searched = len(p.rest)
		}
		if i >= 0 && (p.rest[i] == '\n' || i+1 < len(p.rest) || p.err != nil) {
			line, end := p.rest[:i], i+1
			if p.rest[i] == '\r' && end < len(p.rest) && p.rest[end] == '\n' {
				end++
			}
			text := string(line)
			p.rest, p.searched = p.rest[end:], 0
			if !p.begun {
				p.begun = true
				text = strings.TrimPrefix(text, "\ufeff")
			}
			if !utf8.ValidString(text) {
				return "", fmt.Errorf("the line %.80q is not UTF-8", text)
			}
			return text, nil
		}
		if p.err != nil {
			if len(p.rest) > 0 || p.unfinished {
				return "", fmt.Errorf("the stream ended within a block, after %.80q: %w", p.rest, p.err)
			}
			if errors.Is(p.err, io.EOF) {
				return "", errEnded
			}
			return "", p.err
		}
		_, p.err = p.fill()
	}
}

// fill reads more.
func (p *parser) fill() (int, error) {
	chunk := make([]byte, 16<<10)
	n, err := p.source.Read(chunk)
	p.rest = append(p.rest, chunk[:n]...)
	return n, err
}

func (p *parser) field(line string) error {
	if line[0] == ':' {
		p.comments++
		return nil
	}
	name, value, found := strings.Cut(line, ":")
	if !found {
		return fmt.Errorf("the line %.80q has no colon", line)
	}
	value = strings.TrimPrefix(value, " ")
	switch name {
	case "event":
		p.kind.Reset()
		p.kind.WriteString(value)
	case "data":
		p.data.WriteString(value)
		p.data.WriteByte('\n')
	case "id":
		p.named = true
		if !strings.Contains(value, "\x00") {
			p.idBuffer = value
		}
	case "retry":
		var millis int
		if _, err := fmt.Sscanf(value, "%d", &millis); err != nil || fmt.Sprint(millis) != value {
			return fmt.Errorf("retry is %.80q", value)
		}
		p.retry = time.Duration(millis) * time.Millisecond
	default:
		return fmt.Errorf("the field of %.80q does not exist", line)
	}
	return nil
}

func (p *parser) dispatch() (event, bool) {
	p.lastEventID = p.idBuffer
	data, kind := p.data.String(), p.kind.String()
	p.data.Reset()
	p.kind.Reset()
	if data == "" {
		return event{}, false
	}
	if kind == "" {
		kind = "message"
	}
	return event{kind: kind, data: strings.TrimSuffix(data, "\n"), id: p.lastEventID}, true
}
