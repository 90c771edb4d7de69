package backlogtest

import (
	"fmt"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

var changedTests = []test{
	{"WhatHappensToStreams", testChanges},
	{"WhatIsKnownWrongly", testWrongKnowledge},
	{"ManyStreams", testChangedMany},
	{"OtherServer", testChangedOtherServer},
}

// changed asks for changes, and checks that they are those that loads show.
func (h *harness) changed(known ...backlog.StreamState) []int {
	h.Helper()
	got, err := h.Changed(h.context(), 0, known)
	if err != nil {
		h.Fatal(err)
	}
	var want []int
	for i := range known {
		if state := h.state(known[i].Stream); state.ChangedFrom(&known[i]) {
			want = append(want, i)
		}
	}
	equalAll(h, "changed", got, want)
	return got
}

// testChanges: a stream that something happened to is otherwise than it was known
// before, and as it is known afterwards; others are not touched by it.
func testChanges(h *harness) {
	stream, other := name("changing", "s"), name("others", "s")
	h.publishMany(other, 3)
	steps := []struct {
		what string
		do   func()
	}{
		{"the first frames", func() { h.publishMany(stream, 10) }},
		{"one frame more", func() { h.publish(text(stream, "x")) }},
		{"an ephemeral frame", func() {
			p := text(stream, "e")
			p.Ephemeral = true
			if _, err := h.tryPublish(p); err != nil {
				h.Fatal(err)
			}
		}},
		{"another bound", func() { h.setPolicy(backlogPolicy("changing", false, 5)) }},
		{"an age", func() {
			age := time.Hour
			h.setPolicy(backlog.Policy{Channel: "changing", Backlog: pointer[uint64](5), RetentionAge: &age})
		}},
		{"the close", func() { h.close(stream) }},
		{"the reopening", func() { h.publishMany(stream, 2) }},
		{"another close", func() { h.close(stream) }},
	}
	for _, step := range steps {
		before := []backlog.StreamState{h.state(other), h.state(stream)}
		equalAll(h, "before "+step.what, h.changed(before...), nil)
		step.do()
		equalAll(h, "after "+step.what, h.changed(before...), []int{1})
	}
	equalAll(h, "in the end", h.changed(h.state(stream), h.state(other)), nil)
}

// testWrongKnowledge: each of the fields matters, or does not, by itself. What was
// deleted matters if it is not beyond the bounds.
func testWrongKnowledge(h *harness) {
	stream, missing := name("known", "s"), name("known", "missing")
	h.setBounds(backlog.Bounds{Backlog: 4})
	h.publishMany(stream, 10)
	h.hooks.Sweep(h.T, h.Store)
	if floor := h.state(stream).Floor; floor != 6 {
		h.Fatalf("the floor is %d", floor)
	}
	for i, wrong := range []struct {
		change func(*backlog.StreamState)
		want   bool
	}{
		{func(s *backlog.StreamState) { *s = backlog.StreamState{Stream: stream} }, true},
		{func(s *backlog.StreamState) { s.OwnEpoch ^= 1 }, true},
		{func(s *backlog.StreamState) { s.Head.Epoch ^= 1 }, true},
		{func(s *backlog.StreamState) { s.Head.Sequence-- }, true},
		{func(s *backlog.StreamState) { s.Head.Sequence++ }, true},
		{func(s *backlog.StreamState) { s.Closed = true }, true},
		{func(s *backlog.StreamState) { s.EverClosed = true }, true},
		{func(s *backlog.StreamState) { s.Ephemeral = true }, true},
		{func(s *backlog.StreamState) { s.Backlog++ }, true},
		{func(s *backlog.StreamState) { s.RetentionAge = time.Microsecond }, true},
		{func(s *backlog.StreamState) { s.Base.Sequence = 0 }, false},
		{func(s *backlog.StreamState) { s.Base.Epoch, s.Floor, s.PreviousOwnEpoch = 0, 0, 0 }, false},
		{func(s *backlog.StreamState) { s.Created, s.Updated = time.Time{}, time.Time{} }, false},
	} {
		known := h.state(stream)
		wrong.change(&known)
		equal(h, fmt.Sprint("wrong in the way ", i), len(h.changed(known)) == 1, wrong.want)
	}
	known := h.state(stream)
	known.Stream = missing
	equalAll(h, "what does not exist", h.changed(known, backlog.StreamState{Stream: missing}), []int{0})

	h.setBounds(backlog.Bounds{Backlog: 9})
	known = h.state(stream)
	known.Base.Sequence = 5 // the frame with the sequence 6 is gone
	equalAll(h, "what is deleted within the bounds", h.changed(known), []int{0})
}

func testChangedMany(h *harness) {
	var known []backlog.StreamState
	var want []int
	for i := range 300 {
		stream := name(fmt.Sprint("channel", i%7), fmt.Sprint(i))
		if i%5 != 0 {
			h.publish(text(stream, "x"))
		}
		known = append(known, h.state(stream))
		if i%3 == 0 {
			h.publish(text(stream, "y"))
			want = append(want, i)
		}
	}
	equalAll(h, "of many", h.changed(known...), want)
	equalAll(h, "of none", h.changed(), nil)
	_, err := h.Changed(h.context(), 0, make([]backlog.StreamState, backlog.MaxLoadRequests+1))
	equal(h, "too many: field", asError[*backlog.LimitError](h, "too many", err).Field, "known")
}

func testChangedOtherServer(h *harness) {
	stream := name("other")
	h.publish(text(stream, "x"))
	known := []backlog.StreamState{h.state(stream)}
	_, err := h.Changed(h.context(), h.origin()^1, known)
	isError(h, "another server", err, backlog.ErrOtherServer)
	changed, err := h.Changed(h.context(), h.origin(), known)
	isError(h, "this one", err, nil)
	equalAll(h, "changed", changed, nil)
}
