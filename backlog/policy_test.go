package backlog

import (
	"cmp"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func pointer[T any](v T) *T { return &v }

func TestPolicyValidate(t *testing.T) {
	long := strings.Repeat("é", 127) + "x" // 255 bytes
	for _, p := range []Policy{
		{Channel: "c"},
		{Channel: "c", Prefix: true},
		{Prefix: true},
		{Channel: long},
		{Channel: long, Prefix: true},
		{Channel: "%_\\ \u00a0"},
		{Channel: "c", Backlog: pointer[uint64](0), RetentionAge: pointer(time.Duration(0)), StreamRetention: pointer(time.Microsecond)},
		{Channel: "c", Backlog: pointer[uint64](MaxPositionValue), RetentionAge: pointer(MaxPolicyAge), StreamRetention: pointer(MaxPolicyAge)},
	} {
		if err := p.Validate(); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
	for _, c := range []struct {
		field  string
		policy Policy
	}{
		{"channel", Policy{}},
		{"channel", Policy{Channel: long + "x"}},
		{"channel", Policy{Channel: long + "x", Prefix: true}},
		{"channel", Policy{Channel: "\xff"}},
		{"channel", Policy{Channel: "a\xc3", Prefix: true}},
		{"channel", Policy{Channel: "a\n", Prefix: true}},
		{"backlog", Policy{Channel: "c", Backlog: pointer[uint64](MaxPositionValue + 1)}},
		{"backlog", Policy{Channel: "c", Backlog: pointer[uint64](math.MaxUint64)}},
		{"retention_age", Policy{Channel: "c", RetentionAge: pointer(-time.Microsecond)}},
		{"retention_age", Policy{Channel: "c", RetentionAge: pointer(time.Nanosecond)}},
		{"retention_age", Policy{Channel: "c", RetentionAge: pointer(MaxPolicyAge + time.Microsecond)}},
		{"stream_retention", Policy{Channel: "c", StreamRetention: pointer(time.Duration(0))}},
		{"stream_retention", Policy{Channel: "c", StreamRetention: pointer(-time.Microsecond)}},
		{"stream_retention", Policy{Channel: "c", StreamRetention: pointer(time.Second + 1)}},
		{"stream_retention", Policy{Channel: "c", StreamRetention: pointer(time.Duration(math.MaxInt64))}},
	} {
		var refused *LimitError
		if err := c.policy.Validate(); !errors.As(err, &refused) || refused.Field != c.field {
			t.Errorf("%+v: %v, want the field %s", c.policy, err, c.field)
		}
	}
}

func TestPolicySets(t *testing.T) {
	for _, p := range []Policy{{Backlog: new(uint64)}, {RetentionAge: new(time.Duration)}, {StreamRetention: new(time.Duration)}} {
		if !p.Sets() {
			t.Errorf("%+v sets nothing", p)
		}
	}
	if (&Policy{Channel: "c", Prefix: true}).Sets() {
		t.Error("a policy without a value sets something")
	}
}

func TestBoundsOf(t *testing.T) {
	hours := func(n int) time.Duration { return time.Duration(n) * time.Hour }
	policies := []Policy{
		{Channel: "shop/orders/eu", Backlog: pointer[uint64](5)},
		{Channel: "shop/orders", Prefix: true, Backlog: pointer[uint64](3), StreamRetention: pointer(hours(3))},
		{Channel: "shop/", Prefix: true, Backlog: pointer[uint64](2), RetentionAge: pointer(hours(2))},
		{Prefix: true, Backlog: pointer[uint64](1), RetentionAge: pointer(hours(1)), StreamRetention: pointer(hours(1))},
		{Channel: "shop/orders", Backlog: pointer[uint64](4)},
		{Channel: "shop/orders/e", Prefix: true, RetentionAge: pointer(time.Duration(0))},
	}
	for _, c := range []struct {
		channel string
		prefix  bool
		want    Bounds
	}{
		{"shop/orders/eu", false, Bounds{5, 0, hours(3)}},
		{"shop/orders/us", false, Bounds{3, hours(2), hours(3)}},
		{"shop/orders", false, Bounds{4, hours(2), hours(3)}},
		{"shop/carts", false, Bounds{2, hours(2), hours(1)}},
		{"shop", false, Bounds{1, hours(1), hours(1)}},
		{"Shop/orders", false, Bounds{1, hours(1), hours(1)}},
		// What a prefix means for channels that have no policy of their own.
		{"shop/orders", true, Bounds{3, hours(2), hours(3)}},
		{"shop/orders/eu", true, Bounds{3, 0, hours(3)}},
		{"shop/or", true, Bounds{2, hours(2), hours(1)}},
		{"", true, Bounds{1, hours(1), hours(1)}},
	} {
		// The order of the policies is of no account.
		for range 10 {
			if got := BoundsOf(policies, c.channel, c.prefix); got != c.want {
				t.Errorf("the bounds of %q (prefix %v) are %v, want %v", c.channel, c.prefix, got, c.want)
			}
			rand.Shuffle(len(policies), func(i, j int) { policies[i], policies[j] = policies[j], policies[i] })
		}
	}
	if got := BoundsOf(nil, "c", false); got != DefaultBounds {
		t.Errorf("without policies the bounds are %v", got)
	}
	got := BoundsOf([]Policy{{Prefix: true, StreamRetention: pointer(hours(1))}}, "c", false)
	if want := (Bounds{DefaultBounds.Backlog, DefaultBounds.RetentionAge, hours(1)}); got != want {
		t.Errorf("with a default that sets one field the bounds are %v, want %v", got, want)
	}
}

func TestComparePolicies(t *testing.T) {
	ordered := []Policy{
		{Prefix: true}, {Channel: "A"}, {Channel: "B", Prefix: true}, {Channel: "a"}, {Channel: "a", Prefix: true}, {Channel: "a/b"},
		{Channel: "ab", Prefix: true}, {Channel: "é"}, {Channel: "\uffff"}, {Channel: "😀"},
	}
	for i, a := range ordered {
		for j, b := range ordered {
			if got, want := ComparePolicies(a, b), cmp.Compare(i, j); got != want {
				t.Errorf("%q (prefix %v) to %q (prefix %v): %d, want %d", a.Channel, a.Prefix, b.Channel, b.Prefix, got, want)
			}
		}
	}
}
