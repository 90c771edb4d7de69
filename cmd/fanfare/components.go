package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// components are the running parts of a server. Each has a context of its own,
// so that they end one by one, in the reverse order of their start: what a part
// stands on is there until the part has returned.
type components struct {
	running []*component
	// failed gets the first error of a component that ended by itself.
	failed chan error
}

type component struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func newComponents() *components {
	return &components{failed: make(chan error, 1)}
}

// start runs a component until stop. Its context has no parent: a signal must
// not end it before its turn.
func (c *components) start(name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	part := &component{cancel, make(chan struct{})}
	c.running = append(c.running, part)
	go func() {
		defer close(part.done)
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

// stop ends all components, the newest first, and waits for each.
func (c *components) stop() {
	for _, part := range slices.Backward(c.running) {
		part.cancel()
		<-part.done
	}
	c.running = nil
}
