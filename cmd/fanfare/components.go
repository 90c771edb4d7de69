package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// components are the running parts of a server and what they hold open. They
// end one by one, in the reverse order of their start: what a part stands on is
// there until the part has returned.
type components struct {
	// endings end one each, and return when it has ended.
	endings []func()
	// failed gets the first error of a component that ended by itself.
	failed chan error
}

func newComponents() *components {
	return &components{failed: make(chan error, 1)}
}

// start runs a component until stop. Its context is its own and has no parent:
// a signal must not end it before its turn.
func (c *components) start(name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	c.atEnd(func() {
		cancel()
		<-done
	})
	go func() {
		defer close(done)
		err := run(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("ended by itself")
		}
		select {
		case c.failed <- fmt.Errorf("%s: %w", name, err):
		default:
		}
	}()
}

// atEnd has stop call closing when everything that is added later has ended.
func (c *components) atEnd(closing func()) { c.endings = append(c.endings, closing) }

// stop ends all components, the newest first, and waits for each.
func (c *components) stop() {
	for _, end := range slices.Backward(c.endings) {
		end()
	}
	c.endings = nil
}
