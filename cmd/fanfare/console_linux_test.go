package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// console is a pseudo-terminal. Tests give its device to the program and read
// what a terminal would be sent.
type console struct {
	t *testing.T
	*transcript
	device *os.File
	// asked counts the calls of text, which mark what they have seen.
	asked int
}

// newConsole opens a terminal that is so many columns wide; 0 means that it does
// not know its width.
func newConsole(t *testing.T, width uint16) *console {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("open a pseudo-terminal: %v", err)
	}
	master := os.NewFile(uintptr(fd), "ptmx")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	device, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	makeRaw(t, fd)
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: width}); err != nil {
		t.Fatal(err)
	}
	c := &console{t: t, transcript: newTranscript(), device: device}
	var reading sync.WaitGroup
	// It ends with an error when the device is closed.
	reading.Go(func() { _, _ = io.Copy(c.transcript, master) })
	t.Cleanup(func() {
		device.Close()
		reading.Wait()
		master.Close()
	})
	return c
}

// makeRaw has bytes pass the terminal as they are written.
func makeRaw(t *testing.T, fd int) {
	t.Helper()
	mode, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	mode.Oflag &^= unix.OPOST
	mode.Lflag &^= unix.ECHO | unix.ICANON
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, mode); err != nil {
		t.Fatal(err)
	}
}

// text returns all that was written to the terminal so far.
func (c *console) text() string {
	c.t.Helper()
	c.asked++
	marker := fmt.Sprintf("\x00%d\x00", c.asked)
	if _, err := io.WriteString(c.device, marker); err != nil {
		c.t.Fatal(err)
	}
	c.await(c.t, marker)
	return markers.ReplaceAllString(c.String(), "")
}

var markers = regexp.MustCompile("\x00\\d+\x00")

// screen is what stands on the terminal: its lines as far as they are not
// cleared or overwritten. It knows the sequences that a bar uses.
func (c *console) screen() string {
	c.t.Helper()
	var lines []string
	var line []rune
	at := 0
	text := []rune(c.text())
	for i := 0; i < len(text); i++ {
		rest := string(text[i:min(i+4, len(text))])
		switch {
		case rest == "\x1b[2K":
			line, i = nil, i+3
			for len(line) < at {
				line = append(line, ' ')
			}
		case rest == "\x1b[0K":
			line, i = line[:min(at, len(line))], i+3
		case text[i] == '\x1b':
			c.t.Fatalf("an escape sequence that is none of a bar: %q", rest)
		case text[i] == '\r':
			at = 0
		case text[i] == '\n':
			lines = append(lines, string(line))
			line, at = nil, 0
		default:
			for len(line) <= at {
				line = append(line, ' ')
			}
			line[at] = text[i]
			at++
		}
	}
	lines = append(lines, string(line))
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// terminals is which of the program's files are the console.
type terminals struct{ stdin, stdout, stderr bool }

// onConsole runs a command line to its end with some of its files on a console.
// Of those that are not it returns what was written.
func onConsole(t *testing.T, c *console, on terminals, env []string, stdin io.Reader, args ...string) result {
	t.Helper()
	r := startOnConsole(t, c, on, env, stdin, args...)
	code := r.end()
	return result{code, r.stdout.String(), r.stderr.String()}
}

// startOnConsole is onConsole for a command that goes on.
func startOnConsole(t *testing.T, c *console, on terminals, env []string, stdin io.Reader, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	r := &running{t: t, interrupt: cancel, code: make(chan int, 1), stdout: newTranscript(), stderr: newTranscript()}
	var stdout, stderr io.Writer = r.stdout, r.stderr
	if on.stdin {
		stdin = c.device
	}
	if on.stdout {
		stdout = c.device
	}
	if on.stderr {
		stderr = c.device
	}
	go func() { r.code <- run(ctx, args, env, stdin, stdout, stderr) }()
	return r
}
