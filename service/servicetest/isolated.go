package servicetest

import (
	"slices"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// isolationBound is generous: what others hold up waits until they let go, and what
// they do not takes milliseconds, but on a machine that is busy otherwise.
const isolationBound = 5 * time.Second

// isolated looks at each window: at what was published in it, and when that came.
// What began or ended too late for the bound to pass within the window is left out.
func isolated(run Run) []string {
	var v violations
	for _, w := range run.Windows {
		stored := map[backlog.StreamName][]Publish{}
		for _, p := range run.Publishes {
			if p.BeganAt < w.From || p.BeganAt > w.To-isolationBound || slices.Contains(w.Held, p.Stream) {
				continue
			}
			switch took := p.EndedAt - p.BeganAt; {
			case p.Result == Unknown || p.Result == Refused:
				v.add("%s could not publish to %s at %s, which nobody held", p.Publisher, p.Stream, p.BeganAt)
			case took > isolationBound:
				v.add("%s took %s to publish to %s at %s, which nobody held", p.Publisher, took, p.Stream, p.BeganAt)
			case p.stored() && !p.Duplicate && p.EndedAt <= w.To-isolationBound:
				stored[p.Stream] = append(stored[p.Stream], p)
			}
		}
		for _, s := range run.Subscribers {
			if !s.Slow && !slices.Contains(w.Stalled, s.Name) {
				v = append(v, late(s, stored[s.Stream])...)
			}
		}
	}
	return v
}

// late returns what came too late, or not, to a subscription that had caught up
// before the frame was sent and went on until it was due.
func late(s Subscriber, stored []Publish) []string {
	if len(stored) == 0 {
		return nil
	}
	var v violations
	came := map[Content]Moment{}
	for _, e := range s.Events {
		if e.Kind == SawFrame {
			came[e.Content] = e.At
		}
	}
	for _, live := range liveTimes(s) {
		for _, p := range stored {
			due := p.EndedAt + isolationBound
			if p.BeganAt <= live.From || due >= live.To {
				continue
			}
			if at, ok := came[p.Content]; !ok || at > due {
				v.add("%s of %s, which nobody held, did not get %s within %s", s.Name, s.Stream, p.Position, isolationBound)
			}
		}
	}
	return v
}

// endless is the end of a time that the run did not end.
const endless = Moment(1<<63 - 1)

// liveTimes are when a subscriber was connected and had caught up.
func liveTimes(s Subscriber) (times []Window) {
	live := false
	for _, e := range s.Events {
		switch {
		case e.Kind == SawCaughtUp:
			if !live {
				times = append(times, Window{From: e.At, To: endless})
			}
			live = true
		case e.Kind == SawEnd || e.Kind == SawSubscribed || e.isLoss():
			if live {
				times[len(times)-1].To = e.At
			}
			live = false
		}
	}
	return times
}
