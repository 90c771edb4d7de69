package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func around(median float64) spread {
	return spread{Median: median, Min: median * 0.7, Q1: median * 0.9, Q3: median * 1.1, Max: median * 1.3}
}

func pointer[T any](v T) *T { return &v }

// results are lines as a run gives them: with a reference and a target, with a
// target of the value, and with neither.
func results() []line {
	compared := func(scenario, name, unit string, value, reference float64, with string, target float64, atLeast bool) line {
		return line{
			Scenario: scenario, Case: name, What: "what <is> measured", Unit: unit, Values: around(value),
			ComparedWith: with, References: pointer(around(reference)), Ratio: pointer(around(value / reference)),
			Target: &target, AtLeast: atLeast, Met: pointer(value/reference >= target == atLeast), Rounds: 7,
		}
	}
	lines := []line{
		compared("publish", "many", "/s", 20_000, 500, "one at a time (a)", 30, true),
		compared("publish", "many", "/s", 21_000, 40_000, "the limit (b)", 0.5, true),
		compared("fanout", "1000", "µs", 1.2, 1.1, "bare", 0.9, false),
		compared("fanout", "1000", "", 12, 1, "bare", 2, true),
		compared("fanout", "growth", "s", 3, 2, "100 subscribers", 1.3, false),
		compared("fanout", "growth", "s", 3, 2.5, "10 subscribers", 1.3, false),
		{Scenario: "storm", Case: "queries", What: "queries", Values: around(12), Target: pointer(40.0), Met: pointer(true)},
		{Scenario: "publish", Case: "alone", What: "server CPU", Unit: "µs", Values: around(3)},
		{Scenario: "storm", Case: "none", What: "nothing", Unit: "s", Values: spread{}, ComparedWith: "nothing", References: &spread{}},
	}
	for i, l := range lines {
		if l.Case == "growth" {
			lines[i].What += ": 1000 subscribers"
		}
	}
	return lines
}

func write(t *testing.T, name string, lines []line) string {
	t.Helper()
	var b bytes.Buffer
	for _, l := range lines {
		if err := json.NewEncoder(&b).Encode(l); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// texts returns what an SVG says; it must be well-formed.
func texts(t *testing.T, picture []byte) string {
	t.Helper()
	var said []string
	decoder := xml.NewDecoder(bytes.NewReader(picture))
	within := ""
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return strings.Join(said, "|")
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			within = token.Name.Local
		case xml.CharData:
			if within == "text" {
				said = append(said, strings.TrimSpace(string(token)))
			}
		}
	}
}

func TestPicturesSayWhatWasMeasured(t *testing.T) {
	out := t.TempDir()
	var table bytes.Buffer
	err := run([]string{"--out", out, write(t, "sqlite.json", results()), write(t, "elsewhere.json", results()[:1])}, &table)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		"fanout-growth.svg":       {"fanout: what <is> measured", "|10 subscribers||embedded store||100 subscribers||embedded store||1000 subscribers||embedded store|", "|2.5|", "|2|", "|3|", "|seconds|"},
		"targets.svg":             {"|40×, target ≥ 30×|", "|1.09×, target ≤ 0.9×|", "|12, target ≤ 40|", "publish many: what <is> measured", "(elsewhere)"},
		"publish-rate.svg":        {"publish: what <is> measured", "|20,000|", "|500|", "|40,000|", "embedded store", "|the limit (b)|", "|per second (logarithmic)|"},
		"fanout-microseconds.svg": {"|1.2|", "|1.1|", "|bare|", "|µs|"},
		"storm-seconds.svg":       {"nothing", "|seconds|"},
	}
	files, err := os.ReadDir(out)
	if err != nil || len(files) != len(want) {
		t.Errorf("there are %d pictures, want %d (%v)", len(files), len(want), err)
	}
	for name, parts := range want {
		picture, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Error(err)
			continue
		}
		said := texts(t, picture)
		for _, part := range parts {
			if !strings.Contains(said, part) {
				t.Errorf("%s does not say %q: %s", name, part, said)
			}
		}
		if strings.Contains(string(picture), "NaN") || strings.Contains(string(picture), "Inf") {
			t.Errorf("%s has a number that is none", name)
		}
		if first := strings.Index(string(picture), "<path"); !strings.Contains(string(picture)[first:first+100], "fill:#FFFFFF") {
			t.Errorf("%s does not begin with a white background", name)
		}
		if !strings.Contains(string(picture), fontFamilies) || strings.Contains(string(picture), fontFamily+";") {
			t.Errorf("%s names no font that other machines have", name)
		}
	}
	for _, row := range []string{
		"| embedded store | publish many | what <is> measured | 20,000/s | one at a time (a) | 500/s | 40× (28–52) | ≥ 30× | yes |",
		"| embedded store | fanout 1000 | what <is> measured | 1.2 µs | bare | 1.1 µs | 1.09× (0.764–1.42) | ≤ 0.9× | **no** |",
		"| embedded store | storm queries | queries | 12 |  |  |  | ≤ 40 | yes |",
		"| elsewhere | publish many |",
	} {
		if !strings.Contains(table.String(), row) {
			t.Errorf("the table has no row\n%s\n%s", row, table.String())
		}
	}
}

func TestShareOfATargetIsBelowOneWhereItIsMet(t *testing.T) {
	if s := shareOf(spread{Median: 40, Min: 20, Q1: 32, Q3: 50, Max: 80}, 40, true); s != (spread{Median: 1, Min: 0.5, Q1: 0.8, Q3: 1.25, Max: 2}) {
		t.Errorf("of at least 40: %+v", s)
	}
	if s := shareOf(spread{Median: 2, Min: 1, Q1: 1.5, Q3: 3, Max: 4}, 4, false); s != (spread{Median: 0.5, Min: 0.25, Q1: 0.375, Q3: 0.75, Max: 1}) {
		t.Errorf("of at most 4: %+v", s)
	}
}

func TestAReferenceHasTheSameColourEverywhere(t *testing.T) {
	for _, c := range []struct {
		series []string
		want   []int
	}{
		{[]string{fanfare}, []int{0}},
		{[]string{fanfare, "bare (c)", "naive (d)"}, []int{0, 3, 4}},
		{[]string{fanfare, "naive (d)", "bare (c)"}, []int{0, 4, 3}},
		{[]string{fanfare, "rows (a)", "something", "else"}, []int{0, 1, 2, 3}},
	} {
		p := picture{series: c.series}
		if got := p.colorsOf(len(colors)); !slices.Equal(got, c.want) {
			t.Errorf("%q have the colours %v, want %v", c.series, got, c.want)
		}
	}
}

func TestFiguresHaveThreeDigits(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 1: "1", 0.5: "0.5", 1234567: "1,230,000", 999.6: "1,000", 99.96: "100", 12.345: "12.3", 0.012345: "0.0123", 1000: "1,000", 123: "123", -45678: "-45,700",
	} {
		if got := figure(v); got != want {
			t.Errorf("%v is written %s, want %s", v, got, want)
		}
	}
}

func TestWhatCannotBeReadIsAnError(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte(`{"scenario":`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{}, {"missing.json"}, {broken}, {"--out", filepath.Join(t.TempDir(), "none"), write(t, "a.json", results())}} {
		if err := run(args, io.Discard); err == nil {
			t.Errorf("charts %q succeeded", args)
		}
	}
}
