package main

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"strconv"

	"github.com/rivo/uniseg"

	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/bench"
)

// benchReport prints what fanfare bench measured: each line at once as JSON, or
// all as a table in the end.
type benchReport struct {
	out   *bufio.Writer
	lines *jsonLines
	table *table
	empty bool
	// err is the first error of the output.
	err error
}

func (p *program) newBenchReport(asJSON bool) *benchReport {
	r := &benchReport{out: bufio.NewWriter(p.stdout), empty: true}
	if asJSON {
		lines := newJSONLines(r.out)
		r.lines = &lines
		return r
	}
	r.table = newTable(r.out, p.display(p.stdout), column{title: "CASE"}, column{title: "WHAT"}, column{title: "MEASURED", number: true},
		column{title: "COMPARED WITH"}, column{title: "REFERENCE", number: true}, column{title: "RATIO", number: true}, column{title: "SPREAD"},
		column{title: "TARGET", number: true}, column{title: "MET"})
	return r
}

func (r *benchReport) add(line bench.Line) {
	r.empty = false
	if r.lines == nil {
		r.table.row(benchCells(line)...)
		return
	}
	err := r.lines.write(line)
	if err == nil {
		err = r.out.Flush()
	}
	if err != nil && r.err == nil {
		r.err = &outputError{err}
	}
}

// flush prints what has not been printed.
func (r *benchReport) flush() error {
	if r.err != nil || r.table == nil || r.empty {
		return r.err
	}
	if err := r.table.flush(); err != nil {
		return &outputError{err}
	}
	return flush(r.out)
}

// noFigure stands where there is none, so that the columns of a script stay the
// same.
const noFigure = "-"

func benchCells(line bench.Line) []cell {
	compared, reference, ratio, spread, target := noFigure, noFigure, noFigure, line.Values, noFigure
	met := cell{noFigure, quietStyle}
	digits := figureText
	if line.Ratio != nil {
		compared, reference = line.ComparedWith, withUnit(*line.Reference, line.Unit)
		ratio, spread = figureText(line.Ratio.Median)+"×", *line.Ratio
	}
	if line.Target != nil {
		sign := "≤ "
		if line.AtLeast {
			sign = "≥ "
		}
		target = sign + strconv.FormatFloat(*line.Target, 'f', -1, 64)
		if line.Ratio != nil {
			target += "×"
		}
		met = cell{"no", warningStyle}
		if *line.Met {
			met = cell{"yes", goodStyle}
		}
	}
	return []cell{
		{line.Scenario + " " + line.Case, nil},
		{line.What, nil},
		{withUnit(line.Value, line.Unit), nil},
		{compared, quietStyle},
		{reference, nil},
		{ratio, headingStyle},
		{digits(spread.Min) + "–" + digits(spread.Max), quietStyle},
		{target, nil},
		met,
	}
}

// withUnit is a figure and its unit; "/s" follows at once.
func withUnit(value float64, unit string) string {
	if unit == "" || unit[0] == '/' {
		return figureText(value) + unit
	}
	return figureText(value) + " " + unit
}

// figureText shows three significant digits, and no fewer than there are before
// the point: what is beyond is noise.
func figureText(value float64) string {
	if value == 0 {
		return "0"
	}
	before := int(math.Floor(math.Log10(math.Abs(value)))) + 1
	return strconv.FormatFloat(value, 'f', max(0, min(6, 3-before)), 64)
}

// progressLine shows on a terminal what is being done, on its last line.
type progressLine struct {
	// terminal is nil if there is none on which a line can be redrawn.
	terminal *os.File
	display  display
	drawn    bool
}

func (p *program) newProgressLine() *progressLine {
	l := &progressLine{display: p.display(p.stderr)}
	if l.display.moves {
		l.terminal = p.stderr.(*os.File)
	}
	return l
}

func (l *progressLine) show(text string) {
	if l.terminal == nil {
		return
	}
	l.erase()
	// A line that wraps could not be erased.
	if width := columns(l.terminal); width > 0 && uniseg.StringWidth(text) >= width {
		text = string([]rune(text)[:max(0, width-1)])
	}
	fmt.Fprint(l.terminal, l.display.paint(quietStyle, text))
	l.drawn = true
}

func (l *progressLine) erase() {
	if l.drawn {
		fmt.Fprint(l.terminal, "\r\x1b[K")
		l.drawn = false
	}
}
