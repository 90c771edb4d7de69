package load

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Call makes a unary call with an encoded request and returns the encoded response.
// The connection may carry as many at once as the server admits streams.
func (c *Conn) Call(ctx context.Context, method string, request []byte) ([]byte, error) {
	u := unary{done: make(chan struct{})}
	s, err := c.open(method, request, &u, false)
	if err != nil {
		return nil, err
	}
	select {
	case <-u.done:
	case <-ctx.Done():
		if c.giveUp(s.id) != nil {
			return nil, ctx.Err()
		}
		// Its end is being told at this moment.
		<-u.done
	}
	return u.response, u.err
}

// unary takes the response of a unary call.
type unary struct {
	// done is closed when the other two are set.
	done     chan struct{}
	response []byte
	err      error

	came bool
}

func (u *unary) message(b []byte, _ time.Time) error {
	if u.came {
		return status.Error(codes.Internal, "the server answered a call twice")
	}
	u.came = true
	u.response = append(make([]byte, 0, len(b)), b...)
	return nil
}

func (u *unary) end(err error) {
	switch {
	case err != nil:
		u.response, u.err = nil, err
	case !u.came:
		u.err = status.Error(codes.Internal, "the server ended the call OK without an answer")
	}
	close(u.done)
}
