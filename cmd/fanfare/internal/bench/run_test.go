package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

// patience bounds every wait of these tests.
const patience = 30 * time.Second

// newRun returns a run of a case of these sizes and what it reports.
func newRun(sizes Sizes, rounds int) (*Run, *[]Line) {
	var lines []Line
	r := &Run{
		Config:   Config{Report: func(l Line) { lines = append(lines, l) }},
		Scenario: "scenario", Case: "case", Sizes: sizes, Rounds: rounds, defaults: sizes,
	}
	return r, &lines
}

// The order is reversed from round to round, so that a machine that gets slower
// meets all sides alike. A side that cannot be measured is left out.
func TestRoundsAreInterleaved(t *testing.T) {
	r, _ := newRun(Sizes{}, 3)
	var order []string
	side := func(name string) Side[int] {
		return Side[int]{name, func(context.Context) (int, error) {
			order = append(order, name)
			return len(order), nil
		}}
	}
	m, err := Rounds(t.Context(), r, side(Fanfare), side("b"), Side[int]{Name: "not here"}, side("c"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(order, " "); got != "fanfare b c c b fanfare fanfare b c" {
		t.Errorf("the order was %s", got)
	}
	number := func(i int) float64 { return float64(i) }
	for side, want := range map[string][]float64{Fanfare: {1, 6, 7}, "b": {2, 5, 8}, "c": {3, 4, 9}, "not here": nil} {
		if got := m.Of(side, number); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", side, got, want)
		}
	}
}

func TestRoundsEndWithAnError(t *testing.T) {
	broken := errors.New("broken")
	r, _ := newRun(Sizes{}, 3)
	calls := 0
	_, err := Rounds(t.Context(), r, Side[int]{"a", func(context.Context) (int, error) { calls++; return 0, broken }})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "a: ") || calls != 1 {
		t.Errorf("after %d calls: %v", calls, err)
	}
	interrupted := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err = Rounds(ctx, r, Side[int]{"a", func(context.Context) (int, error) { cancel(interrupted); return 0, nil }})
	if !errors.Is(err, interrupted) {
		t.Errorf("after an interruption: %v", err)
	}
}

// A figure is compared round by round: the median of ratios, not the ratio of
// medians, which would pair a quiet moment with a busy one.
func TestRatiosAreThoseOfTheRounds(t *testing.T) {
	r, lines := newRun(Sizes{Bytes: 200}, 3)
	err := r.ReportFigure(Figure{
		What: "thing", Unit: "ms", Values: []float64{10, 40, 100}, ComparedWith: "other", References: []float64{20, 20, 100},
		Target: AtMost(1.5), Parameters: map[string]any{"mode": "x"},
	})
	if err != nil || len(*lines) != 1 {
		t.Fatalf("%v, %+v", err, *lines)
	}
	l := (*lines)[0]
	if *l.Ratio != (Spread{Median: 1, Min: 0.5, Max: 2, Q1: 0.75, Q3: 1.5}) || l.Value != 40 || *l.Reference != 20 {
		t.Errorf("the line is %+v, its ratio %+v", l, *l.Ratio)
	}
	if !*l.Met || *l.Target != 1.5 || l.AtLeast || l.Rounds != 3 {
		t.Errorf("the target: %+v", l)
	}
	want := map[string]any{"bytes": 200, "mode": "x", "seconds": 0.0, "store": "sqlite"}
	if !reflect.DeepEqual(l.Parameters, want) {
		t.Errorf("the parameters are %v, want %v", l.Parameters, want)
	}
}

func TestTargets(t *testing.T) {
	for _, c := range []struct {
		name   string
		figure Figure
		sizes  Sizes
		// want is "yes", "no" or "none".
		want string
	}{
		{"least is reached", Figure{ComparedWith: "o", References: []float64{1}, Target: AtLeast(12)}, Sizes{}, "yes"},
		{"least is missed", Figure{ComparedWith: "o", References: []float64{1.01}, Target: AtLeast(12)}, Sizes{}, "no"},
		{"most is kept", Figure{ComparedWith: "o", References: []float64{1}, Target: AtMost(12)}, Sizes{}, "yes"},
		{"most is passed", Figure{ComparedWith: "o", References: []float64{0.99}, Target: AtMost(12)}, Sizes{}, "no"},
		{"of a value", Figure{Target: AtMost(12)}, Sizes{}, "yes"},
		{"of a value, missed", Figure{Target: AtMost(11)}, Sizes{}, "no"},
		{"no reference was measured", Figure{ComparedWith: "o", Target: AtMost(12)}, Sizes{}, "none"},
		{"other sizes than the target's", Figure{Target: AtMost(12)}, Sizes{Bytes: 7}, "none"},
		{"no target", Figure{}, Sizes{}, "none"},
	} {
		r, lines := newRun(Sizes{}, 1)
		r.Sizes = c.sizes
		c.figure.What, c.figure.Values = "thing", []float64{12}
		if err := r.ReportFigure(c.figure); err != nil {
			t.Fatal(err)
		}
		got := "none"
		if l := (*lines)[0]; l.Met != nil {
			got = map[bool]string{true: "yes", false: "no"}[*l.Met]
		} else if l.Target != nil {
			t.Errorf("%s: a target that nobody judged: %+v", c.name, l)
		}
		if got != c.want {
			t.Errorf("%s: met is %s, want %s", c.name, got, c.want)
		}
	}
}

// Nothing measured must not become a figure that looks like one.
func TestNothingMeasuredIsAnError(t *testing.T) {
	for _, f := range []Figure{
		{},
		{Values: []float64{math.NaN()}},
		{Values: []float64{math.Inf(1)}},
		{Values: []float64{1}, ComparedWith: "o", References: []float64{0}},
		{Values: []float64{1}, ComparedWith: "o", References: []float64{math.NaN()}},
	} {
		r, lines := newRun(Sizes{}, 1)
		if err := r.ReportFigure(f); !errors.Is(err, errNothingMeasured) || len(*lines) != 0 {
			t.Errorf("%+v: %v, %+v", f, err, *lines)
		}
	}
}

func TestQuantiles(t *testing.T) {
	for _, c := range []struct {
		sorted []float64
		q      float64
		want   float64
	}{
		{[]float64{7}, 0, 7}, {[]float64{7}, 0.5, 7}, {[]float64{7}, 1, 7},
		{[]float64{1, 2}, 0.5, 1.5}, {[]float64{1, 2, 4}, 0.75, 3}, {[]float64{1, 2, 3, 4, 5}, 0.25, 2}, {[]float64{1, 2, 3, 4, 5}, 1, 5},
	} {
		if got := Quantile(c.sorted, c.q); got != c.want {
			t.Errorf("%v of %v is %v, want %v", c.q, c.sorted, got, c.want)
		}
	}
	if got := spreadOf([]float64{3, 1, 2}); got != (Spread{Median: 2, Min: 1, Max: 3, Q1: 1.5, Q3: 2.5}) {
		t.Errorf("the spread is %+v", got)
	}
}

// What a case began is ended in reverse order, also after an error and an
// interruption.
func TestCasesAreEnded(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name      string
		result    error
		interrupt bool
	}{{"done", nil, false}, {"failed", broken, false}, {"interrupted", context.Canceled, true}} {
		ctx, cancel := context.WithCancel(t.Context())
		var ended []string
		one := Case{Name: "one", Run: func(_ context.Context, r *Run) error {
			for i := range 2 {
				r.AtEnd(func(ctx context.Context) error {
					ended = append(ended, fmt.Sprintf("%d %v", i, ctx.Err()))
					return nil
				})
			}
			if c.interrupt {
				cancel()
			}
			return c.result
		}}
		err := (&Scenario{Name: "s"}).Measure(ctx, Config{Rounds: 1}, &one)
		cancel()
		if !errors.Is(err, c.result) || fmt.Sprint(ended) != "[1 <nil> 0 <nil>]" {
			t.Errorf("%s: %v, ended %v", c.name, err, ended)
		}
	}
	leaves := Case{Name: "one", Run: func(_ context.Context, r *Run) error {
		r.AtEnd(func(context.Context) error { return broken })
		return nil
	}}
	if err := (&Scenario{Name: "s"}).Measure(t.Context(), Config{Rounds: 1}, &leaves); !errors.Is(err, broken) || !strings.Contains(err.Error(), "s one: ") {
		t.Errorf("an error of the end: %v", err)
	}
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	var notes []string
	config := Config{Server: "127.0.0.1:7420", Rounds: 1, Note: func(text string) { notes = append(notes, text) }}
	err := (&Scenario{Name: "s"}).Measure(interrupted, config, &leaves)
	if !errors.Is(err, context.Canceled) || fmt.Sprint(notes) != "[s one: broken]" {
		t.Errorf("what an interruption left on a running server: %v, notes %q", err, notes)
	}
}

// What cannot be measured on a running server is refused, or done once.
func TestRunningServers(t *testing.T) {
	var rounds int
	var notes []string
	config := Config{Server: "127.0.0.1:7420", Rounds: 7, Note: func(text string) { notes = append(notes, text) }}
	run := func(_ context.Context, r *Run) error { rounds = r.Rounds; return nil }
	err := (&Scenario{Name: "s"}).Measure(t.Context(), config, &Case{Name: "memory", Meters: true, Run: run})
	if err == nil || !strings.Contains(err.Error(), "--pid") || rounds != 0 {
		t.Errorf("memory of an unknown process: %v after %d rounds", err, rounds)
	}
	if err := (&Scenario{Name: "s"}).Measure(t.Context(), config, &Case{Name: "restart", Restarts: true, Run: run}); err != nil || rounds != 1 || len(notes) != 1 {
		t.Errorf("restarts: %v, %d rounds, notes %q", err, rounds, notes)
	}
	if err := (&Scenario{Name: "s"}).Measure(t.Context(), config, &Case{Name: "rate", Run: run}); err != nil || rounds != 7 {
		t.Errorf("a rate: %v, %d rounds", err, rounds)
	}
}

// Every scenario can be asked for, and says what it is.
func TestScenariosAreDescribed(t *testing.T) {
	for _, s := range Scenarios() {
		if found := Find(s.Name); found == nil || found.Name != s.Name || s.Short == "" || len(s.Cases) == 0 {
			t.Errorf("%q: %+v", s.Name, found)
		}
		for _, c := range s.Cases {
			if found := s.Find(c.Name); found == nil || found.Name != c.Name || c.Short == "" || c.Run == nil {
				t.Errorf("%q %q: %+v", s.Name, c.Name, found)
			}
		}
	}
	if Find("nothing") != nil || (&Scenario{}).Find("nothing") != nil {
		t.Error("a name that nothing has was found")
	}
}
