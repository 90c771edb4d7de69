package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/clientlib"
)

// command is any command; its fields are those of its op. Bytes are base64, as
// encoding/json has them, and 64-bit numbers text.
type command struct {
	Op      string    `json:"op"`
	ID      string    `json:"id"`
	Targets []string  `json:"targets"`
	Session bool      `json:"session"`
	Tokens  tokens    `json:"tokens"`
	Start   start     `json:"start"`
	Frames  []command `json:"frames"`

	Channel          string            `json:"channel"`
	Scope            string            `json:"scope"`
	Payload          []byte            `json:"payload"`
	ContentType      string            `json:"content_type"`
	EventType        string            `json:"event_type"`
	Headers          map[string]string `json:"headers"`
	IdempotencyKey   string            `json:"idempotency_key"`
	ExpectedSequence *uint64           `json:"expected_sequence,string"`
	Ephemeral        bool              `json:"ephemeral"`
}

// tokens are true in connect, if there will be some, and then those.
type tokens struct {
	wanted bool
	texts  []string
}

func (t *tokens) UnmarshalJSON(raw []byte) error {
	if json.Unmarshal(raw, &t.wanted) == nil {
		return nil
	}
	return json.Unmarshal(raw, &t.texts)
}

func (c *command) stream() clientlib.Stream {
	return clientlib.Stream{Channel: c.Channel, Scope: c.Scope}
}

func (c *command) newFrame() clientlib.NewFrame {
	f := clientlib.NewFrame{
		Stream:         c.stream(),
		Payload:        c.Payload,
		ContentType:    c.ContentType,
		EventType:      c.EventType,
		Headers:        c.Headers,
		IdempotencyKey: c.IdempotencyKey,
		Ephemeral:      c.Ephemeral,
	}
	if c.ExpectedSequence != nil {
		f.Expected = &clientlib.Expected{Sequence: *c.ExpectedSequence}
	}
	return f
}

// start is one of the four.
type start struct {
	Oldest bool                `json:"oldest"`
	Live   bool                `json:"live"`
	After  *clientlib.Position `json:"after"`
	Last   *uint64             `json:"last,string"`
}

func (s start) start() (clientlib.Start, error) {
	switch {
	case s.Oldest:
		return clientlib.Oldest(), nil
	case s.Live:
		return clientlib.Live(), nil
	case s.After != nil:
		return clientlib.After(*s.After), nil
	case s.Last != nil:
		return clientlib.Last(*s.Last), nil
	default:
		return clientlib.Start{}, errors.New("subscribe has no start")
	}
}

// notice is an event of a subscription that has no fields of its own.
type notice struct {
	ID    string `json:"id"`
	Event string `json:"event"`
}

// failure is the error of a publish, or the end of a subscription.
type failure struct {
	ID     string `json:"id"`
	Event  string `json:"event"`
	Code   string `json:"code"`
	Reason string `json:"reason"`
}

func failureOf(id string, err error) failure {
	f := failure{ID: id, Event: "error", Code: codeName(status.Code(err))}
	var known *clientlib.Error
	if errors.As(err, &known) {
		f.Code, f.Reason = codeName(known.Code), known.Reason
	}
	return f
}

// codeName is a code's name in the protocol, such as INVALID_ARGUMENT.
func codeName(c codes.Code) string { return code.Code(c).String() } //nolint:gosec // below 17

type result struct {
	Position  *clientlib.Position `json:"position"`
	Duplicate bool                `json:"duplicate"`
}

func resultOf(p clientlib.Published) result {
	return result{Position: positionOf(p.Position), Duplicate: p.Duplicate}
}

// positionOf is nil for that of an ephemeral frame.
func positionOf(p clientlib.Position) *clientlib.Position {
	if p.IsZero() {
		return nil
	}
	return &p
}

type published struct {
	ID    string `json:"id"`
	Event string `json:"event"`
	result
}

func publishedOf(id string, p clientlib.Published) published {
	return published{ID: id, Event: "published", result: resultOf(p)}
}

type publishedBatch struct {
	ID      string   `json:"id"`
	Event   string   `json:"event"`
	Results []result `json:"results"`
}

// eventOf is an event of a subscription.
func eventOf(id string, e clientlib.Event) map[string]any {
	fields := map[string]any{"id": id}
	add := func(name string, more map[string]any) map[string]any {
		fields["event"] = name
		maps.Copy(fields, more)
		return fields
	}
	switch e := e.(type) {
	case *clientlib.Frame:
		headers := e.Headers
		if headers == nil {
			headers = map[string]string{}
		}
		return add("frame", map[string]any{
			"position": positionOf(e.Position), "payload": append([]byte{}, e.Payload...), "content_type": e.ContentType,
			"event_type": e.EventType, "headers": headers, "ephemeral": e.Ephemeral,
		})
	case *clientlib.Subscribed:
		return add("subscribed", map[string]any{
			"head": e.Head, "oldest": strconv.FormatUint(e.Oldest, 10), "resume_after": e.ResumeAfter, "resumed": e.Resumed,
		})
	case *clientlib.CaughtUp:
		return add("caught_up", map[string]any{"position": e.Position})
	case *clientlib.Gap:
		return add("gap", map[string]any{
			"reason": e.Reason.String(), "requested": e.Requested, "oldest": strconv.FormatUint(e.Oldest, 10),
			"head": e.Head, "resume_after": e.ResumeAfter,
		})
	case *clientlib.Status:
		return add("status", map[string]any{"listening": e.Listening})
	case *clientlib.Closed:
		return add("closed", map[string]any{"last": e.Last})
	case *clientlib.Interrupted:
		return add("interrupted", nil)
	default:
		return add(fmt.Sprintf("%T", e), nil)
	}
}
