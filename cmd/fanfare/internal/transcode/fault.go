package transcode

import (
	"context"
	"errors"
	"strings"

	"connectrpc.com/connect"
	"connectrpc.com/vanguard"
	"google.golang.org/protobuf/proto"
)

// fault is what is wrong with a request. The transcoder finds that out before it hands the
// request on or while that is read, and says no more than that there was an error.
type fault struct {
	// begun is true if the request was handed on and read.
	begun bool
}

type faultKey struct{}

// withFault returns a context in which the fault of a unary call is kept.
func withFault(ctx context.Context) (context.Context, *fault) {
	f := new(fault)
	return context.WithValue(ctx, faultKey{}, f), f
}

// faultOf is where the fault of a call is kept; nil for a stream.
func faultOf(ctx context.Context) *fault {
	f, _ := ctx.Value(faultKey{}).(*fault)
	return f
}

// strictJSON is the transcoder's codec, whose errors say that the request is wrong, and
// which writes the same bytes for the same message.
type strictJSON struct{ vanguard.JSONCodec }

// Unmarshal implements vanguard.Codec. Only requests are read from JSON.
func (c strictJSON) Unmarshal(text []byte, message proto.Message) error {
	if err := c.JSONCodec.Unmarshal(text, message); err != nil {
		return connect.NewError(connect.CodeInvalidArgument, errors.New(requestMessage(err)))
	}
	return nil
}

// MarshalAppend implements vanguard.Codec. The library's own spaces differ from build to
// build.
func (c strictJSON) MarshalAppend(base []byte, message proto.Message) ([]byte, error) {
	if len(base) > 0 {
		return c.JSONCodec.MarshalAppend(base, message)
	}
	return c.MarshalAppendStable(base, message)
}

// requestMessage is what a client is told of an error of reading its request. The library
// varies its spaces, so that nobody relies on its words.
func requestMessage(err error) string {
	var already *connect.Error
	if errors.As(err, &already) {
		return already.Message()
	}
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	return "the request cannot be read: " + strings.TrimSpace(strings.TrimPrefix(text, "proto:"))
}
