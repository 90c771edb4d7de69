package service

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// GetPolicy implements FanfareService.
func (s *Server) GetPolicy(ctx context.Context, req *fanfarev1.GetPolicyRequest) (*fanfarev1.GetPolicyResponse, error) {
	policy, err := policyOf(&fanfarev1.Policy{Channel: req.GetChannel(), Prefix: req.GetPrefix()})
	if err != nil {
		return nil, failureOf(err)
	}
	policies, err := s.store.Policies(ctx)
	if err != nil {
		return nil, readFailureOf(err)
	}
	for _, p := range policies {
		if p.Channel == policy.Channel && p.Prefix == policy.Prefix {
			policy = p
		}
	}
	return &fanfarev1.GetPolicyResponse{
		Policy:    EncodePolicy(policy),
		Effective: boundsProto(backlog.BoundsOf(policies, policy.Channel, policy.Prefix)),
	}, nil
}

// ListPolicies implements FanfareService.
func (s *Server) ListPolicies(ctx context.Context, _ *fanfarev1.ListPoliciesRequest) (*fanfarev1.ListPoliciesResponse, error) {
	policies, err := s.store.Policies(ctx)
	if err != nil {
		return nil, readFailureOf(err)
	}
	response := &fanfarev1.ListPoliciesResponse{
		Policies: make([]*fanfarev1.Policy, len(policies)),
		BuiltIn:  boundsProto(backlog.DefaultBounds),
	}
	for i, p := range policies {
		response.Policies[i] = EncodePolicy(p)
	}
	return response, nil
}

// SetPolicy implements FanfareService.
func (s *Server) SetPolicy(ctx context.Context, req *fanfarev1.SetPolicyRequest) (*fanfarev1.SetPolicyResponse, error) {
	if req.GetPolicy() == nil {
		return nil, failureOf(&backlog.LimitError{Field: "policy", Message: "must be set"})
	}
	policy, err := policyOf(req.GetPolicy())
	if err != nil {
		return nil, failureOf(within("policy", err))
	}
	if err := s.store.SetPolicy(ctx, policy); err != nil {
		return nil, policyFailureOf(err)
	}
	// It deletes frames, for ever: whoever misses them must find out why.
	s.logger.InfoContext(ctx, "policy set", policyAttrs(policy)...)
	policies, err := s.store.Policies(ctx)
	if err != nil {
		// Not UNAVAILABLE, which says that nothing was stored.
		return nil, policyFailureOf(fmt.Errorf("%w: it was set, then: %w", backlog.ErrOutcomeUnknown, err))
	}
	return &fanfarev1.SetPolicyResponse{
		Effective: boundsProto(backlog.BoundsOf(policies, policy.Channel, policy.Prefix)),
	}, nil
}

// policyFailureOf is failureOf for SetPolicy.
func policyFailureOf(err error) *failure {
	return failureOf(err).saying(fanfarev1.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN,
		"the policy may or may not have been set; setting it again is safe")
}

// policyOf reads and checks a policy. The error is a *backlog.LimitError.
func policyOf(p *fanfarev1.Policy) (backlog.Policy, error) {
	if err := checkText(text{"channel", p.GetChannel()}); err != nil {
		return backlog.Policy{}, err
	}
	age, err := duration("retention_age", p.GetRetentionAge())
	if err != nil {
		return backlog.Policy{}, err
	}
	retention, err := duration("stream_retention", p.GetStreamRetention())
	if err != nil {
		return backlog.Policy{}, err
	}
	policy := backlog.Policy{
		Channel:         p.GetChannel(),
		Prefix:          p.GetPrefix(),
		Backlog:         p.Backlog,
		RetentionAge:    age,
		StreamRetention: retention,
	}
	return policy, policy.Validate()
}

// duration reads a duration; nil if it is absent. One that time.Duration cannot
// hold becomes the longest that it can, which is outside every limit.
func duration(field string, d *durationpb.Duration) (*time.Duration, error) {
	if d == nil {
		return nil, nil //nolint:nilnil // absent
	}
	const second = int32(time.Second)
	seconds, nanos := d.GetSeconds(), d.GetNanos()
	if nanos <= -second || nanos >= second || seconds > 0 && nanos < 0 || seconds < 0 && nanos > 0 {
		return nil, &backlog.LimitError{Field: field, Message: "must have nanos below a second and of the sign of its seconds"}
	}
	value := d.AsDuration()
	return &value, nil
}

// EncodePolicy is a policy as the protocol has it; a bound that is nil is absent.
func EncodePolicy(p backlog.Policy) *fanfarev1.Policy {
	return &fanfarev1.Policy{
		Channel:         p.Channel,
		Prefix:          p.Prefix,
		Backlog:         p.Backlog,
		RetentionAge:    durationProto(p.RetentionAge),
		StreamRetention: durationProto(p.StreamRetention),
	}
}

// durationProto is nil for nil.
func durationProto(d *time.Duration) *durationpb.Duration {
	if d == nil {
		return nil
	}
	return durationpb.New(*d)
}

func boundsProto(b backlog.Bounds) *fanfarev1.Bounds {
	return &fanfarev1.Bounds{
		Backlog:         b.Backlog,
		RetentionAge:    durationpb.New(b.RetentionAge),
		StreamRetention: durationpb.New(b.StreamRetention),
	}
}

// policyAttrs are what a log says of a policy: of the bounds those that are set.
func policyAttrs(p backlog.Policy) []any {
	attrs := []any{slog.String("channel", p.Channel), slog.Bool("prefix", p.Prefix)}
	if p.Backlog != nil {
		attrs = append(attrs, slog.Uint64("backlog", *p.Backlog))
	}
	if p.RetentionAge != nil {
		attrs = append(attrs, slog.Duration("retention_age", *p.RetentionAge))
	}
	if p.StreamRetention != nil {
		attrs = append(attrs, slog.Duration("stream_retention", *p.StreamRetention))
	}
	return attrs
}
