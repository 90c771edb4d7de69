package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Words for bounds, beside numbers and durations.
const (
	inheritWord = "inherit"
	anyWord     = "any"
)

const day = 24 * time.Hour

// parseBacklog reads a number of frames; nil for "inherit".
func parseBacklog(text string) (*uint64, error) {
	if text == inheritWord {
		return nil, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return nil, usagef("--backlog must be below 2^63")
	}
	if err != nil {
		return nil, usagef("--backlog %q is neither a number of frames nor %s", text, inheritWord)
	}
	return &n, nil
}

// parseAge reads the duration of a flag, which also takes words; nil for
// "inherit".
func parseAge(flag, text, words string) (*time.Duration, error) {
	if text == inheritWord {
		return nil, nil
	}
	d, err := parseDays(text)
	if err != nil {
		return nil, usagef("--%s %q is neither a duration, such as 90m, 24h or 7d, nor %s", flag, text, words)
	}
	return &d, nil
}

// parseDays is time.ParseDuration that knows days, of 24 hours, too: "7d",
// "1d12h".
func parseDays(text string) (time.Duration, error) {
	days, rest, found := strings.Cut(text, "d")
	if !found {
		return time.ParseDuration(text)
	}
	n, err := strconv.ParseInt(days, 10, 64)
	if err != nil {
		return 0, err
	}
	// Whatever is too long for a duration is too long for a policy, as is this.
	n = max(min(n, int64(backlog.MaxPolicyAge/day)+1), -1)
	d := time.Duration(n) * day
	if rest == "" {
		return d, nil
	}
	more, err := time.ParseDuration(rest)
	if err != nil || n < 0 || more < 0 || rest[0] == '+' {
		return 0, fmt.Errorf("%q does not follow a number of days", rest)
	}
	return d + min(more, backlog.MaxPolicyAge), nil
}

// backlogText is a number of frames as parseBacklog reads it.
func backlogText(n uint64) string { return strconv.FormatUint(n, 10) }

// ageText is a duration as parseDays reads it, in days where it can be: "7d",
// "36h", "1h30m".
func ageText(d time.Duration) string {
	if d != 0 && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// retentionAgeText is ageText for an age of which 0 means any.
func retentionAgeText(d time.Duration) string {
	if d == 0 {
		return anyWord
	}
	return ageText(d)
}

// policyOf is a policy of the protocol as the store's vocabulary has it. The
// absent one sets nothing.
func policyOf(p *fanfarev1.Policy) backlog.Policy {
	if p == nil {
		return backlog.Policy{}
	}
	return backlog.Policy{
		Channel:         p.GetChannel(),
		Prefix:          p.GetPrefix(),
		Backlog:         p.Backlog,
		RetentionAge:    durationOf(p.GetRetentionAge()),
		StreamRetention: durationOf(p.GetStreamRetention()),
	}
}

func durationOf(d *durationpb.Duration) *time.Duration {
	if d == nil {
		return nil
	}
	value := d.AsDuration()
	return &value
}

func boundsOf(b *fanfarev1.Bounds) backlog.Bounds {
	return backlog.Bounds{
		Backlog:         b.GetBacklog(),
		RetentionAge:    b.GetRetentionAge().AsDuration(),
		StreamRetention: b.GetStreamRetention().AsDuration(),
	}
}

// The objects that fanfare policy prints with --json. A bound that is null is
// inherited; a retention age of 0 is any age.
type (
	policyJSON struct {
		Channel string `json:"channel"`
		Prefix  bool   `json:"prefix"`
		setJSON
		Effective effectiveJSON `json:"effective"`
		// Source is absent in lists, where it is on the other lines.
		Source *sourcesJSON `json:"source,omitempty"`
	}
	setJSON struct {
		Backlog         *uint64  `json:"backlog"`
		RetentionAge    *float64 `json:"retention_age_seconds"`
		StreamRetention *float64 `json:"stream_retention_seconds"`
	}
	effectiveJSON struct {
		Backlog         uint64  `json:"backlog"`
		RetentionAge    float64 `json:"retention_age_seconds"`
		StreamRetention float64 `json:"stream_retention_seconds"`
	}
	sourcesJSON struct {
		Backlog         sourceJSON `json:"backlog"`
		RetentionAge    sourceJSON `json:"retention_age_seconds"`
		StreamRetention sourceJSON `json:"stream_retention_seconds"`
	}
	sourceJSON struct {
		// AppliesTo is channel, prefix, default or built-in.
		AppliesTo string `json:"applies_to"`
		// Channel is that of a channel or a prefix.
		Channel string `json:"channel,omitempty"`
	}
)

func newPolicyJSON(p backlog.Policy, b backlog.Bounds) policyJSON {
	return policyJSON{
		Channel:   p.Channel,
		Prefix:    p.Prefix,
		setJSON:   setJSON{p.Backlog, seconds(p.RetentionAge), seconds(p.StreamRetention)},
		Effective: effectiveJSON{b.Backlog, b.RetentionAge.Seconds(), b.StreamRetention.Seconds()},
	}
}

func seconds(d *time.Duration) *float64 {
	if d == nil {
		return nil
	}
	s := d.Seconds()
	return &s
}
