package backlogtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// testMostPolicies: as many as may be are stored, however many come at once, and
// they are resolved like few.
func testMostPolicies(h *harness) {
	const callers, extra = 8, 16
	policy := func(i int) backlog.Policy { return backlogPolicy(fmt.Sprintf("p%04d", i), i%2 == 0, uint64(i)) }
	refused := make([]int, callers)
	errs := concurrently(h, callers, func(ctx context.Context, caller int) error {
		for i := caller; i < backlog.MaxPolicies+extra; i += callers {
			switch err := h.SetPolicy(ctx, policy(i)); {
			case errors.Is(err, backlog.ErrTooManyPolicies):
				refused[caller]++
			case err != nil:
				return err
			}
		}
		return nil
	})
	sum := 0
	for caller, err := range errs {
		isError(h, "set a policy", err, nil)
		sum += refused[caller]
	}
	equal(h, "refused policies", sum, extra)
	policies := h.policies()
	equal(h, "policies", len(policies), backlog.MaxPolicies)

	isError(h, "one more", h.SetPolicy(h.context(), backlogPolicy("one more", false, 1)), backlog.ErrTooManyPolicies)
	h.setPolicy(backlog.Policy{Channel: "one more"}) // sets nothing
	last := policies[len(policies)-1]
	last.Backlog = pointer[uint64](77)
	h.setPolicy(last) // replaces
	channel := last.Channel
	h.publish(text(name(channel), "x"))
	equalBounds(h, name(channel), backlog.Bounds{Backlog: 77})
	h.publish(text(name("other"), "x"))
	equalBounds(h, name("other"), backlog.DefaultBounds)

	h.setPolicy(backlog.Policy{Channel: last.Channel, Prefix: last.Prefix})
	h.setPolicy(backlogPolicy("one more", false, 1))
	equal(h, "policies", len(h.policies()), backlog.MaxPolicies)
}

// testPolicyAtOnce: streams that are there are bound by a policy when SetPolicy
// returns, and those of other channels are not.
func testPolicyAtOnce(h *harness) {
	stream, other := name("a", "s"), name("b", "s")
	p := h.publishMany(stream, 10)
	q := h.publishMany(other, 10)
	epoch := h.state(stream).OwnEpoch
	for _, n := range []uint64{3, 1, 9, 0, 10, 2} {
		h.setPolicy(backlogPolicy("a", false, n))
		state := h.state(stream)
		equal(h, "base", state.Base.Sequence, 10-n)
		equal(h, "frames", len(h.page(pageAfter(stream, state.Base)).Frames), int(n))
		equal(h, "base of another channel", h.state(other).Base.Sequence, 0)
		// A subscription that has begun is not cut.
		equalAll(h, "page of a running subscription", framePositions(h.page(running(pageAfter(stream, p[0]), epoch)).Frames), p[1:])
	}
	_, err := h.ReadPage(h.context(), 0, pageAfter(stream, p[6]))
	isError(h, "page after a position below the base", err, backlog.ErrTrimmed)
	equalAll(h, "page of another channel", framePositions(h.page(pageAfter(other, q[2])).Frames), q[3:])
}

func testPolicyAgeAtOnce(h *harness) {
	stream := name("age")
	old := h.publishMany(stream, 4)
	h.hooks.Age(h.T, h.Store, stream, 2*time.Hour)
	h.publishMany(stream, 2)
	for _, c := range []struct {
		age  time.Duration
		base uint64
	}{{time.Hour, 4}, {3 * time.Hour, 0}, {90 * time.Minute, 4}, {0, 0}} {
		h.setPolicy(agePolicy("ag", true, c.age))
		state := h.state(stream)
		equal(h, fmt.Sprintf("base with the retention age %v", c.age), state.Base.Sequence, c.base)
		equal(h, "retention age", state.RetentionAge, c.age)
	}
	h.setPolicy(agePolicy("ag", true, time.Hour))
	_, err := h.ReadPage(h.context(), 0, pageAfter(stream, old[2]))
	isError(h, "page after a position that is too old", err, backlog.ErrTrimmed)
}

// testPolicyDeleted: what was deleted does not come back when the bounds are
// widened, and what was not does.
func testPolicyDeleted(h *harness) {
	stream := name("deleted")
	p := h.publishMany(stream, 10)
	h.setPolicy(backlogPolicy("deleted", false, 6))
	h.hooks.Sweep(h.T, h.Store)
	equal(h, "floor", h.state(stream).Floor, 4)
	h.setPolicy(backlogPolicy("deleted", false, 2))
	equal(h, "base", h.state(stream).Base, p[7])
	h.setPolicy(backlogPolicy("deleted", false, 100))
	state := h.state(stream)
	equal(h, "base", state.Base, p[3])
	equalAll(h, "frames", framePositions(h.page(pageAfter(stream, state.Base)).Frames), p[4:])
	equalAll(h, "loaded", framePositions(h.load(everything(stream)).Frames), p[4:])
	_, err := h.ReadPage(h.context(), 0, pageAfter(stream, p[2]))
	isError(h, "page after a deleted position", err, backlog.ErrTrimmed)
	more := h.publishMany(stream, 3)
	equalAll(h, "frames", framePositions(h.page(pageAfter(stream, state.Base)).Frames), append(p[4:], more...))
}

// testPolicyNoBacklogAndBack: with backlog 0 nothing may be replayed; when it is
// raised again the frames published from then on may, and the numbering goes on.
func testPolicyNoBacklogAndBack(h *harness) {
	stream := name("back")
	h.publishMany(stream, 5)
	h.setPolicy(backlogPolicy("back", false, 0))
	p := h.publishMany(stream, 5)
	state := h.state(stream)
	equal(h, "base", state.Base, p[4])
	equal(h, "frames", len(h.page(pageAfter(stream, state.Base)).Frames), 0)
	h.hooks.Sweep(h.T, h.Store)
	equal(h, "floor", h.state(stream).Floor, 10)
	h.setPolicy(backlogPolicy("back", false, 5))
	equal(h, "base", h.state(stream).Base, p[4])
	fresh := h.publishMany(stream, 7)
	equalAll(h, "frames", framePositions(h.page(pageAfter(stream, h.state(stream).Base)).Frames), fresh[2:])
	equal(h, "head", fresh[6].Sequence, 17)
}

// testPolicySweep: the janitor keeps of each stream what the policy of its
// channel keeps.
func testPolicySweep(h *harness) {
	h.setBounds(backlog.Bounds{Backlog: 20})
	h.setPolicy(backlogPolicy("a", true, 10))
	h.setPolicy(backlogPolicy("ab", false, 5))
	h.setPolicy(backlog.Policy{Channel: "young", RetentionAge: pointer(time.Hour)})
	for _, channel := range []string{"a", "ab", "b", "young"} {
		h.publishMany(name(channel, "1"), 30)
		h.publishMany(name(channel, "2"), 30)
		h.hooks.Age(h.T, h.Store, name(channel, "2"), 2*time.Hour)
	}
	h.hooks.Sweep(h.T, h.Store)
	for stream, floor := range map[backlog.StreamName]uint64{
		name("a", "1"): 20, name("a", "2"): 20, name("ab", "1"): 25, name("ab", "2"): 25, name("b", "1"): 10, name("b", "2"): 10,
		name("young", "1"): 10, name("young", "2"): 30,
	} {
		state := h.state(stream)
		equal(h, fmt.Sprintf("floor of %q", stream), state.Floor, floor)
		equal(h, fmt.Sprintf("frames of %q", stream), len(h.load(everything(stream)).Frames), int(30-floor))
	}
}

func testPolicyStreamRetention(h *harness) {
	h.setBounds(backlog.Bounds{StreamRetention: 24 * time.Hour})
	h.setPolicy(backlog.Policy{Channel: "short", Prefix: true, StreamRetention: pointer(time.Hour)})
	h.setPolicy(backlog.Policy{Channel: "short/long", StreamRetention: pointer(48 * time.Hour)})
	streams := []backlog.StreamName{name("short"), name("short/x"), name("short/long"), name("other")}
	for _, s := range streams {
		h.publish(text(s, "x"))
	}
	h.close(name("short"))
	h.hooks.Sweep(h.T, h.Store)
	remain := func(what string, want ...backlog.StreamName) {
		h.Helper()
		for _, s := range streams {
			h.hooks.Age(h.T, h.Store, s, 10*time.Hour)
		}
		h.hooks.Sweep(h.T, h.Store)
		equalAll(h, what, h.list("", 10), want)
	}
	remain("after 10 hours", name("other"), name("short/long"))
	remain("after 20 hours", name("other"), name("short/long"))
	remain("after 30 hours", name("short/long"))
	remain("after 40 hours", name("short/long"))
	h.setPolicy(backlog.Policy{Channel: "short/long"})
	remain("without a policy of its own")
}

// testPolicyConcurrent: of policies that are set at the same time one stands, as
// a whole.
func testPolicyConcurrent(h *harness) {
	stream := name("concurrent")
	h.publish(text(stream, "x"))
	const callers, rounds = 8, 10
	errs := concurrently(h, callers, func(ctx context.Context, i int) error {
		for round := range rounds {
			n := 1 + i*rounds + round
			err := h.SetPolicy(ctx, backlog.Policy{Channel: "concurrent", Backlog: pointer(uint64(n)), RetentionAge: pointer(time.Duration(n) * time.Hour)})
			if err != nil {
				return err
			}
			if err := h.SetPolicy(ctx, backlogPolicy(fmt.Sprint(i), round%2 == 0, uint64(n))); err != nil {
				return err
			}
			if err := h.SetPolicy(ctx, backlog.Policy{Channel: fmt.Sprint(i), Prefix: round%2 == 0}); err != nil {
				return err
			}
			if _, err := backlog.Publish(ctx, h.Store, text(stream, "x")); err != nil {
				return err
			}
		}
		return nil
	})
	for _, err := range errs {
		isError(h, "set a policy", err, nil)
	}
	policies := h.policies()
	equal(h, "policies", len(policies), 1)
	state := h.state(stream)
	equal(h, "retention age", state.RetentionAge, time.Duration(state.Backlog)*time.Hour)
	if round := (state.Backlog - 1) % rounds; round != rounds-1 {
		h.Errorf("the policy of round %d stands, want one of the last", round)
	}
	equal(h, "head", state.Head.Sequence, 1+callers*rounds)
}

func testPolicyReopened(h *harness) {
	stream := name("reopened")
	h.publishMany(stream, 10)
	want := []backlog.Policy{backlogPolicy("", true, 8), backlogPolicy("reopened", false, 3)}
	for _, p := range want {
		h.setPolicy(p)
	}
	h.Store = h.hooks.Reopen(h.T, h.Store)
	equalPolicies(h, "policies", want)
	equal(h, "base", h.state(stream).Base.Sequence, 7)
}

// testPolicyNotShared: nobody who keeps a policy that was set or listed can
// change the store's with it.
func testPolicyNotShared(h *harness) {
	stream := name("shared")
	h.publish(text(stream, "x"))
	p := backlog.Policy{Channel: "shared", Backlog: pointer[uint64](1), RetentionAge: pointer(time.Hour), StreamRetention: pointer(time.Hour)}
	want := policyText(p)
	h.setPolicy(p)
	*p.Backlog, *p.RetentionAge, *p.StreamRetention = 2, time.Minute, time.Minute
	listed := h.policies()[0]
	*listed.Backlog, *listed.RetentionAge, *listed.StreamRetention = 3, time.Second, time.Second
	equal(h, "policy", policyText(h.policies()[0]), want)
	equalBounds(h, stream, backlog.Bounds{Backlog: 1, RetentionAge: time.Hour})
}
