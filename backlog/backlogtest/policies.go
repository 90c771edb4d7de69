package backlogtest

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

var policyTests = []test{
	{"None", testNoPolicies},
	{"Resolution", testPolicyResolution},
	{"ZeroIsSet", testPolicyZero},
	{"Replaced", testPolicyReplaced},
	{"Removed", testPolicyRemoved},
	{"Unusual", testPolicyUnusualNames},
	{"Order", testPolicyOrder},
	{"Refused", testPolicyRefused},
	{"ExactlyTheLimit", testPolicyExactLimits},
	{"Most", testMostPolicies},
	{"AtOnce", testPolicyAtOnce},
	{"AgeAtOnce", testPolicyAgeAtOnce},
	{"DeletedStaysDeleted", testPolicyDeleted},
	{"NoBacklogAndBack", testPolicyNoBacklogAndBack},
	{"SweptByChannel", testPolicySweep},
	{"StreamRetentionByChannel", testPolicyStreamRetention},
	{"Concurrent", testPolicyConcurrent},
	{"Reopened", testPolicyReopened},
	{"NotShared", testPolicyNotShared},
}

func pointer[T any](v T) *T { return &v }

// backlogPolicy sets the backlog alone.
func backlogPolicy(channel string, prefix bool, n uint64) backlog.Policy {
	return backlog.Policy{Channel: channel, Prefix: prefix, Backlog: &n}
}

// agePolicy sets the retention age alone.
func agePolicy(channel string, prefix bool, age time.Duration) backlog.Policy {
	return backlog.Policy{Channel: channel, Prefix: prefix, RetentionAge: &age}
}

func (h *harness) policies() []backlog.Policy {
	h.Helper()
	p, err := h.Policies(h.context())
	if err != nil {
		h.Fatalf("policies: %v", err)
	}
	return p
}

// policyText shows a policy with what its pointers point to, for comparisons.
func policyText(p backlog.Policy) string {
	value := func(name string, set bool, v any) string {
		if !set {
			return ""
		}
		return fmt.Sprintf(" %s=%v", name, v)
	}
	var n uint64
	var age, retention time.Duration
	if p.Backlog != nil {
		n = *p.Backlog
	}
	if p.RetentionAge != nil {
		age = *p.RetentionAge
	}
	if p.StreamRetention != nil {
		retention = *p.StreamRetention
	}
	return fmt.Sprintf("%q prefix=%v", p.Channel, p.Prefix) + value("backlog", p.Backlog != nil, n) +
		value("retention_age", p.RetentionAge != nil, age) + value("stream_retention", p.StreamRetention != nil, retention)
}

// equalPolicies fails the test if the store's policies are not want, in order.
func equalPolicies(h *harness, what string, want []backlog.Policy) {
	h.Helper()
	texts := func(policies []backlog.Policy) []string {
		t := make([]string, len(policies))
		for i, p := range policies {
			t[i] = policyText(p)
		}
		return t
	}
	equalAll(h, what, texts(h.policies()), texts(want))
}

// equalBounds fails the test if the stream's state does not say want; the
// retention of streams is not part of a state.
func equalBounds(h *harness, stream backlog.StreamName, want backlog.Bounds) {
	h.Helper()
	state := h.state(stream)
	what := fmt.Sprintf("%q", stream)
	equal(h, "backlog of "+what, state.Backlog, want.Backlog)
	equal(h, "retention age of "+what, state.RetentionAge, want.RetentionAge)
	states, err := h.ListStreams(h.context(), stream.Channel, backlog.StreamName{}, 1000)
	if err != nil {
		h.Fatal(err)
	}
	for _, listed := range states {
		equal(h, "backlog in the list of "+what, listed.Backlog, want.Backlog)
		equal(h, "retention age in the list of "+what, listed.RetentionAge, want.RetentionAge)
	}
}

func testNoPolicies(h *harness) {
	equalPolicies(h, "policies", nil)
	stream := name("none")
	h.publish(text(stream, "x"))
	equalBounds(h, stream, backlog.DefaultBounds)
}

// testPolicyResolution: each field comes from the closest policy that sets it.
func testPolicyResolution(h *harness) {
	policies := []backlog.Policy{
		{Prefix: true, Backlog: pointer[uint64](50), RetentionAge: pointer(3 * time.Hour)},
		backlogPolicy("a", true, 40),
		agePolicy("ab", true, time.Hour),
		backlogPolicy("abc", false, 10),
		backlogPolicy("abc", true, 20),
		agePolicy("abcd", false, time.Minute),
		{Channel: "b", StreamRetention: pointer(time.Hour)},
	}
	for _, p := range policies {
		h.setPolicy(p)
	}
	for channel, want := range map[string]backlog.Bounds{
		"z":     {Backlog: 50, RetentionAge: 3 * time.Hour}, // the default
		"b":     {Backlog: 50, RetentionAge: 3 * time.Hour}, // a policy that sets neither
		"a":     {Backlog: 40, RetentionAge: 3 * time.Hour}, // a prefix is its own prefix
		"ac":    {Backlog: 40, RetentionAge: 3 * time.Hour}, // one prefix
		"ab":    {Backlog: 40, RetentionAge: time.Hour},     // a field from each of two
		"abd":   {Backlog: 40, RetentionAge: time.Hour},
		"abc":   {Backlog: 10, RetentionAge: time.Hour},     // the channel's own beats a prefix as long
		"abcx":  {Backlog: 20, RetentionAge: time.Hour},     // the longest prefix
		"abcd":  {Backlog: 20, RetentionAge: time.Minute},   // the channel's own has no backlog
		"abcde": {Backlog: 20, RetentionAge: time.Hour},     // not that channel
		"A":     {Backlog: 50, RetentionAge: 3 * time.Hour}, // another letter
		"xabc":  {Backlog: 50, RetentionAge: 3 * time.Hour}, // not at the beginning
		"é":     {Backlog: 50, RetentionAge: 3 * time.Hour},
		" abc":  {Backlog: 50, RetentionAge: 3 * time.Hour},
		"abc ":  {Backlog: 20, RetentionAge: time.Hour},     // nothing is trimmed
		"a/b":   {Backlog: 40, RetentionAge: 3 * time.Hour}, // no separator is special
		"bb":    {Backlog: 50, RetentionAge: 3 * time.Hour},
		"ab\\c": {Backlog: 40, RetentionAge: time.Hour},
		"ABCD":  {Backlog: 50, RetentionAge: 3 * time.Hour},
		"aabcd": {Backlog: 40, RetentionAge: 3 * time.Hour},
		"abç":   {Backlog: 40, RetentionAge: time.Hour},
		"abcdX": {Backlog: 20, RetentionAge: time.Hour},
		"aBc":   {Backlog: 40, RetentionAge: 3 * time.Hour},
	} {
		h.publish(text(name(channel, "s"), "x"))
		equalBounds(h, name(channel, "s"), want)
		resolved := backlog.BoundsOf(h.policies(), channel, false)
		resolved.StreamRetention = 0
		equal(h, "BoundsOf "+channel, resolved, want)
	}
}

// testPolicyZero: 0 is a value, not what is inherited.
func testPolicyZero(h *harness) {
	h.setBounds(backlog.Bounds{Backlog: 50, RetentionAge: time.Hour})
	h.setPolicy(backlogPolicy("none", false, 0))
	h.setPolicy(agePolicy("any age", false, 0))
	for channel, want := range map[string]backlog.Bounds{
		"none": {Backlog: 0, RetentionAge: time.Hour}, "any age": {Backlog: 50}, "others": {Backlog: 50, RetentionAge: time.Hour},
	} {
		h.publish(text(name(channel), "x"))
		equalBounds(h, name(channel), want)
	}
	h.setPolicy(backlogPolicy("", true, 0))
	equalBounds(h, name("others"), backlog.Bounds{})
}

// testPolicyReplaced: a policy takes the other's place as a whole, and the one of
// a channel is apart from that of the prefix.
func testPolicyReplaced(h *harness) {
	stream := name("a")
	h.publish(text(stream, "x"))
	h.setPolicy(backlog.Policy{Channel: "a", Backlog: pointer[uint64](1), RetentionAge: pointer(time.Hour), StreamRetention: pointer(time.Hour)})
	h.setPolicy(backlogPolicy("a", true, 2))
	h.setPolicy(agePolicy("a", false, time.Minute))
	equalPolicies(h, "policies", []backlog.Policy{agePolicy("a", false, time.Minute), backlogPolicy("a", true, 2)})
	equalBounds(h, stream, backlog.Bounds{Backlog: 2, RetentionAge: time.Minute})
}

func testPolicyRemoved(h *harness) {
	stream := name("a")
	h.publish(text(stream, "x"))
	h.setPolicy(backlog.Policy{Channel: "a"}) // there is none
	h.setPolicy(backlog.Policy{Prefix: true})
	equalPolicies(h, "policies", nil)
	h.setPolicy(backlogPolicy("a", false, 1))
	h.setPolicy(backlogPolicy("a", true, 2))
	h.setPolicy(backlogPolicy("", true, 3))
	for _, step := range []struct {
		remove backlog.Policy
		want   uint64
	}{
		{backlog.Policy{Channel: "a"}, 2},
		{backlog.Policy{Channel: "a", Prefix: true}, 3},
		{backlog.Policy{Prefix: true}, backlog.DefaultBounds.Backlog},
	} {
		h.setPolicy(step.remove)
		equalBounds(h, stream, backlog.Bounds{Backlog: step.want})
	}
	equalPolicies(h, "policies", nil)
}

// testPolicyUnusualNames: names are compared byte by byte. Characters that are
// wildcards or escapes of pattern matching are like others, and none is folded.
func testPolicyUnusualNames(h *harness) {
	names := []string{
		"%", "_", `\`, "a%", "a_", `a\`, `a\%`, "*", "?", "[a-z]", "a*", "a?", "^a", "a.", "$", "'", `"`, "a''", "--", "a;",
		"\u00e9", "e\u0301", "\u00c9", "e", "日", "日本", "😀", "ß", "ss", "ı", "I", "İ", " ", "a ", "\u00a0", "\u200b", "\ufeff", "\U0010ffff",
	}
	for i, n := range names {
		h.setPolicy(backlogPolicy(n, true, uint64(100+i)))
		h.setPolicy(agePolicy(n, false, time.Duration(i+1)*time.Minute))
	}
	policies := h.policies()
	equal(h, "policies", len(policies), 2*len(names))
	var batch []backlog.Publication
	for _, n := range names {
		for _, end := range []string{"", "x", "%", "_", `\`, "b", "é", "😀", "zx"} {
			batch = append(batch, text(name(n+end), "x"))
		}
		batch = append(batch, text(name("x"+n), "x"))
	}
	h.publishBatch(batch)
	var requests []backlog.LoadRequest
	for _, p := range batch {
		requests = append(requests, backlog.LoadRequest{Stream: p.Stream})
	}
	result, err := h.Load(h.context(), 0, requests)
	if err != nil {
		h.Fatal(err)
	}
	for i, l := range result.Streams {
		want := backlog.BoundsOf(policies, batch[i].Stream.Channel, false)
		equal(h, fmt.Sprintf("bounds of %q", batch[i].Stream.Channel), backlog.Bounds{
			Backlog: l.State.Backlog, RetentionAge: l.State.RetentionAge, StreamRetention: want.StreamRetention}, want)
	}
}

func testPolicyOrder(h *harness) {
	want := []backlog.Policy{
		backlogPolicy("", true, 1), backlogPolicy("A", false, 2), backlogPolicy("B", true, 3), backlogPolicy("a", false, 4), backlogPolicy("a", true, 5),
		backlogPolicy("a/b", true, 6), backlogPolicy("ab", false, 7), backlogPolicy("b", true, 8), backlogPolicy("z", false, 9), backlogPolicy("é", false, 10),
		backlogPolicy("\uffff", true, 11), backlogPolicy("😀", false, 12),
	}
	for i := range want {
		h.setPolicy(want[(i*5+3)%len(want)])
	}
	equalPolicies(h, "policies", want)
}

func testPolicyRefused(h *harness) {
	kept := backlogPolicy("kept", false, 7)
	h.setPolicy(kept)
	for _, c := range []struct {
		field, why string
		policy     backlog.Policy
	}{
		{"channel", "empty", backlogPolicy("", false, 1)},
		{"channel", "too long", backlogPolicy(strings.Repeat("x", 256), false, 1)},
		{"channel", "prefix too long", backlogPolicy(strings.Repeat("x", 256), true, 1)},
		{"channel", "invalid UTF-8", backlogPolicy("a\xff", false, 1)},
		{"channel", "half a character", backlogPolicy("a\xc3", true, 1)},
		{"channel", "NUL", backlogPolicy("a\x00", true, 1)},
		{"channel", "line feed", backlogPolicy("a\n", false, 1)},
		{"channel", "removal", backlog.Policy{Channel: "a\n"}},
		{"backlog", "2^63", backlogPolicy("kept", false, 1<<63)},
		{"backlog", "2^64-1", backlogPolicy("kept", false, math.MaxUint64)},
		{"retention_age", "negative", agePolicy("kept", false, -time.Second)},
		{"retention_age", "too long", agePolicy("kept", false, backlog.MaxPolicyAge+time.Microsecond)},
		{"retention_age", "nanoseconds", agePolicy("kept", false, time.Nanosecond)},
		{"stream_retention", "zero", backlog.Policy{Channel: "kept", StreamRetention: pointer(time.Duration(0))}},
		{"stream_retention", "negative", backlog.Policy{Channel: "kept", StreamRetention: pointer(-time.Second)}},
		{"stream_retention", "too long", backlog.Policy{Channel: "kept", StreamRetention: pointer(backlog.MaxPolicyAge + time.Microsecond)}},
		{"stream_retention", "nanoseconds", backlog.Policy{Channel: "kept", StreamRetention: pointer(time.Hour + 1)}},
	} {
		what := c.field + " " + c.why
		err := h.SetPolicy(h.context(), c.policy)
		equal(h, what+": field", asError[*backlog.LimitError](h, what, err).Field, c.field)
	}
	equalPolicies(h, "policies", []backlog.Policy{kept})
}

func testPolicyExactLimits(h *harness) {
	max := strings.Repeat("é", 127) + "x" // 255 bytes
	want := []backlog.Policy{
		{Channel: "a", Backlog: pointer[uint64](0), RetentionAge: pointer(time.Microsecond), StreamRetention: pointer(time.Microsecond)},
		{Channel: "b", Backlog: pointer[uint64](backlog.MaxPositionValue), RetentionAge: pointer(backlog.MaxPolicyAge), StreamRetention: pointer(backlog.MaxPolicyAge)},
		{Channel: "c", RetentionAge: pointer(36*time.Hour + time.Microsecond), StreamRetention: pointer(90*24*time.Hour - time.Microsecond)},
		backlogPolicy(max, false, 1),
		backlogPolicy(max, true, 2),
	}
	for _, p := range want {
		h.setPolicy(p)
	}
	equalPolicies(h, "policies", want)
	p := h.publishMany(name("b"), 3)
	equalBounds(h, name("b"), backlog.Bounds{Backlog: backlog.MaxPositionValue, RetentionAge: backlog.MaxPolicyAge})
	equal(h, "frames", len(h.page(pageAfter(name("b"), h.before(name("b")))).Frames), len(p))
	h.publish(text(name(max), "x"))
	equalBounds(h, name(max), backlog.Bounds{Backlog: 1})
}
