package bench

import (
	"context"
	"errors"
	"fmt"
)

// Run is one run of a case. Its methods are for the goroutine that runs it.
type Run struct {
	Config
	// Scenario and Case are names.
	Scenario, Case string
	// Sizes are those that apply.
	Sizes Sizes
	// Rounds is how often each side is measured in this case.
	Rounds int

	defaults Sizes
	// cleared is true once the schema in the database has been cleared.
	cleared bool
	// ends are what to do at the end, the last one first.
	ends []func(context.Context) error
}

// Running reports whether a running server is measured, as opposed to servers
// that are started.
func (r *Run) Running() bool { return r.Server != "" }

// comparesStore reports whether a figure of the store can be compared: the
// references are PostgreSQL's.
func (r *Run) comparesStore() bool {
	if r.Config.Reference != "" && r.Database == "" {
		r.Notef("%s is compared on PostgreSQL only: name a database with --database", r.Scenario)
	}
	return r.Config.Reference != "" && r.Database != ""
}

// Notef tells readers what they must know beside the figures.
func (r *Run) Notef(format string, args ...any) {
	if r.Note != nil {
		r.Note(fmt.Sprintf(format, args...))
	}
}

// Progressf tells readers what is being done.
func (r *Run) Progressf(format string, args ...any) {
	if r.Progress != nil {
		r.Progress(r.Scenario + " " + r.Case + ": " + fmt.Sprintf(format, args...))
	}
}

// AtEnd has a function called when the case ends, also after an error or an
// interruption: those handed in last are called first.
func (r *Run) AtEnd(end func(context.Context) error) { r.ends = append(r.ends, end) }

func (r *Run) end(ctx context.Context) error {
	var errs []error
	for len(r.ends) > 0 {
		last := len(r.ends) - 1
		end := r.ends[last]
		r.ends = r.ends[:last]
		errs = append(errs, end(ctx))
	}
	return errors.Join(errs...)
}

// Side is one of those that are compared.
type Side[M any] struct {
	// Name is for people: what it is compared with.
	Name string
	// Measure returns what one round gives. Nil: the side cannot be measured here,
	// and is left out.
	Measure func(ctx context.Context) (M, error)
}

// Measured is what Rounds gives: of each side that was measured its name, and
// its measurements in the order of the rounds.
type Measured[M any] struct {
	names  []string
	values [][]M
}

// Rounds measures every side once in each round of r, in an order that is
// reversed from round to round: what drifts on the machine meets all alike. The
// first side is what is compared with the others.
func Rounds[M any](ctx context.Context, r *Run, sides ...Side[M]) (*Measured[M], error) {
	m := &Measured[M]{}
	var measured []Side[M]
	for _, s := range sides {
		if s.Measure != nil {
			measured = append(measured, s)
			m.names = append(m.names, s.Name)
		}
	}
	m.values = make([][]M, len(measured))
	for round := range r.Rounds {
		for i := range measured {
			if round%2 == 1 {
				i = len(measured) - 1 - i
			}
			r.Progressf("round %d of %d, %s", round+1, r.Rounds, measured[i].Name)
			value, err := measured[i].Measure(ctx)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", measured[i].Name, err)
			}
			m.values[i] = append(m.values[i], value)
		}
	}
	return m, nil
}

// Of returns a figure of every round of a side; nil if the side was left out.
func (m *Measured[M]) Of(side string, figure func(M) float64) []float64 {
	for i, name := range m.names {
		if name == side {
			figures := make([]float64, len(m.values[i]))
			for j, value := range m.values[i] {
				figures[j] = figure(value)
			}
			return figures
		}
	}
	return nil
}

// Fanfare is the usual name of the first side.
const Fanfare = "fanfare"
