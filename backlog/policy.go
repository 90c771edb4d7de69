package backlog

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// MaxPolicies bounds the policies of a store: each read of a stream's state goes
// through them.
const MaxPolicies = 1000

// MaxPolicyAge is the longest age and retention that a policy may set.
const MaxPolicyAge = 100 * 365 * 24 * time.Hour

// Policy sets bounds for streams by their channel. A nil field is inherited: of
// the policies that match a channel, the one of exactly that channel comes first,
// then those of prefixes, the longest first, then [DefaultBounds]. The policy of
// the empty prefix matches every channel and is the store's default.
type Policy struct {
	// Channel is the channel, or what it begins with. It is a valid name, or empty
	// if Prefix is set.
	Channel string
	// Prefix is true if the policy is for all channels that begin with Channel.
	Prefix bool
	// Backlog is how many of a stream's newest frames a new subscription may
	// replay, below 2^63. 0: none.
	Backlog *uint64
	// RetentionAge is how old those may be, in microseconds, up to MaxPolicyAge.
	// 0: any age.
	RetentionAge *time.Duration
	// StreamRetention is how long a stream is kept that is closed, or of which no
	// frame is left; in microseconds, up to MaxPolicyAge, not 0.
	StreamRetention *time.Duration
}

// Bounds are what applies to a stream; see [Policy].
type Bounds struct {
	Backlog         uint64
	RetentionAge    time.Duration
	StreamRetention time.Duration
}

// UseInterval is how exactly a store knows when a stream was last used, if what
// uses it is ephemeral frames, which write nothing: the first of an interval is
// noted, and a stream that has carried one is kept for so much longer than its
// retention.
const UseInterval = time.Minute

// DefaultBounds apply where no policy sets anything else.
var DefaultBounds = Bounds{Backlog: 1000, StreamRetention: 7 * 24 * time.Hour}

// Sets reports whether p sets anything.
func (p *Policy) Sets() bool {
	return p.Backlog != nil || p.RetentionAge != nil || p.StreamRetention != nil
}

// Validate checks p against every limit. The error is a *LimitError.
func (p *Policy) Validate() error {
	if p.Channel != "" || !p.Prefix {
		if err := (StreamName{Channel: p.Channel}).Validate(); err != nil {
			return err
		}
	}
	if p.Backlog != nil && *p.Backlog > MaxPositionValue {
		return &LimitError{"backlog", "must be below 2^63"}
	}
	if err := checkAge("retention_age", p.RetentionAge); err != nil {
		return err
	}
	if p.StreamRetention != nil && *p.StreamRetention == 0 {
		return &LimitError{"stream_retention", "must not be 0"}
	}
	return checkAge("stream_retention", p.StreamRetention)
}

func checkAge(field string, age *time.Duration) error {
	switch {
	case age == nil:
		return nil
	case *age < 0:
		return &LimitError{field, "must not be negative"}
	case *age > MaxPolicyAge:
		return &LimitError{field, fmt.Sprintf("must be at most %d hours, 100 years", MaxPolicyAge/time.Hour)}
	case *age%time.Microsecond != 0:
		return &LimitError{field, "must be in whole microseconds"}
	}
	return nil
}

// BoundsOf returns what applies to the streams of a channel, or to those channels
// with a prefix that have no policy of their own.
func BoundsOf(policies []Policy, channel string, prefix bool) Bounds {
	var backlog, age, retention *Policy
	for i := range policies {
		p := &policies[i]
		if !p.matches(channel, prefix) {
			continue
		}
		if p.Backlog != nil && p.closerThan(backlog) {
			backlog = p
		}
		if p.RetentionAge != nil && p.closerThan(age) {
			age = p
		}
		if p.StreamRetention != nil && p.closerThan(retention) {
			retention = p
		}
	}
	b := DefaultBounds
	if backlog != nil {
		b.Backlog = *backlog.Backlog
	}
	if age != nil {
		b.RetentionAge = *age.RetentionAge
	}
	if retention != nil {
		b.StreamRetention = *retention.StreamRetention
	}
	return b
}

func (p *Policy) matches(channel string, prefix bool) bool {
	if p.Prefix {
		return strings.HasPrefix(channel, p.Channel)
	}
	return !prefix && p.Channel == channel
}

// closerThan reports whether p, which matches, comes before other, which does or
// is nil.
func (p *Policy) closerThan(other *Policy) bool {
	return other == nil || !p.Prefix || other.Prefix && len(p.Channel) > len(other.Channel)
}

// ComparePolicies orders policies by channel, byte by byte, and that of a channel
// before that of the prefix.
func ComparePolicies(a, b Policy) int {
	if c := cmp.Compare(a.Channel, b.Channel); c != 0 || a.Prefix == b.Prefix {
		return c
	}
	if b.Prefix {
		return -1
	}
	return 1
}
