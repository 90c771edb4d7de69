package load

import "fmt"

// Order checks that a subscription gets the durable frames of a stream in order, each
// once. The zero value is ready. It is not safe for concurrent use, and need not be
// within a StreamHandler.
type Order struct {
	begun     bool
	last      uint64
	durable   uint64
	ephemeral uint64
	err       error
}

// Begin says after which sequence frames are due, at every Subscribed. A further one
// must go on where the last call ended.
func (o *Order) Begin(after uint64) {
	if o.begun && after != o.last {
		o.fail("a subscription that had frame %d goes on after %d", o.last, after)
	}
	o.begun, o.last = true, after
}

// Frames takes what StreamHandler.Frames is called with.
func (o *Order) Frames(n int, first, last uint64) {
	switch {
	case !o.begun:
		o.fail("frames came before Subscribed")
	case first == 0:
		o.ephemeral += uint64(n)
	case first != o.last+1:
		o.fail("frame %d came after frame %d", first, o.last)
		fallthrough
	default:
		o.durable += uint64(n)
		o.last = last
	}
}

// Notice takes a notice: a Gap says that frames are missing.
func (o *Order) Notice(kind NoticeKind) {
	if kind == Gap {
		o.fail("a gap came after frame %d", o.last)
	}
}

// Last is the sequence of the last durable frame, or where delivery begins.
func (o *Order) Last() uint64 { return o.last }

// Durable counts the durable frames.
func (o *Order) Durable() uint64 { return o.durable }

// Ephemeral counts the ephemeral frames.
func (o *Order) Ephemeral() uint64 { return o.ephemeral }

// Err is the first violation; nil if there was none.
func (o *Order) Err() error { return o.err }

func (o *Order) fail(format string, arguments ...any) {
	if o.err == nil {
		o.err = fmt.Errorf(format, arguments...)
	}
}
