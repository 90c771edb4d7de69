package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
)

// jsonLines writes one JSON object a line.
type jsonLines struct{ encoder *json.Encoder }

func newJSONLines(w io.Writer) jsonLines {
	e := json.NewEncoder(w)
	// Payloads are shown as they are: <, > and & have no meaning here.
	e.SetEscapeHTML(false)
	return jsonLines{e}
}

func (j jsonLines) write(object any) error { return j.encoder.Encode(object) }

// received is what one call of a stream's Recv returned.
type received[T any] struct {
	message T
	err     error
}

// receive calls recv until it returns an error, which is the last thing on the
// channel. It ends when recv does or, if nobody reads any more, when stopped is
// closed; the channel is then closed, too.
func receive[T any](recv func() (T, error), stopped <-chan struct{}) <-chan received[T] {
	c := make(chan received[T], 16)
	go func() {
		defer close(c)
		for {
			message, err := recv()
			select {
			case c <- received[T]{message, err}:
			case <-stopped:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return c
}

// nextFlushed returns the channel's next value. If it has to wait it flushes
// first: output is gathered while there is more to write and never held back
// from a reader while there is not.
func nextFlushed[T any](c <-chan received[T], out *bufio.Writer) (T, error) {
	var r received[T]
	open := true
	select {
	case r, open = <-c:
	default:
		if err := out.Flush(); err != nil {
			return r.message, &outputError{err}
		}
		r, open = <-c
	}
	if !open {
		return r.message, context.Canceled
	}
	return r.message, r.err
}

// outputError is an error of standard output, as opposed to one of the stream
// that is copied to it.
type outputError struct{ err error }

func (e *outputError) Error() string { return "writing to standard output: " + e.err.Error() }
func (e *outputError) Unwrap() error { return e.err }
