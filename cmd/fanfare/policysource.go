package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// policySet is everything that decides what applies to streams.
type policySet struct {
	policies []backlog.Policy
	// builtIn is what the server has for bounds that no policy sets.
	builtIn backlog.Bounds
}

func policySetOf(answer *fanfarev1.ListPoliciesResponse) policySet {
	s := policySet{builtIn: boundsOf(answer.GetBuiltIn())}
	for _, policy := range answer.GetPolicies() {
		s.policies = append(s.policies, policyOf(policy))
	}
	return s
}

// policy is the one of a target; it sets nothing if there is none.
func (s policySet) policy(t policyTarget) backlog.Policy {
	if i := s.index(t); i >= 0 {
		return s.policies[i]
	}
	return backlog.Policy{Channel: t.channel, Prefix: t.prefix}
}

func (s policySet) index(t policyTarget) int {
	return slices.IndexFunc(s.policies, func(p backlog.Policy) bool { return policyTarget{p.Channel, p.Prefix} == t })
}

// with is the set once a policy is put in the place of the one of its target.
func (s policySet) with(p backlog.Policy) policySet {
	s.policies = slices.Clone(s.policies)
	if i := s.index(policyTarget{p.Channel, p.Prefix}); i >= 0 {
		s.policies[i] = p
	} else {
		s.policies = append(s.policies, p)
	}
	return s
}

// effective resolves what applies to a target's streams.
func (s policySet) effective(t policyTarget) backlog.Bounds {
	// Last, it comes after a default that is set.
	last := backlog.Policy{Prefix: true, Backlog: &s.builtIn.Backlog, RetentionAge: &s.builtIn.RetentionAge, StreamRetention: &s.builtIn.StreamRetention}
	return backlog.BoundsOf(append(slices.Clip(s.policies), last), t.channel, t.prefix)
}

// source is where a bound comes from: the target of a policy, or nil for what is
// built in.
type source *policyTarget

// sources are those of a target's bounds.
type sources struct{ backlog, retentionAge, streamRetention source }

// sources resolves where what applies to a target's streams comes from.
func (s policySet) sources(t policyTarget) sources {
	// Resolved as bounds are, with each policy's number in place of its values.
	count := len(s.policies)
	numbered := policySet{builtIn: backlog.Bounds{Backlog: uint64(count), RetentionAge: time.Duration(count), StreamRetention: time.Duration(count)}}
	for i, p := range s.policies {
		number, age := uint64(i), time.Duration(i)
		n := backlog.Policy{Channel: p.Channel, Prefix: p.Prefix}
		if p.Backlog != nil {
			n.Backlog = &number
		}
		if p.RetentionAge != nil {
			n.RetentionAge = &age
		}
		if p.StreamRetention != nil {
			n.StreamRetention = &age
		}
		numbered.policies = append(numbered.policies, n)
	}
	target := func(i int) source {
		if i == count {
			return nil
		}
		return &policyTarget{s.policies[i].Channel, s.policies[i].Prefix}
	}
	b := numbered.effective(t)
	return sources{target(int(b.Backlog)), target(int(b.RetentionAge)), target(int(b.StreamRetention))}
}

// sourceText is a source for people: channel, prefix "chat/", default, built-in.
func sourceText(s source) string {
	object := newSourceJSON(s)
	if object.AppliesTo == "prefix" {
		return fmt.Sprintf("prefix %q", object.Channel)
	}
	return object.AppliesTo
}

func newSourceJSON(s source) sourceJSON {
	if s == nil {
		return sourceJSON{AppliesTo: "built-in"}
	}
	return sourceJSON{(*policyTarget)(s).kind(), s.channel}
}

func newSourcesJSON(s sources) *sourcesJSON {
	return &sourcesJSON{newSourceJSON(s.backlog), newSourceJSON(s.retentionAge), newSourceJSON(s.streamRetention)}
}
