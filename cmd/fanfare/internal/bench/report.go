package bench

import (
	"errors"
	"fmt"
	"math"
)

// Line is one line of a report: a figure, and how it compares.
type Line struct {
	Scenario string `json:"scenario"`
	Case     string `json:"case"`
	What     string `json:"what"`
	Unit     string `json:"unit"`
	// Value is the median of the rounds, Values its spread.
	Value  float64 `json:"value"`
	Values Spread  `json:"values"`
	// ComparedWith is the reference's name; empty if there was none. Then the three
	// that follow are nil, and a target is one of the value.
	ComparedWith string   `json:"compared_with,omitempty"`
	Reference    *float64 `json:"reference"`
	References   *Spread  `json:"references"`
	Ratio        *Spread  `json:"ratio"`
	// Target is nil if there is none for these sizes. It is the least that is
	// wanted if AtLeast is true, otherwise the most.
	Target  *float64 `json:"target"`
	AtLeast bool     `json:"at_least"`
	// Met is nil without a target.
	Met        *bool          `json:"met"`
	Rounds     int            `json:"rounds"`
	Parameters map[string]any `json:"parameters"`
}

// Target is what a figure should be. The zero value is none.
type Target struct {
	bound   float64
	atLeast bool
	set     bool
}

// AtLeast and AtMost are targets of a ratio, or of a value that is compared with
// nothing.
func AtLeast(bound float64) Target { return Target{bound, true, true} }
func AtMost(bound float64) Target  { return Target{bound, false, true} }

// Figure is what a line reports.
type Figure struct {
	// What and Unit are for people, as "publishes" and "1/s".
	What, Unit string
	// Values are the measurements, one for each round.
	Values []float64
	// ComparedWith and References are the other side; no references, no
	// comparison.
	ComparedWith string
	References   []float64
	// Target holds for the ratio if the line has a comparison or is meant to have
	// one, which ComparedWith tells, otherwise for the value.
	Target Target
	// Parameters are told beside the sizes.
	Parameters map[string]any
}

// errNothingMeasured says that a figure has no value, or one that is no number.
var errNothingMeasured = errors.New("nothing was measured")

// ReportFigure reports a line.
func (r *Run) ReportFigure(f Figure) error {
	if len(f.Values) == 0 || !finite(f.Values) {
		return fmt.Errorf("%s: %w: %v", f.What, errNothingMeasured, f.Values)
	}
	values := spreadOf(f.Values)
	line := Line{
		Scenario: r.Scenario, Case: r.Case, What: f.What, Unit: f.Unit,
		Value: values.Median, Values: values,
		Rounds: len(f.Values), Parameters: r.parameters(f.Parameters),
	}
	judged := values.Median
	if f.References != nil {
		divided := ratios(f.Values, f.References)
		if !finite(f.References) || !finite(divided) {
			return fmt.Errorf("%s of %s: %w: %v", f.What, f.ComparedWith, errNothingMeasured, f.References)
		}
		references, ratio := spreadOf(f.References), spreadOf(divided)
		line.ComparedWith, line.Reference, line.References, line.Ratio = f.ComparedWith, &references.Median, &references, &ratio
		judged = ratio.Median
	}
	// A target of a ratio says nothing where there is none.
	comparable := f.ComparedWith == "" || f.References != nil
	if f.Target.set && comparable && r.Sizes == r.defaults {
		line.Target, line.AtLeast = &f.Target.bound, f.Target.atLeast
		met := f.Target.met(judged)
		line.Met = &met
	}
	if r.Report != nil {
		r.Report(line)
	}
	return nil
}

func (t Target) met(value float64) bool {
	if t.atLeast {
		return value >= t.bound
	}
	return value <= t.bound
}

func finite(values []float64) bool {
	for _, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return false
		}
	}
	return true
}

// parameters are what a line was measured with: the sizes that are not 0, the
// store, and what the figure adds.
func (r *Run) parameters(more map[string]any) map[string]any {
	parameters := map[string]any{"store": r.store(), "seconds": r.Time.Seconds()}
	for name, size := range r.Sizes.named() {
		if size != 0 {
			parameters[name] = size
		}
	}
	for name, value := range more {
		parameters[name] = value
	}
	return parameters
}

func (s Sizes) named() map[string]int {
	return map[string]int{
		"callers": s.Callers, "streams": s.Streams, "subscribers": s.Subscribers, "connections": s.Connections,
		"frames": s.Frames, "bytes": s.Bytes, "rate": s.Rate,
	}
}

// store is the kind of store that is measured.
func (r *Run) store() string {
	switch {
	case r.Running():
		return "running server"
	case r.Database != "":
		return "postgresql"
	default:
		return "sqlite"
	}
}
