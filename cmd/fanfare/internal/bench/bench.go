// Package bench measures a Fanfare server and, in the same run, what it is
// compared with.
//
// A machine that is shared tells little in absolute figures. So each scenario
// measures several sides, one after the other, in rounds whose order alternates
// (Rounds), and what is reported is the median of the rounds' ratios, with their
// spread. Processor time and memory are what the operating system says of the
// server's process (ReadUsage), the load comes from this process (package load),
// and the references are another program's (bench/limits).
//
// A scenario has cases; each case is a function that measures and reports lines.
// Servers that a case starts are stopped when it ends, and what it published to a
// running server is closed.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/credentials"
)

// Scenario is a question about a server, answered by its cases.
type Scenario struct {
	Name string
	// Short is for the help: one line that begins with a small letter.
	Short string
	// Cases are measured in this order.
	Cases []Case
}

// Case is one set of sizes of a scenario.
type Case struct {
	Name string
	// Short says what is measured, for the help.
	Short string
	// Sizes are what the case has unless something else is asked for. Its targets
	// hold for these alone.
	Sizes Sizes
	// Restarts is true if every round needs a server that was just started: a
	// running server can then be measured once, in the state it is in.
	Restarts bool
	// Meters is true if processor time or memory is all that is measured: the
	// server's process must then be known.
	Meters bool
	Run    func(ctx context.Context, r *Run) error
}

// Sizes say how much of everything a case has. A case uses some of them; 0 is
// the case's own.
type Sizes struct {
	Callers     int `json:"callers,omitempty"`
	Streams     int `json:"streams,omitempty"`
	Subscribers int `json:"subscribers,omitempty"`
	Connections int `json:"connections,omitempty"`
	Frames      int `json:"frames,omitempty"`
	Bytes       int `json:"bytes,omitempty"`
	// Rate is in publishes a second.
	Rate int `json:"rate,omitempty"`
}

// Or returns the sizes, with those of d where they are 0.
func (s Sizes) Or(d Sizes) Sizes {
	return Sizes{
		Callers:     cmp.Or(s.Callers, d.Callers),
		Streams:     cmp.Or(s.Streams, d.Streams),
		Subscribers: cmp.Or(s.Subscribers, d.Subscribers),
		Connections: cmp.Or(s.Connections, d.Connections),
		Frames:      cmp.Or(s.Frames, d.Frames),
		Bytes:       cmp.Or(s.Bytes, d.Bytes),
		Rate:        cmp.Or(s.Rate, d.Rate),
	}
}

// Config says what is measured and how.
type Config struct {
	// Server is the address of a running server. If it is empty, servers are
	// started.
	Server string
	// Credentials are what calls to the running server show. Nil: nothing.
	Credentials credentials.PerRPCCredentials
	// PID is the process of the running server, if it is known and on this machine.
	PID int
	// Executable is the program that is started as a server, with the command
	// "serve".
	Executable string
	// Database is the URL of the PostgreSQL database that started servers use, in
	// a schema of their own. Empty: an embedded store in a temporary directory.
	Database string
	// Reference is the program of bench/limits. Empty: nothing is compared.
	Reference string
	// Rounds is how often each side is measured.
	Rounds int
	// Time is how long each side is under load in a round, where a case is about a
	// rate.
	Time time.Duration
	// Sizes replace those of the cases.
	Sizes Sizes
	// Report takes each line when it is known, Note what a reader must know beside
	// the lines, and Progress what is being done.
	Report   func(Line)
	Note     func(text string)
	Progress func(text string)
}

// Find returns the scenario of a name, or nil.
func Find(name string) *Scenario {
	for _, s := range Scenarios() {
		if s.Name == name {
			return &s
		}
	}
	return nil
}

// Find returns the case of a name, or nil.
func (s *Scenario) Find(name string) *Case {
	for i := range s.Cases {
		if s.Cases[i].Name == name {
			return &s.Cases[i]
		}
	}
	return nil
}

// Measure runs one case of the scenario.
func (s *Scenario) Measure(ctx context.Context, config Config, c *Case) error {
	r := &Run{Config: config, Scenario: s.Name, Case: c.Name, defaults: c.Sizes, Rounds: config.Rounds}
	r.Sizes = config.Sizes.Or(c.Sizes)
	if err := c.prepare(r); err != nil {
		return fmt.Errorf("%s %s: %w", s.Name, c.Name, err)
	}
	err := c.Run(ctx, r)
	// What was begun is ended, also after an interruption.
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	left := r.end(ending)
	if ctx.Err() != nil {
		// Other errors are its consequence: a terminal interrupts the servers as well.
		// But what was left on a server that runs is its users' business.
		if r.Running() && left != nil {
			r.Notef("%s %s: %v", s.Name, c.Name, left)
		}
		return context.Cause(ctx)
	}
	if err = errors.Join(err, left); err != nil {
		return fmt.Errorf("%s %s: %w", s.Name, c.Name, err)
	}
	return nil
}

// endTimeout bounds the end of a case.
const endTimeout = time.Minute

// prepare refuses what cannot be measured.
func (c *Case) prepare(r *Run) error {
	if err := needFiles(r.Sizes.Connections); err != nil {
		return err
	}
	if r.Running() && c.Meters && r.PID == 0 {
		return errors.New("this is about the server's processor time or memory: name its process with --pid, or have a server started with --self")
	}
	if r.Running() && c.Restarts {
		r.Rounds = 1
		r.Notef("%s %s: a running server is not restarted: this is one round, in the state it is in", r.Scenario, r.Case)
	}
	return nil
}
