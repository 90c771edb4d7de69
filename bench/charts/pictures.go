package main

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
)

// picture is one that can be drawn.
type picture struct {
	name  string // of its file
	title string
	axis  string
	// series are the names of what has bars.
	series []string
	groups []group
	// limit, if it is not 0, is drawn as a line across.
	limit float64
	// dots has points with their spread instead of bars.
	dots bool
	// logarithmic is for values of very different sizes.
	logarithmic bool
}

// group is what is compared, beneath one label.
type group struct {
	label string
	bars  []bar
}

// bar is one value of a group.
type bar struct {
	series int
	value  spread
	text   string
}

// fanfare is the first series everywhere.
const fanfare = "Fanfare"

// pictures are one of all targets, and for each scenario one of everything with
// the same unit that is compared with something.
func pictures(places []place) []picture {
	all := []picture{targets(places)}
	type kind struct{ scenario, unit string }
	var kinds []kind
	for _, p := range places {
		for _, l := range p.lines {
			if k := (kind{l.Scenario, l.Unit}); comparable(l) && !slices.Contains(kinds, k) {
				kinds = append(kinds, k)
			}
		}
	}
	slices.SortStableFunc(kinds, func(a, b kind) int { return cmp.Compare(a.scenario, b.scenario) })
	for _, k := range kinds {
		all = append(all, comparison(places, k.scenario, k.unit))
	}
	for _, name := range growing {
		all = append(all, growth(places, name))
	}
	return slices.DeleteFunc(all, func(p picture) bool { return len(p.groups) == 0 })
}

// letter ends the name of a reference that is known by one.
var letter = regexp.MustCompile(`\(([a-d])\)$`)

// colorsOf gives each series one of n colours: Fanfare the first, a reference with a
// letter the same everywhere, and others those that are left.
func (p *picture) colorsOf(n int) []int {
	given := make([]int, len(p.series))
	used := map[int]bool{0: true}
	for i, name := range p.series {
		if m := letter.FindStringSubmatch(name); m != nil {
			given[i] = 1 + int(m[1][0]-'a')
			used[given[i]] = true
		}
	}
	for i := range p.series {
		if i == 0 || given[i] != 0 {
			continue
		}
		next := 1
		for used[next] && next < n-1 {
			next++
		}
		given[i] = next
		used[next] = true
	}
	return given
}

// unitNames are units for the names of files.
var unitNames = map[string]string{
	"/s": "rate", "µs": "microseconds", "ms": "milliseconds", "s": "seconds", "KiB": "kibibytes",
}

// axes are units for people, where the unit itself says too little.
var axes = map[string]string{"/s": "per second", "s": "seconds"}

func unitName(unit string) string {
	if name := unitNames[unit]; name != "" {
		return name
	}
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, unit)
}

// comparison is of what has a reference in at least one place.
func comparison(places []place, scenario, unit string) picture {
	p := picture{name: scenario + "-" + unitName(unit), title: scenario, axis: cmp.Or(axes[unit], unit), series: []string{fanfare}}
	type subject struct{ name, what string }
	compared := map[subject]bool{}
	whats := map[string]bool{}
	for _, at := range places {
		for _, l := range at.lines {
			if l.Scenario == scenario && l.Unit == unit && comparable(l) {
				compared[subject{l.Case, l.What}] = true
				whats[l.What] = true
			}
		}
	}
	if len(whats) == 1 {
		for what := range whats {
			p.title += ": " + what
		}
	}
	for _, at := range places {
		for _, l := range at.lines {
			if l.Scenario != scenario || l.Unit != unit || !compared[subject{l.Case, l.What}] {
				continue
			}
			label := l.Case
			if len(whats) > 1 {
				label += ": " + l.What
			}
			if len(places) > 1 {
				label += "\n" + at.name
			}
			g := p.group(label)
			if len(g.bars) == 0 {
				g.bars = append(g.bars, bar{0, l.Values, amount(l.Values.Median, "")})
			}
			if l.References != nil {
				series := slices.Index(p.series, l.ComparedWith)
				if series < 0 {
					series = len(p.series)
					p.series = append(p.series, l.ComparedWith)
				}
				g.bars = append(g.bars, bar{series, *l.References, amount(l.References.Median, "")})
			}
		}
	}
	p.logarithmic = p.spans() > 40
	return p
}

// growing are cases that compare a size with other sizes of the same: what is
// measured names the first one after a colon.
var growing = []string{"growth", "resident-streams"}

// comparable is whether a line compares Fanfare with something else.
// Counts tell why something is as fast as it is; the table has them.
func comparable(l line) bool {
	return l.References != nil && l.Unit != "" && !slices.Contains(growing, l.Case)
}

// growth has a bar for each size of a growing case, from the smallest on. Of a case that
// measures several things it shows the first.
func growth(places []place, name string) picture {
	p := picture{series: []string{fanfare}}
	for _, at := range places {
		var groups []group
		for _, l := range at.lines {
			if l.Case != name || l.References == nil {
				continue
			}
			what, size, _ := strings.Cut(l.What, ": ")
			if len(groups) > 0 && p.title != l.Scenario+": "+what {
				continue
			}
			p.name, p.title, p.axis = l.Scenario+"-"+name, l.Scenario+": "+what, cmp.Or(axes[l.Unit], l.Unit)
			if len(groups) == 0 {
				groups = append(groups, sizeOf(at, size, l.Values))
			}
			groups = append(groups, sizeOf(at, l.ComparedWith, *l.References))
		}
		slices.Reverse(groups)
		p.groups = append(p.groups, groups...)
	}
	return p
}

func sizeOf(at place, size string, value spread) group {
	return group{size + "\n" + at.name, []bar{{0, value, amount(value.Median, "")}}}
}

// group returns the one with a label, which it adds at the end if need be.
func (p *picture) group(label string) *group {
	for i := range p.groups {
		if p.groups[i].label == label {
			return &p.groups[i]
		}
	}
	p.groups = append(p.groups, group{label: label})
	return &p.groups[len(p.groups)-1]
}

// spans is how many times as large as the smallest value the largest is.
func (p *picture) spans() float64 {
	var values []float64
	for _, g := range p.groups {
		for _, b := range g.bars {
			if b.value.Median > 0 {
				values = append(values, b.value.Median)
			}
		}
	}
	if len(values) == 0 {
		return 1
	}
	return slices.Max(values) / slices.Min(values)
}

// targets shows every figure that has a target as a share of what is allowed.
func targets(places []place) picture {
	p := picture{
		name: "targets", title: "Measured, as a share of what the target allows", axis: "left of the line: met",
		series: []string{fanfare}, limit: 1, dots: true, logarithmic: true,
	}
	for _, at := range places {
		for _, l := range at.lines {
			if l.Target == nil || *l.Target <= 0 {
				continue
			}
			judged := l.judged()
			label := l.Scenario + " " + l.Case + ": " + l.What
			if l.ComparedWith != "" {
				label += "\nagainst " + l.ComparedWith
			}
			label += " (" + at.name + ")"
			p.groups = append(p.groups, group{label, []bar{{0, shareOf(judged, *l.Target, l.AtLeast), judgement(l)}}})
		}
	}
	return p
}

func judgement(l line) string {
	unit := "×"
	if l.Ratio == nil {
		return amount(l.Values.Median, l.Unit) + ", target " + target(l)
	}
	return figure(l.Ratio.Median) + unit + ", target " + target(l)
}

// shareOf divides by the target, or divides it: below 1 is met.
func shareOf(s spread, target float64, atLeast bool) spread {
	if atLeast {
		return spread{Median: target / s.Median, Min: target / s.Max, Max: target / s.Min, Q1: target / s.Q3, Q3: target / s.Q1}
	}
	return spread{Median: s.Median / target, Min: s.Min / target, Max: s.Max / target, Q1: s.Q1 / target, Q3: s.Q3 / target}
}
