package conformance_test

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"time"
)

//go:embed cases/*.json
var cases embed.FS

// script is one case, as README.md describes it.
type script struct {
	About string `json:"about"`
	// Tokens has the servers want tokens, and says how long those of the agent are good.
	Tokens []duration `json:"tokens"`
	Steps  []step     `json:"steps"`
}

// step has exactly one field set.
type step struct {
	Publish      *publishStep   `json:"publish,omitempty"`
	PublishBatch *batchStep     `json:"publish_batch,omitempty"`
	Load         *loadStep      `json:"load,omitempty"`
	AwaitLoad    bool           `json:"await_load,omitempty"`
	Close        *scopeStep     `json:"close,omitempty"`
	Backlog      *backlogStep   `json:"backlog,omitempty"`
	Subscribe    *subscribeStep `json:"subscribe,omitempty"`
	Unsubscribe  *string        `json:"unsubscribe,omitempty"`
	Expect       *expectStep    `json:"expect,omitempty"`
	Kill         *replicaStep   `json:"kill,omitempty"`
	Drain        *replicaStep   `json:"drain,omitempty"`
	Start        bool           `json:"start,omitempty"`
}

// publishStep has the agent publish one frame.
type publishStep struct {
	Scope       string            `json:"scope"`
	Payload     payload           `json:"payload"`
	ContentType string            `json:"content_type"`
	EventType   string            `json:"event_type"`
	Headers     map[string]string `json:"headers"`
	Key         string            `json:"idempotency_key"`
	Expected    *string           `json:"expected_sequence"`
	Ephemeral   bool              `json:"ephemeral"`
	// Error is CODE/REASON if the server must refuse it, and DuplicateOf the number
	// of the frame that was published under the key before.
	Error       string `json:"error"`
	DuplicateOf int    `json:"duplicate_of"`
}

type batchStep struct {
	Frames []publishStep `json:"frames"`
	Error  string        `json:"error"`
}

// loadStep has the runner publish frames itself, in the background or at once.
type loadStep struct {
	Scope      string   `json:"scope"`
	Frames     int      `json:"frames"`
	Bytes      int      `json:"bytes"`
	Every      duration `json:"every"`
	Background bool     `json:"background"`
}

type scopeStep struct {
	Scope string `json:"scope"`
}

// backlogStep bounds the backlog of the case's streams.
type backlogStep struct {
	Frames uint64 `json:"frames"`
}

type subscribeStep struct {
	ID string `json:"id"`
	// Scope may be repeated for many subscriptions ID-1 to ID-N of SCOPE-1 to SCOPE-N.
	Scope string          `json:"scope"`
	Start json.RawMessage `json:"start"`
}

// replicaStep names a replica by what it does: that which serves a scope's
// subscription, or with All both.
type replicaStep struct {
	Serving string `json:"serving"`
	All     bool   `json:"all"`
}

// expectStep says what the agent must report of a subscription next.
type expectStep struct {
	ID string `json:"id"`
	// Resumed allows, and demands, at least one interruption before the last event.
	Resumed bool          `json:"resumed"`
	Events  []expectation `json:"events"`
}

// expectation has exactly one field set.
type expectation struct {
	Subscribed map[string]any `json:"subscribed,omitempty"`
	// Interrupted is for one failed call or more.
	Interrupted bool `json:"interrupted,omitempty"`
	// Frames is "FROM-TO" or "NUMBER", of those published to the scope.
	Frames   string         `json:"frames,omitempty"`
	CaughtUp string         `json:"caught_up,omitempty"`
	Gap      map[string]any `json:"gap,omitempty"`
	Closed   string         `json:"closed,omitempty"`
	Ended    bool           `json:"ended,omitempty"`
	Error    string         `json:"error,omitempty"`
}

// payload is a text, or {"bytes": N}: that many, every value among them, or
// {"text": …, "times": N}.
type payload []byte

func (p *payload) UnmarshalJSON(raw []byte) error {
	var text string
	if err := json.Unmarshal(raw, &text); err == nil {
		*p = payload(text)
		return nil
	}
	var made struct {
		Bytes int `json:"bytes"`
	}
	if err := strictly(raw, &made); err != nil {
		return err
	}
	*p = pattern(made.Bytes, 0)
	return nil
}

// pattern is bytes of every value, of another order for each number.
func pattern(n, number int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*167 + i/256 + number)
	}
	return b
}

type duration time.Duration

func (d *duration) UnmarshalJSON(raw []byte) error {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return err
	}
	parsed, err := time.ParseDuration(text)
	*d = duration(parsed)
	return err
}

// strictly decodes JSON and refuses fields that nobody reads: a misspelt
// expectation would hold of everything.
func strictly(raw []byte, v any) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	return decoder.Decode(v)
}

// scripts returns the cases by name.
func scripts() (map[string]script, error) {
	entries, err := cases.ReadDir("cases")
	if err != nil {
		return nil, err
	}
	all := make(map[string]script)
	for _, e := range entries {
		raw, err := cases.ReadFile(path.Join("cases", e.Name()))
		if err != nil {
			return nil, err
		}
		var s script
		if err := strictly(raw, &s); err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		if len(s.Steps) == 0 || s.About == "" {
			return nil, fmt.Errorf("%s has no steps, or does not say what it is about", e.Name())
		}
		all[strings.TrimSuffix(e.Name(), ".json")] = s
	}
	return all, nil
}
