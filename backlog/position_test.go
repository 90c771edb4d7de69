package backlog

import (
	"math"
	"strings"
	"testing"
)

func TestParsePosition(t *testing.T) {
	for _, p := range []Position{{}, {0, 1}, {1, 0}, {41, 7}, {MaxPositionValue, MaxPositionValue}, {1 << 53, 1<<53 + 1}} {
		got, err := ParsePosition(p.String())
		if err != nil || got != p {
			t.Errorf("ParsePosition(%q) = %v, %v", p.String(), got, err)
		}
	}
}

// A damaged position read as another one would replay everything, or skip
// frames.
func TestParsePositionRefuses(t *testing.T) {
	for _, s := range []string{
		"", "-", "1", "1-", "-1", "--", "1-2-3", "1--2", "-1-2", "+1-2", "1-+2", "01-2", "1-02", "00-0",
		" 1-2", "1-2 ", "1 -2", "1- 2", "1-2\n", "1-\x00", "1_0-2", "1e3-2", "0x10-2", "1,2", "1.0-2", "a-b", "NaN-1",
		"1\u20102", "\uff11-2", "9223372036854775808-1", "1-9223372036854775808", "18446744073709551616-1",
		"1-99999999999999999999", strings.Repeat("1", 10<<10) + "-1",
	} {
		p, err := ParsePosition(s)
		if err == nil {
			t.Errorf("ParsePosition(%q) = %v", s, p)
		} else if len(err.Error()) > 300 {
			t.Errorf("an error of %d bytes for %.20q…", len(err.Error()), s)
		}
	}
}

// What is accepted is exactly what String writes.
func FuzzParsePosition(f *testing.F) {
	for _, s := range []string{"0-0", "41-7", "9223372036854775807-1", "01-2", "1-", "-1-2", "1-2-3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePosition(s)
		if err != nil {
			if p != (Position{}) {
				t.Errorf("%v with an error", p)
			}
			return
		}
		if p.String() != s || p.Epoch > math.MaxInt64 || p.Sequence > math.MaxInt64 {
			t.Errorf("ParsePosition(%q) = %s", s, p)
		}
	})
}
