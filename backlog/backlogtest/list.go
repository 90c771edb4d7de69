package backlogtest

import (
	"slices"

	"github.com/fanfare-io/fanfare/backlog"
)

var listTests = []test{
	{"ByteOrder", testListOrder},
	{"State", testListState},
}

func testListOrder(h *harness) {
	// In byte order.
	all := []backlog.StreamName{
		name("A"), name("B", "2"), name("Z"), name("a"), name("a", "\u00e9"), name("ab"), name("b"), name("b", "A"), name("b", "B"), name("b", "a"),
		name("b/c"), name("é"), name("😀", "x"),
	}
	var batch []backlog.Publication
	for _, s := range all {
		batch = append(batch, text(s, "x"))
	}
	slices.Reverse(batch)
	h.publishBatch(batch)
	for _, limit := range []int{1, 2, 5, 13, 1000} {
		equalAll(h, "streams", h.list("", limit), all)
		equalAll(h, "streams of b", h.list("b", limit), all[6:10])
		equalAll(h, "streams of a channel that does not exist", h.list("c", limit), nil)
	}
	for after, want := range map[backlog.StreamName]int{name("A"): 4, name("b"): 3, name("b", "AA"): 2, name("b", "z"): 0, name("c"): 0} {
		states, err := h.ListStreams(h.context(), "b", after, 1000)
		if err != nil {
			h.Fatal(err)
		}
		equal(h, "streams of b after "+after.Channel+" "+after.Scope, len(states), want)
	}
}

// list lists all streams, limit at a time.
func (h *harness) list(channel string, limit int) []backlog.StreamName {
	h.Helper()
	var names []backlog.StreamName
	var after backlog.StreamName
	for {
		states, err := h.ListStreams(h.context(), channel, after, limit)
		if err != nil {
			h.Fatal(err)
		}
		for _, s := range states {
			names = append(names, s.Stream)
		}
		if len(states) < limit {
			return names
		}
		after = names[len(names)-1]
	}
}

func testListState(h *harness) {
	open, closed := name("state", "open"), name("state", "closed")
	h.publishMany(open, 3)
	h.publishMany(closed, 2)
	h.close(closed)
	states, err := h.ListStreams(h.context(), "state", backlog.StreamName{}, 10)
	if err != nil {
		h.Fatal(err)
	}
	equalAll(h, "states", states, []backlog.StreamState{h.state(closed), h.state(open)})
}
