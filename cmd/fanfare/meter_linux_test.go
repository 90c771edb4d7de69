package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// lineServer acknowledges lines: so many at once, the rest when they may go on.
type lineServer struct {
	*scriptedServer
	goOn chan struct{}
}

func newLineServer(t *testing.T, atOnce uint64) *lineServer {
	s := &lineServer{&scriptedServer{}, make(chan struct{})}
	s.publishStream = func(call fanfarev1.FanfareService_PublishStreamServer) error {
		for {
			request, err := call.Recv()
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			if request.GetNumber() == atOnce+1 {
				select {
				case <-s.goOn:
				case <-call.Context().Done():
					return call.Context().Err()
				}
			}
			if err := call.Send(published(request.GetNumber())); err != nil {
				return err
			}
		}
	}
	s.start(t)
	return s
}

func published(number uint64) *fanfarev1.PublishStreamResponse {
	return &fanfarev1.PublishStreamResponse{Number: number, Outcome: &fanfarev1.PublishStreamResponse_Published{
		Published: &fanfarev1.PublishResponse{Position: &fanfarev1.Position{Epoch: 7, Sequence: number}},
	}}
}

// linesFile is an open file of n lines, 10 bytes each.
func linesFile(t *testing.T, n int) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lines")
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "%09d\n", i)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file
}

// positions are those of n lines.
func positions(n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "7-%d\n", i+1)
	}
	return text.String()
}

const summary = `1000 lines published in [0-9.]+m?s, \d+ a second\n`

// The lines of a file have a bar with their bytes and a rate, which is gone at
// the end and in nobody's way, although positions scroll by above it.
func TestBarOfLines(t *testing.T) {
	s := newLineServer(t, 600)
	console := newConsole(t, 80)
	r := startOnConsole(t, console, terminals{stdout: true, stderr: true}, nil, linesFile(t, 1000), "publish", "c", "s", "--lines", "--server", s.address)
	console.await(t, `  60% \[=+>\.+\] \(6\.0/10 kB, [0-9.]+ k?B/s\) \[\d+s:\d+s\]`)
	close(s.goOn)
	if code := r.end(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if screen := console.screen(); !regexp.MustCompile(`^` + positions(1000) + summary + `$`).MatchString(screen) {
		t.Errorf("at the end there stands %.300q", screen)
	}
}

// Positions that go elsewhere are not touched by the bar.
func TestBarBesideAPipe(t *testing.T) {
	s := newLineServer(t, 600)
	console := newConsole(t, 0)
	r := startOnConsole(t, console, terminals{stderr: true}, []string{"NO_COLOR=1"}, linesFile(t, 1000), "publish", "c", "s", "--lines", "--server", s.address)
	console.await(t, `  60% \[`)
	close(s.goOn)
	if code := r.end(); code != exitOK || r.stdout.String() != positions(1000) {
		t.Errorf("exit code %d, standard output %q", code, r.stdout)
	}
	if screen := console.screen(); !regexp.MustCompile(`^` + summary + `$`).MatchString(screen) {
		t.Errorf("at the end there stands %.300q", screen)
	}
}

// How much comes from a pipe is not known: lines are counted.
func TestCounterOfLines(t *testing.T) {
	s := newLineServer(t, 600)
	console := newConsole(t, 80)
	input, err := io.ReadAll(linesFile(t, 1000))
	if err != nil {
		t.Fatal(err)
	}
	r := startOnConsole(t, console, terminals{stdout: true, stderr: true}, nil, strings.NewReader(string(input)), "publish", "c", "s", "--lines", "--server", s.address)
	console.await(t, `lines \(600, \d+ lines/(s|min)\) \[\d+s\]`)
	close(s.goOn)
	if code := r.end(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if screen := console.screen(); !regexp.MustCompile(`^` + positions(1000) + summary + `$`).MatchString(screen) {
		t.Errorf("at the end there stands %.300q", screen)
	}
}

// A run that fails leaves its error where the bar was.
func TestBarOfLinesThatFail(t *testing.T) {
	s := newLineServer(t, 600)
	console := newConsole(t, 80)
	r := startOnConsole(t, console, terminals{stderr: true}, []string{"NO_COLOR=1"}, linesFile(t, 1000), "publish", "c", "s", "--lines", "--server", s.address)
	console.await(t, `  60% \[`)
	r.interrupt()
	if code := r.end(); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	if screen := console.screen(); !regexp.MustCompile(`^fanfare publish: interrupted; lines 1-600 were stored; [^\n]*\n$`).MatchString(screen) {
		t.Errorf("at the end there stands %.300q", screen)
	}
}

// replayServer sends a replay of 1000 frames: half of it at once, the rest when
// it may go on.
func replayServer(t *testing.T, goOn <-chan struct{}) *scriptedServer {
	at := func(sequence uint64) *fanfarev1.Position { return &fanfarev1.Position{Epoch: 7, Sequence: sequence} }
	return (&scriptedServer{subscribe: func(_ *fanfarev1.SubscribeRequest, call fanfarev1.FanfareService_SubscribeServer) error {
		err := call.Send(&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Subscribed{
			Subscribed: &fanfarev1.Subscribed{Head: at(1200), Oldest: 201, ResumeAfter: at(200)},
		}})
		for sequence := uint64(201); err == nil && sequence <= 1200; sequence++ {
			if sequence == 701 {
				select {
				case <-goOn:
				case <-call.Context().Done():
				}
			}
			err = call.Send(&fanfarev1.SubscribeResponse{Frames: []*fanfarev1.Frame{{Position: at(sequence), Payload: fmt.Append(nil, sequence)}}})
		}
		return errors.Join(err, call.Send(&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_CaughtUp{
			CaughtUp: &fanfarev1.CaughtUp{Position: at(1200)},
		}}))
	}}).start(t)
}

// A long replay into a file or a pipe has a bar with its frames and a rate, which
// makes room for notices and is gone when the replay has caught up.
func TestBarOfAReplay(t *testing.T) {
	goOn := make(chan struct{})
	s := replayServer(t, goOn)
	console := newConsole(t, 80)
	r := startOnConsole(t, console, terminals{stderr: true}, []string{"NO_COLOR=1"}, nil, "subscribe", "c", "s", "--server", s.address)
	console.await(t, `  50% \[=+>\.+\] \(500/1000, \d+ frames/s\) \[\d+s:\d+s\]`)
	close(goOn)
	if code := r.end(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	var want strings.Builder
	for sequence := 201; sequence <= 1200; sequence++ {
		fmt.Fprintln(&want, sequence)
	}
	if r.stdout.String() != want.String() {
		t.Errorf("standard output %q", r.stdout)
	}
	if screen := console.screen(); screen != "subscribed after 7-200, the stream's head is 7-1200\ncaught up at 7-1200\n" {
		t.Errorf("at the end there stands %.300q", screen)
	}
}

// With --count the bar is full when so many have come.
func TestBarOfACountedReplay(t *testing.T) {
	goOn := make(chan struct{})
	s := replayServer(t, goOn)
	console := newConsole(t, 80)
	r := startOnConsole(t, console, terminals{stderr: true}, nil, nil, "subscribe", "c", "s", "--count", "625", "--server", s.address)
	console.await(t, `  80% \[=+>\.+\] \(500/625, `)
	close(goOn)
	if code := r.end(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// No bar where it could not be drawn, or would be in the way.
func TestNoMeter(t *testing.T) {
	console := newConsole(t, 80)
	for name, c := range map[string]struct {
		p      *program
		lines  bool
		replay bool
	}{
		"terminal":       {newProgram(nil, nil, console.device, console.device), true, false},
		"frames to pipe": {newProgram(nil, nil, io.Discard, console.device), true, true},
		"errors to pipe": {newProgram(nil, nil, console.device, io.Discard), false, false},
		"pipes":          {newProgram(nil, nil, io.Discard, io.Discard), false, false},
		"dumb terminal":  {newProgram([]string{"TERM=dumb"}, nil, io.Discard, console.device), false, false},
		"no colours":     {newProgram([]string{"NO_COLOR=1"}, nil, io.Discard, console.device), true, true},
		"forced colours": {newProgram([]string{"FANFARE_COLOR=always"}, nil, io.Discard, io.Discard), false, false},
		"typed":          {newProgram(nil, console.device, io.Discard, console.device), false, true},
	} {
		if got := c.p.lineMeter() != nil; got != c.lines {
			t.Errorf("%s: a meter for lines: %t", name, got)
		}
		if got := c.p.meterOfReplay() != nil; got != c.replay {
			t.Errorf("%s: a meter for a replay: %t", name, got)
		}
	}
}

// A run has no bar before it is a long one, nor on a terminal too narrow for it.
func TestBarThatIsNotDrawn(t *testing.T) {
	for name, c := range map[string]struct {
		width uint16
		age   time.Duration
	}{
		"short":  {80, -time.Hour}, // it has not begun yet, however slow the test is
		"narrow": {meterColumns - 1, meterDelay},
	} {
		console := newConsole(t, c.width)
		m := &meter{terminal: console.device}
		m.begin(100, inLines)
		m.since = m.since.Add(-c.age)
		m.draw()
		if text := console.text(); text != "" {
			t.Errorf("%s: the terminal is sent %q", name, text)
		}
	}
}

// A bar waits for the end of a line, comes back after it, and begins anew when
// the run does.
func TestMeterAmongOutput(t *testing.T) {
	console := newConsole(t, 80)
	m := &meter{terminal: console.device}
	out := m.guard(console.device)
	draw := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.since = m.since.Add(-meterDelay)
		m.draw()
	}
	bar := func() string { return regexp.MustCompile(`\(.*?,`).FindString(console.screen()) }
	m.begin(100, inFrames)
	m.reach(40)
	draw()
	if bar() != "(40/100," {
		t.Errorf("there stands %q after %q", console.screen(), console.text())
	}
	fmt.Fprint(out, "half a ")
	draw()
	if screen := console.screen(); screen != "half a" {
		t.Errorf("there stands %q", screen)
	}
	fmt.Fprintln(out, "line")
	draw()
	if screen := console.screen(); !strings.HasPrefix(screen, "half a line\n  40% [") {
		t.Errorf("there stands %q", screen)
	}
	m.reach(20) // never back
	m.reach(1000)
	draw()
	if bar() != "(99/100," { // it is its owner that ends it
		t.Errorf("there stands %q after %q", console.screen(), console.text())
	}
	m.begin(50, inFrames)
	m.reach(10)
	draw()
	if bar() != "(10/50," {
		t.Errorf("there stands %q after %q", console.screen(), console.text())
	}
	m.end()
	draw()
	if screen := console.screen(); screen != "half a line\n" {
		t.Errorf("there stands %q", screen)
	}
	if err := m.during(context.Background(), func() error { return io.EOF }); err != io.EOF {
		t.Errorf("during returns %v", err)
	}
	if m.guard(io.Discard) != io.Discard || (*meter)(nil).guard(out) != out {
		t.Error("a guard for what does not show on the terminal")
	}
}
