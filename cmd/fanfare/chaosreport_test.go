package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fanfare-io/fanfare/service/servicetest"
)

// tally is rows of a table, in the order in which they first came.
type tally struct {
	names  []string
	counts map[string]int
}

func (t *tally) add(name string, n int) {
	if t.counts == nil {
		t.counts = map[string]int{}
	}
	if _, known := t.counts[name]; !known {
		t.names = append(t.names, name)
	}
	t.counts[name] += n
}

// printReport logs what happened, and how to have it again.
func (c *chaosRun) printReport(run servicetest.Run, verdicts []servicetest.Verdict) {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	table := func(title string, rows tally) {
		fmt.Fprintf(w, "\n%s\t\n", title)
		for _, name := range rows.names {
			fmt.Fprintf(w, "  %s\t%d\n", name, rows.counts[name])
		}
	}
	table("frames sent", sentTally(run))
	table("seen by subscribers", seenTally(run))
	table("replicas", c.replicaTally(run))
	var faults, broken tally
	for _, kind := range chaosKinds() {
		faults.add(kind.name, c.faults[kind.name])
	}
	table("faults", faults)
	for _, v := range verdicts {
		broken.add(v.Name, len(v.Violations))
	}
	table("violations", broken)
	_ = w.Flush()
	c.t.Logf("campaign of %s, seed %d; again: make chaos TIME=%s SEED=%d\n%s", c.length, c.seed, c.length, c.seed, text.String())
}

func sentTally(run servicetest.Run) (rows tally) {
	kinds := map[bool]string{false: "durable", true: "ephemeral"}
	results := []string{servicetest.Unknown: "outcome unknown", servicetest.Confirmed: "confirmed", servicetest.Refused: "refused", servicetest.RolledBack: "rolled back"}
	for _, ephemeral := range []bool{false, true} {
		for _, result := range []servicetest.Result{servicetest.Confirmed, servicetest.Unknown, servicetest.Refused, servicetest.RolledBack} {
			rows.add(kinds[ephemeral]+", "+results[result], 0)
		}
	}
	for _, p := range run.Publishes {
		rows.add(kinds[p.Ephemeral]+", "+results[p.Result], 1)
	}
	return rows
}

func seenTally(run servicetest.Run) (rows tally) {
	rows.add("subscribers", len(run.Subscribers))
	for _, name := range []string{"durable frames", "ephemeral frames", "subscriptions", "streams closed"} {
		rows.add(name, 0)
	}
	for _, s := range run.Subscribers {
		for _, e := range s.Events {
			switch e.Kind {
			case servicetest.SawFrame:
				rows.add("durable frames", 1)
			case servicetest.SawEphemeral:
				rows.add("ephemeral frames", 1)
			case servicetest.SawSubscribed:
				rows.add("subscriptions", 1)
			case servicetest.SawClosed:
				rows.add("streams closed", 1)
			case servicetest.SawEnd:
				rows.add("ended "+e.Ended, 1)
			case servicetest.SawGap:
				rows.add("gap "+strings.TrimPrefix(e.Reason.String(), "GAP_REASON_"), 1)
			}
		}
	}
	return rows
}

func (c *chaosRun) replicaTally(run servicetest.Run) (rows tally) {
	var most int64
	for _, m := range run.Memory {
		most = max(most, m.Bytes)
	}
	var errors int
	processes := 0
	for _, r := range c.replicas {
		for _, log := range r.logs() {
			processes++
			errors += strings.Count(log, "level=ERROR")
		}
	}
	rows.add("processes", processes)
	rows.add("most memory, KiB", int(most>>10))
	rows.add("errors logged", errors)
	var windows time.Duration
	for _, window := range run.Windows {
		windows += window.To - window.From
	}
	rows.add("seconds of isolation windows", int(windows.Seconds()))
	return rows
}

// checkReport checks that there was something to prove, and what the replicas
// themselves say of it.
func (c *chaosRun) checkReport(run servicetest.Run) {
	for _, kind := range chaosKinds() {
		if c.faults[kind.name] == 0 {
			c.t.Errorf("there was no fault of the kind %q", kind.name)
		}
	}
	seen, sent := seenTally(run), sentTally(run)
	for _, name := range []string{"durable frames", "ephemeral frames", "streams closed", "gap TRIMMED", "gap EPOCH_CHANGED", "gap EPHEMERAL_MAYBE_MISSED"} {
		if seen.counts[name] == 0 {
			c.t.Errorf("nobody saw %s", name)
		}
	}
	for name, n := range sent.counts {
		if n == 0 && name != "ephemeral, rolled back" {
			c.t.Errorf("no frame was %s", name)
		}
	}
	if len(run.Windows) == 0 || len(run.Memory) == 0 || len(run.Samples) == 0 {
		c.t.Errorf("%d isolation windows, %d samples of memory, %d of listeners", len(run.Windows), len(run.Memory), len(run.Samples))
	}
	for _, r := range c.replicas {
		for i, log := range r.logs() {
			for _, bad := range []string{"DATA RACE", "panic:", "fatal error:"} {
				if _, after, found := strings.Cut(log, bad); found {
					c.t.Errorf("replica %s-%d: %s%s", r.name, i, bad, after[:min(len(after), 4000)])
				}
			}
		}
	}
}
