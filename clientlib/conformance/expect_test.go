package conformance_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
)

// position resolves @N, the position of frame N of a scope.
func (r *run) position(scope, text string) string {
	r.t.Helper()
	number, ok := strings.CutPrefix(text, "@")
	if !ok {
		return text
	}
	n, err := strconv.Atoi(number)
	if err != nil {
		r.t.Fatalf("%q is no number of a frame", text)
	}
	return r.at(scope, n).position
}

// expect holds the next events of a subscription against a step.
func (r *run) expect(e expectStep) {
	r.t.Helper()
	w := &watch{run: r, id: e.ID, scope: r.scopes[e.ID], resumed: e.Resumed && !r.renewsInTime}
	for _, want := range e.Events {
		w.expect(want)
	}
	if w.resumed && w.interruptions == 0 {
		r.t.Fatalf("%s was not interrupted", e.ID)
	}
}

// watch is one step's look at a subscription.
type watch struct {
	run           *run
	id, scope     string
	resumed       bool
	interruptions int
	// resuming is true from an interruption to its subscribed.
	resuming bool
}

func (w *watch) expect(want expectation) {
	t := w.run.t
	t.Helper()
	switch {
	case want.Subscribed != nil:
		w.fields(w.next("subscribed"), want.Subscribed)
	case want.Frames != "":
		from, to := interval(want.Frames)
		for n := from; n <= to; n++ {
			w.frame(w.next("frame"), n)
		}
	case want.CaughtUp != "":
		w.fields(w.next("caught_up"), map[string]any{"position": want.CaughtUp})
	case want.Gap != nil:
		w.fields(w.next("gap"), want.Gap)
	case want.Closed != "":
		w.fields(w.next("closed"), map[string]any{"last": want.Closed})
	case want.Ended:
		w.next("ended")
	case want.Interrupted:
		w.next("interrupted")
		w.run.away[w.id] = true
	case want.Error != "":
		if got := errorOf(w.next("error")); got != want.Error {
			t.Fatalf("%s ended with %s, want %s", w.id, got, want.Error)
		}
	default:
		t.Fatal("an expectation without anything to expect")
	}
}

// next returns the next event, which must be of a kind, after what a resumption may
// bring and tells nothing of loss.
func (w *watch) next(kind string) message {
	w.run.t.Helper()
	for {
		m := w.run.agent.next(w.id)
		got := m.text("event")
		if w.passes(m, kind) || got == "interrupted" && w.run.away[w.id] {
			continue
		}
		if got != kind {
			w.run.t.Fatalf("%s: %v, want %s", w.id, m, kind)
		}
		delete(w.run.away, w.id)
		return m
	}
}

// passes reports whether an event is to be passed over.
func (w *watch) passes(m message, kind string) bool {
	w.run.t.Helper()
	switch event := m.text("event"); {
	case event == "status":
		return true // of the server's listener, at any time
	case event == "interrupted" && kind == "error":
		return true // there was another attempt, with another token
	case !w.resumed:
		return false
	case event == "interrupted":
		w.interruptions++
		w.resuming = true
		return true
	case event == "subscribed" && kind != "subscribed" && w.resuming:
		if m["resumed"] != true {
			w.run.t.Fatalf("%s did not resume where it was: %v", w.id, m)
		}
		w.resuming = false
		return true
	case event == "caught_up" && kind != "caught_up":
		return true
	default:
		return event == "gap" && kind != "gap" && m.text("reason") == "EPHEMERAL_MAYBE_MISSED"
	}
}

// fields holds the fields that are named against an event.
func (w *watch) fields(m message, want map[string]any) {
	w.run.t.Helper()
	for name, value := range want {
		if text, ok := value.(string); ok {
			value = w.run.position(w.scope, text)
		}
		if m[name] != value {
			w.run.t.Fatalf("%s: %s is %v, want %v: %v", w.id, name, m[name], value, m)
		}
	}
}

// frame holds an event against what was published.
func (w *watch) frame(m message, number int) {
	t := w.run.t
	t.Helper()
	want := w.run.at(w.scope, number)
	payload, err := base64.StdEncoding.DecodeString(m.text("payload"))
	if err != nil {
		t.Fatalf("%s: the payload of frame %d: %v", w.id, number, err)
	}
	headers, _ := m["headers"].(map[string]any)
	got := fmt.Sprintf("position %s, types %q %q, ephemeral %v, headers %v",
		m.text("position"), m["content_type"], m["event_type"], m["ephemeral"], headers)
	expected := fmt.Sprintf("position %s, types %q %q, ephemeral %v, headers %v",
		want.position, want.contentType, want.eventType, want.ephemeral, anyMap(want.headers))
	if got != expected {
		t.Fatalf("%s: frame %d has %s, want %s", w.id, number, got, expected)
	}
	if !bytes.Equal(payload, want.payload) {
		t.Fatalf("%s: frame %d has a payload of %d bytes, want another of %d", w.id, number, len(payload), len(want.payload))
	}
}

func anyMap(m map[string]string) map[string]any {
	out := make(map[string]any, len(m))
	for name, value := range m {
		out[name] = value
	}
	return out
}

// interval is N or FROM-TO.
func interval(text string) (from, to int) {
	first, last, ok := strings.Cut(text, "-")
	from, _ = strconv.Atoi(first)
	if to = from; ok {
		to, _ = strconv.Atoi(last)
	}
	return from, to
}
