package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/fatih/color"
	"github.com/rivo/uniseg"
)

// table prints rows in columns. Rows are gathered until flush, which aligns
// them.
type table struct {
	out     io.Writer
	display display
	columns []column
	rows    [][]cell
	// begun is true once the titles are among the rows that were printed.
	begun bool
}

type column struct {
	title string
	// number aligns at the right, on a display that is for people.
	number bool
}

type cell struct {
	text string
	// style is nil for plain text.
	style *color.Color
}

func newTable(out io.Writer, d display, columns ...column) *table {
	return &table{out: out, display: d, columns: columns}
}

func (t *table) row(cells ...cell) { t.rows = append(t.rows, cells) }

// flush prints the rows, below the titles if they are the first.
func (t *table) flush() error {
	rows := t.rows
	t.rows = nil
	if !t.begun {
		t.begun = true
		rows = append([][]cell{t.titles()}, rows...)
	}
	if t.display.styled() {
		return t.print(rows)
	}
	return t.printPlain(rows)
}

func (t *table) titles() []cell {
	titles := make([]cell, len(t.columns))
	for i, c := range t.columns {
		titles[i] = cell{c.title, headingStyle}
	}
	return titles
}

// printPlain prints for scripts: columns at the left, separated by spaces.
func (t *table) printPlain(rows [][]cell) error {
	w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		texts := make([]string, len(row))
		for i, c := range row {
			texts[i] = c.text
		}
		fmt.Fprintln(w, strings.Join(texts, "\t"))
	}
	return w.Flush()
}

// print prints for people: by the width of characters on a terminal, numbers at
// the right.
func (t *table) print(rows [][]cell) error {
	widths := make([]int, len(t.columns))
	for _, row := range rows {
		for i := range row {
			row[i].text = t.display.clean(row[i].text)
			widths[i] = max(widths[i], uniseg.StringWidth(row[i].text))
		}
	}
	for _, row := range rows {
		if _, err := fmt.Fprintln(t.out, t.line(row, widths)); err != nil {
			return err
		}
	}
	return nil
}

func (t *table) line(row []cell, widths []int) string {
	var line strings.Builder
	pending := 0 // spaces, which are dropped at the end of the line
	for i, c := range row {
		space := widths[i] - uniseg.StringWidth(c.text)
		if t.columns[i].number {
			pending += space
			space = 0
		}
		if c.text != "" {
			line.WriteString(strings.Repeat(" ", pending))
			line.WriteString(t.display.paint(c.style, c.text))
			pending = 0
		}
		pending += space + 2
	}
	return line.String()
}
