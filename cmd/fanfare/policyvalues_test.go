package main

import (
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

func TestParseDays(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"7d": 7 * day, "1d12h": 36 * time.Hour, "0d": 0, "36500d": backlog.MaxPolicyAge, "1d0h": day, "1d90m": 25*time.Hour + 30*time.Minute,
		"24h": day, "1.5h": 90 * time.Minute, "0": 0, "-1d": -day, "1d1µs": day + time.Microsecond,
	} {
		if got, err := parseDays(text); err != nil || got != want {
			t.Errorf("%q is %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "7", "1.5d", "1h1d", "1d-1h", "1d+1h", "-1d1h", "d7", "7 d", "7d ", "1d1", "1d1d", "９d", "99999999999999999999d", "1e3d"} {
		if got, err := parseDays(text); err == nil {
			t.Errorf("%q is %s", text, got)
		}
	}
	// Too long for a duration is too long for a policy, not something short.
	for _, text := range []string{"36501d", "999999999d", "9223372036854775807d", "36500d1h", "36500d2562047h"} {
		if got, err := parseDays(text); err != nil || got <= backlog.MaxPolicyAge {
			t.Errorf("%q is %s, %v", text, got, err)
		}
	}
}

func TestAgeText(t *testing.T) {
	for d, want := range map[time.Duration]string{
		7 * day: "7d", 36 * time.Hour: "36h", 90 * time.Minute: "1h30m", time.Hour + time.Second: "1h0m1s", 10 * time.Minute: "10m", 10 * time.Second: "10s", 30 * time.Minute: "30m", 90 * time.Second: "1m30s",
		500 * time.Millisecond: "500ms", 0: "0s", time.Microsecond: "1µs", backlog.MaxPolicyAge: "36500d",
	} {
		if got := ageText(d); got != want {
			t.Errorf("%s is shown as %q, want %q", d, got, want)
		}
	}
	if retentionAgeText(0) != "any" || retentionAgeText(day) != "1d" {
		t.Error("a retention age of 0 is not any")
	}
}

// What is shown can be given: whatever is read and shown is read as the same.
func FuzzParseDays(f *testing.F) {
	for _, text := range []string{"7d", "1d12h", "90m", "-1d", "1d1µs", "9223372036854775807d", "d", "1dd", "1d-1h"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := parseDays(text)
		if err != nil {
			return
		}
		if again, err := parseDays(ageText(d)); err != nil || again != d {
			t.Errorf("%q is %s, shown as %q, which is %s, %v", text, d, ageText(d), again, err)
		}
	})
}
