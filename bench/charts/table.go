package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// writeTable writes all lines as a table in Markdown.
func writeTable(w io.Writer, places []place) error {
	var b strings.Builder
	b.WriteString("| measured at | case | what | measured | compared with | that has | ratio (min–max) | target | met |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, p := range places {
		for _, l := range p.lines {
			cells := []string{p.name, l.Scenario + " " + l.Case, l.What, amount(l.Values.Median, l.Unit), l.ComparedWith, "", "", "", ""}
			if l.References != nil {
				cells[5] = amount(l.References.Median, l.Unit)
			}
			if l.Ratio != nil {
				cells[6] = fmt.Sprintf("%s× (%s–%s)", figure(l.Ratio.Median), figure(l.Ratio.Min), figure(l.Ratio.Max))
			}
			if l.Target != nil {
				cells[7] = target(l)
			}
			if l.Met != nil {
				cells[8] = map[bool]string{true: "yes", false: "**no**"}[*l.Met]
			}
			for i, cell := range cells {
				cells[i] = strings.ReplaceAll(cell, "|", "\\|")
			}
			b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// target is a line's, for people.
func target(l line) string {
	sign, unit := "≤ ", "×"
	if l.AtLeast {
		sign = "≥ "
	}
	if l.Ratio == nil {
		unit = ""
		if l.Unit != "" {
			unit = " " + l.Unit
		}
	}
	return sign + figure(*l.Target) + unit
}

// amount is a value with its unit.
func amount(v float64, unit string) string {
	if unit == "" {
		return figure(v)
	}
	if strings.HasPrefix(unit, "/") {
		return figure(v) + unit
	}
	return figure(v) + " " + unit
}

// figure rounds to three digits that mean something, and groups those before the
// point.
func figure(v float64) string {
	if v == 0 {
		return "0"
	}
	step := math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-2)
	decimals := max(0, int(-math.Floor(math.Log10(step)+0.5)))
	text := strconv.FormatFloat(math.Round(v/step)*step, 'f', decimals, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	whole, rest, _ := strings.Cut(text, ".")
	sign := ""
	if strings.HasPrefix(whole, "-") {
		sign, whole = "-", whole[1:]
	}
	var groups []string
	for len(whole) > 3 {
		groups = append([]string{whole[len(whole)-3:]}, groups...)
		whole = whole[:len(whole)-3]
	}
	whole = strings.Join(append([]string{whole}, groups...), ",")
	if rest != "" {
		whole += "." + rest
	}
	return sign + whole
}
