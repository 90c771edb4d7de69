package main

import (
	"errors"
	"os"

	"github.com/fatih/color"
	"golang.org/x/term"
)

// display is what an output may be given beside plain text. The zero value is
// that of a pipe or a file: nothing, and every byte as it is.
type display struct {
	// terminal is true if people look at the output: control characters that come
	// from the network are made visible.
	terminal bool
	// moves is true if the terminal can redraw a line.
	moves bool
	// colors is true if text may be painted.
	colors bool
}

// styled reports whether the output is laid out for people.
func (d display) styled() bool { return d.terminal || d.colors }

// Styles of text. Whether an output shows them is decided by its display alone,
// not by the library, which would only look at the process's own output.
var (
	errorStyle   = newStyle(color.FgRed, color.Bold)
	warningStyle = newStyle(color.FgYellow)
	headingStyle = newStyle(color.Bold)
	quietStyle   = newStyle(color.Faint)
	goodStyle    = newStyle(color.FgGreen)
)

func newStyle(attributes ...color.Attribute) *color.Color {
	style := color.New(attributes...)
	style.EnableColor()
	return style
}

// paint returns text in a style; nil is none.
func (d display) paint(style *color.Color, text string) string {
	if !d.colors || style == nil || text == "" {
		return text
	}
	return style.Sprint(text)
}

// isTerminal reports whether v is a file that is a terminal.
func isTerminal(v any) bool {
	file, ok := v.(*os.File)
	if !ok {
		return false
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return false
	}
	is := false
	// Not through Fd, which may make the file a blocking one.
	err = conn.Control(func(fd uintptr) { is = term.IsTerminal(int(fd)) })
	return err == nil && is
}

// columns is the width of a terminal; 0 if it has none.
func columns(terminal *os.File) int {
	conn, err := terminal.SyscallConn()
	if err != nil {
		return 0
	}
	width := 0
	err = conn.Control(func(fd uintptr) { width, _, _ = term.GetSize(int(fd)) })
	if err != nil {
		return 0
	}
	return width
}

// display says what an output of the program may be given. It is asked for when
// it is needed: flags are known only then.
func (p *program) display(w any) display {
	terminal := isTerminal(w)
	d := display{terminal: terminal, moves: terminal && p.term != "dumb"}
	switch p.colorMode() {
	case colorAlways:
		d.colors = true
	case colorAuto:
		d.colors = d.moves && !p.noColor
	}
	return d
}

// colorMode is the value of --color, or that of its variable for a command line
// that was refused before it was applied.
func (p *program) colorMode() colorMode {
	if p.color != "" {
		return p.color
	}
	var m colorMode
	if m.Set(p.env[variableName("color")]) != nil {
		return colorAuto
	}
	return m
}

// colorMode says when text is painted. CLICOLOR_FORCE and its like are not
// heeded: they are set for whole CI systems, and would change what scripts read
// from a pipe.
type colorMode string

const (
	colorAuto   colorMode = "auto"
	colorAlways colorMode = "always"
	colorNever  colorMode = "never"
)

// Set implements pflag.Value.
func (m *colorMode) Set(value string) error {
	switch mode := colorMode(value); mode {
	case colorAuto, colorAlways, colorNever:
		*m = mode
		return nil
	default:
		return errors.New("it must be auto, always or never")
	}
}

// String implements pflag.Value.
func (m *colorMode) String() string { return string(*m) }

// Type implements pflag.Value.
func (m *colorMode) Type() string { return "when" }
