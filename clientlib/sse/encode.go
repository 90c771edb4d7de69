package sse

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fanfare-io/fanfare/clientlib"
)

// form is how frames are sent.
type form uint8

const (
	plain form = iota
	wrapped
	forms
)

// Names of events that are not frames, and of frames that cannot be sent plainly.
const (
	eventFrame     = "fanfare.frame"
	eventGap       = "fanfare.gap"
	eventCaughtUp  = "fanfare.caught_up"
	eventStatus    = "fanfare.status"
	eventClosed    = "fanfare.closed"
	eventReconnect = "fanfare.reconnect"
	eventHeartbeat = "fanfare.heartbeat"

	controlPrefix = "fanfare."
)

// frameBlock is a frame as an event, without its id.
func frameBlock(stream clientlib.Stream, f *clientlib.Frame, as form) []byte {
	switch {
	case as == wrapped:
		return block("", frameJSON(stream, f))
	case isPlain(f):
		return plainBlock(f.EventType, f.Payload)
	default:
		return block(eventFrame, frameJSON(stream, f))
	}
}

// isPlain reports whether a parser gives back exactly the frame's event type and payload,
// and takes neither for something else. A carriage return would come back as a line feed.
func isPlain(f *clientlib.Frame) bool {
	if !utf8.Valid(f.Payload) || bytes.ContainsAny(f.Payload, "\r\x00") {
		return false
	}
	t := f.EventType
	switch t {
	case "open", "error": // EventSource dispatches events of its own under these
		return false
	}
	return !strings.HasPrefix(t, controlPrefix) && !strings.ContainsAny(t, "\r\n\x00") && utf8.ValidString(t)
}

// plainBlock writes data as so many lines as it has; the parser joins them again. The
// space after each colon is there because the parser takes one away.
func plainBlock(event string, data []byte) []byte {
	const field = "data: "
	lines := bytes.Count(data, []byte{'\n'}) + 1
	b := make([]byte, 0, len(data)+lines*len(field)+len(event)+len("event: \n")+2)
	if event != "" {
		b = append(append(append(b, "event: "...), event...), '\n')
	}
	for more := true; more; {
		var line []byte
		line, data, more = bytes.Cut(data, []byte{'\n'})
		b = append(append(append(b, field...), line...), '\n')
	}
	return append(b, '\n')
}

// block is an event whose data is one line.
func block(event string, data []byte) []byte { return plainBlock(event, data) }

type streamJSON struct {
	Channel string `json:"channel"`
	Scope   string `json:"scope"`
}

func nameJSON(s clientlib.Stream) streamJSON { return streamJSON(s) }

func frameJSON(stream clientlib.Stream, f *clientlib.Frame) []byte {
	v := struct {
		Stream        streamJSON          `json:"stream"`
		Position      *clientlib.Position `json:"position,omitempty"`
		Payload       *string             `json:"payload,omitempty"`
		PayloadBase64 []byte              `json:"payload_base64,omitempty"`
		ContentType   string              `json:"content_type,omitempty"`
		EventType     string              `json:"event_type,omitempty"`
		Headers       map[string]string   `json:"headers,omitempty"`
		Created       *time.Time          `json:"created,omitempty"`
		Ephemeral     bool                `json:"ephemeral,omitempty"`
	}{
		Stream: nameJSON(stream), ContentType: f.ContentType, EventType: f.EventType,
		Headers: f.Headers, Ephemeral: f.Ephemeral,
	}
	if !f.Ephemeral {
		v.Position = &f.Position
	}
	if !f.Created.IsZero() {
		created := f.Created.UTC()
		v.Created = &created
	}
	if utf8.Valid(f.Payload) {
		text := string(f.Payload)
		v.Payload = &text
	} else {
		v.PayloadBase64 = f.Payload
	}
	return line(v)
}

// line is v as JSON on one line: line breaks in strings are escaped.
func line(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // the values here can all be encoded
	}
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'})
}

func gapBlock(stream clientlib.Stream, g *clientlib.Gap) []byte {
	return block(eventGap, line(struct {
		Stream      streamJSON         `json:"stream"`
		Reason      string             `json:"reason"`
		Requested   clientlib.Position `json:"requested"`
		Oldest      uint64             `json:"oldest,string"`
		Head        clientlib.Position `json:"head"`
		ResumeAfter clientlib.Position `json:"resume_after"`
	}{nameJSON(stream), g.Reason.String(), g.Requested, g.Oldest, g.Head, g.ResumeAfter}))
}

func caughtUpBlock(stream clientlib.Stream, p clientlib.Position) []byte {
	return block(eventCaughtUp, line(struct {
		Stream   streamJSON         `json:"stream"`
		Position clientlib.Position `json:"position"`
	}{nameJSON(stream), p}))
}

func statusBlock(stream clientlib.Stream, listening bool) []byte {
	return block(eventStatus, line(struct {
		Stream    streamJSON `json:"stream"`
		Listening bool       `json:"listening"`
	}{nameJSON(stream), listening}))
}

func closedBlock(stream clientlib.Stream, last clientlib.Position) []byte {
	return block(eventClosed, line(struct {
		Stream streamJSON         `json:"stream"`
		Last   clientlib.Position `json:"last"`
	}{nameJSON(stream), last}))
}

func heartbeatBlock(interval, retry time.Duration) []byte {
	return block(eventHeartbeat, line(struct {
		Interval int64 `json:"interval_ms"`
		Retry    int64 `json:"retry_in_ms"`
	}{interval.Milliseconds(), retry.Milliseconds()}))
}

// appendReconnect appends advice to come back after a while.
func appendReconnect(b []byte, reason string, retry time.Duration) []byte {
	b = appendRetry(b, retry)
	return append(b, block(eventReconnect, line(struct {
		Reason string `json:"reason"`
		Millis int64  `json:"retry_in_ms"`
	}{reason, retry.Milliseconds()}))...)
}

func appendRetry(b []byte, retry time.Duration) []byte {
	return append(strconv.AppendInt(append(b, "retry: "...), retry.Milliseconds(), 10), '\n')
}

// appendID appends the line with the id that stands for positions.
func appendID(b []byte, positions []clientlib.Position) []byte {
	b = append(b, "id: "...)
	for i, p := range positions {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, p.Epoch, 10)
		b = append(b, '-')
		b = strconv.AppendUint(b, p.Sequence, 10)
	}
	return append(b, '\n')
}
