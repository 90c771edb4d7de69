package clientlib

import (
	"encoding/json"
	"testing"
)

func TestPositionText(t *testing.T) {
	for _, p := range []Position{{}, {7, 5}, {1<<63 - 1, 1<<63 - 1}} {
		got, err := ParsePosition(p.String())
		if err != nil || got != p {
			t.Errorf("%s became %s, %v", p, got, err)
		}
	}
	for _, text := range []string{"", "-", "1", "1-", "-1", "1-2-3", "01-2", "1-02", "+1-2", " 1-2", "1-2 ", "1_0-2", "0x1-2", "9223372036854775808-1", "1-9223372036854775808"} {
		if p, err := ParsePosition(text); err == nil {
			t.Errorf("%q was read as %s", text, p)
		}
	}
	text, err := json.Marshal(map[string]Position{"p": {7, 5}})
	if err != nil || string(text) != `{"p":"7-5"}` {
		t.Errorf("got %s, %v", text, err)
	}
}

func FuzzPosition(f *testing.F) {
	f.Add("7-5")
	f.Add("0-00")
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := ParsePosition(text); err == nil && p.String() != text {
			t.Errorf("%q was read as %s", text, p)
		}
	})
}
