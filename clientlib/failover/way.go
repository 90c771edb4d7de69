package failover

import (
	"context"
	"sync"

	"google.golang.org/grpc"
)

// way is where calls go for a time: the hub, or the server of this process. A new
// one is made for each time, so that what was left stays left. It closes when it has
// been left and its last call has ended.
type way struct {
	conn *grpc.ClientConn
	// hub is nil for the own server.
	hub *hubLink
	// close releases what the way is made of.
	close func()
	// closed is closed when close has returned.
	closed chan struct{}

	mu sync.Mutex // guards what follows; nothing blocks while it is held
	// left is set when new calls go elsewhere.
	left  bool
	calls map[*call]struct{}
}

// call is a call under way.
type call struct {
	way    *way
	cancel context.CancelCauseFunc
	// unary calls are let finish when their way is left, unless it is cut.
	unary bool
}

func newWay(conn *grpc.ClientConn, hub *hubLink, closing func()) *way {
	return &way{conn: conn, hub: hub, close: closing, closed: make(chan struct{}), calls: map[*call]struct{}{}}
}

// begin counts a call, and returns nil if the way has been left.
func (w *way) begin(cancel context.CancelCauseFunc, unary bool) *call {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left {
		return nil
	}
	c := &call{way: w, cancel: cancel, unary: unary}
	w.calls[c] = struct{}{}
	return c
}

// end forgets a call that has ended. Further calls do nothing.
func (c *call) end() {
	w := c.way
	w.mu.Lock()
	_, known := w.calls[c]
	delete(w.calls, c)
	last := known && w.left && len(w.calls) == 0
	w.mu.Unlock()
	if last {
		w.finish()
	}
}

// leave ends the streaming calls, and with cut all calls, with a cause. The way
// closes when the last one has ended, which leave does not wait for. One that has been
// left can be cut later.
func (w *way) leave(cause error, cut bool) {
	w.mu.Lock()
	first := !w.left
	w.left = true
	var ending []*call
	for c := range w.calls {
		if cut || !c.unary {
			ending = append(ending, c)
		}
	}
	unused := first && len(w.calls) == 0
	w.mu.Unlock()
	for _, c := range ending {
		c.cancel(cause)
	}
	if unused {
		w.finish()
	}
}

// finish closes the way; it is called once. Not on the caller's goroutine, which
// may be that of a call that the close waits for.
func (w *way) finish() {
	go func() {
		defer close(w.closed)
		w.close()
	}()
}
