package main

import (
	"context"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

const (
	// meterDelay keeps short runs free of a bar that flashes up.
	meterDelay = 500 * time.Millisecond
	// meterInterval is how often a bar is redrawn, which also lets its rate fall
	// when nothing happens.
	meterInterval = 100 * time.Millisecond
	// meterWidth is the widest that the bar itself is; it shrinks on a narrow
	// terminal. Below meterColumns what stands around it would wrap.
	meterWidth   = 30
	meterColumns = 60
)

// meter shows on a terminal how far a long run has come. It draws on the last
// line, which it leaves free for whatever is written through guard. A nil meter
// shows nothing. Its methods may be called from several goroutines.
type meter struct {
	terminal *os.File

	mu sync.Mutex // guards what follows, and the terminal against the bar's drawing
	// bar is nil if there is nothing to show.
	bar   *progressbar.ProgressBar
	since time.Time
	// total is what done becomes at the end; 0 if that is not known.
	total, done int64
	// told is what the bar knows of done.
	told int64
	// drawn is true while the bar stands on the terminal.
	drawn bool
	// midLine is true if what was written last did not end its line.
	midLine bool
}

// newMeter returns a meter on standard error; nil unless that is a terminal on
// which a line can be redrawn.
func (p *program) newMeter() *meter {
	if !p.display(p.stderr).moves {
		return nil
	}
	return &meter{terminal: p.stderr.(*os.File)}
}

// unit is what a meter counts.
type unit string

const (
	inBytes  unit = ""
	inLines  unit = "lines"
	inFrames unit = "frames"
)

// begin starts to show a run of total units; 0 for one of which it is not known.
// What was shown before goes away.
func (m *meter) begin(total int64, u unit) {
	if m == nil {
		return
	}
	options := []progressbar.Option{
		progressbar.OptionSetWriter(m.terminal),
		progressbar.OptionUseANSICodes(true),
		progressbar.OptionSetTheme(progressbar.ThemeASCII), // every font has it
		progressbar.OptionSetWidth(meterWidth),
		progressbar.OptionShowCount(),
		// Its own redrawing would be a goroutine that nobody waits for.
		progressbar.OptionSetSpinnerChangeInterval(0),
	}
	if u == inBytes {
		options = append(options, progressbar.OptionShowBytes(true))
	} else {
		options = append(options, progressbar.OptionShowIts(), progressbar.OptionSetItsString(string(u)))
	}
	limit := total
	if total <= 0 {
		limit = -1
		options = append(options, progressbar.OptionShowTotalBytes(false), progressbar.OptionSetDescription(string(u)))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.erase()
	m.bar = progressbar.NewOptions64(limit, options...)
	m.bar.StartWithoutRender()
	m.since, m.total, m.done, m.told = time.Now(), max(total, 0), 0, 0
}

// reach says how far the run has come since its begin.
func (m *meter) reach(done int64) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done = max(m.done, done)
	if m.total > 0 {
		// At its maximum the bar would end by itself; a file that grows would go
		// beyond.
		m.done = min(m.done, m.total-1)
	}
}

// end takes the bar away, for good unless there is another begin.
func (m *meter) end() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.erase()
	m.bar = nil
}

// during draws while do works, and leaves nothing behind.
func (m *meter) during(ctx context.Context, do func() error) error {
	if m == nil {
		return do()
	}
	ctx, stop := context.WithCancel(ctx)
	var drawing sync.WaitGroup
	drawing.Go(func() { m.run(ctx) })
	err := do()
	stop()
	drawing.Wait()
	m.end()
	return err
}

// run redraws until ctx ends.
func (m *meter) run(ctx context.Context) {
	ticker := time.NewTicker(meterInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			m.mu.Lock()
			m.draw()
			m.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

// draw shows the state of things; with mu held. Errors of a terminal are left to
// those who have something to say there.
func (m *meter) draw() {
	if m.bar == nil || m.midLine || time.Since(m.since) < meterDelay {
		return
	}
	if width := columns(m.terminal); width > 0 && width < meterColumns {
		m.erase()
		return
	}
	_ = m.bar.Add64(m.done - m.told)
	m.told = m.done
	m.drawn = true
}

// erase clears the line; with mu held.
func (m *meter) erase() {
	if m.drawn {
		_ = m.bar.Clear()
		m.drawn = false
	}
}

// guard returns a writer to w, which shows on the same terminal: the bar makes
// room for what is written. Without a meter it is w.
func (m *meter) guard(w io.Writer) io.Writer {
	if m == nil || !isTerminal(w) {
		return w
	}
	return &guarded{m, w}
}

type guarded struct {
	meter *meter
	w     io.Writer
}

func (g *guarded) Write(text []byte) (int, error) {
	m := g.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	again := m.drawn
	m.erase()
	n, err := g.w.Write(text)
	if n > 0 {
		m.midLine = text[n-1] != '\n'
	}
	if again {
		m.draw()
	}
	return n, err
}
