package transcode

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"sync/atomic"

	"connectrpc.com/connect"
	"connectrpc.com/vanguard"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// maxWordsBytes bounds what is told of a request that cannot be read.
const maxWordsBytes = 300

// fault is what is wrong with a request. The transcoder finds that out before it hands the
// request on or while that is read, and says no more than that there was an error.
type fault struct {
	// begun is true if the request was handed on and read.
	begun bool
	// unread is true if the transcoder does not read the message, but hands it on.
	unread bool
	// read is called when the request was handed on; nil: nothing is.
	read func()
}

type faultKey struct{}

// withFault returns a context in which the fault of a call with one request is kept.
func withFault(ctx context.Context) (context.Context, *fault) {
	f := new(fault)
	return context.WithValue(ctx, faultKey{}, f), f
}

// faultOf is where the fault of a call is kept; nil for one whose requests go on.
func faultOf(ctx context.Context) *fault {
	f, _ := ctx.Value(faultKey{}).(*fault)
	return f
}

// streamFault is why the requests of a stream are read no further, or its answer is passed on
// no further. The server's end of the call ends or breaks then, and says nothing of it.
type streamFault struct {
	status atomic.Pointer[status.Status]
	// stores is true once something was handed on that may be stored.
	stores atomic.Bool
}

type streamFaultKey struct{}

func withStreamFault(ctx context.Context) (context.Context, *streamFault) {
	f := new(streamFault)
	return context.WithValue(ctx, streamFaultKey{}, f), f
}

// streamFaultOf is the fault of a stream, for one whose requests were all answered; nil if
// there is none.
func streamFaultOf(ctx context.Context) *status.Status {
	if f, ok := ctx.Value(streamFaultKey{}).(*streamFault); ok {
		return f.status.Load()
	}
	return nil
}

// lostWith is the fault of a stream that has broken; nil if there is none.
func lostWith(ctx context.Context) *status.Status {
	f, _ := ctx.Value(streamFaultKey{}).(*streamFault)
	if f == nil || f.status.Load() == nil || !f.stores.Load() {
		return streamFaultOf(ctx)
	}
	return outcomeUnknown(f.status.Load().Message())
}

// outcomeUnknown is what a publish is told whose answer is lost: UNAVAILABLE, for one, says
// that nothing was stored.
func outcomeUnknown(why string) *status.Status {
	return withReason(codes.Unknown, reasonUnknown, why+"; whether what was not answered is stored is not known")
}

// set keeps the fault, and returns it as an error.
func (f *streamFault) set(code codes.Code, reason, message string) error {
	st := withReason(code, reason, message)
	f.status.Store(st)
	return st.Err()
}

// withReason is a status with a name of ErrorReason without its prefix, if not empty.
func withReason(code codes.Code, reason, message string) *status.Status {
	st := status.New(code, message)
	if reason == "" {
		return st
	}
	detailed, err := st.WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: errorDomain})
	if err != nil {
		return st
	}
	return detailed
}

// checkMessage reads a message of gRPC as the server of the method would.
func checkMessage(urlPath string, body []byte) error {
	request, _ := methodTypes(urlPath)
	if request == nil {
		return nil // the server says what it is
	}
	if len(body) < envelopeBytes || int64(len(body)-envelopeBytes) != int64(binary.BigEndian.Uint32(body[1:envelopeBytes])) {
		return errors.New("there must be one message, of the length that stands before it")
	}
	return proto.Unmarshal(body[envelopeBytes:], request.New().Interface())
}

// strictJSON is the transcoder's codec, whose errors say that the request is wrong, and
// which writes the same bytes for the same message.
type strictJSON struct{ vanguard.JSONCodec }

// Unmarshal implements vanguard.Codec. Only requests are read from JSON.
func (c strictJSON) Unmarshal(text []byte, message proto.Message) error {
	if err := c.JSONCodec.Unmarshal(text, message); err != nil {
		return connectError(withReason(codes.InvalidArgument, reasonField, requestMessage(err)))
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
	text = strings.TrimSpace(strings.TrimPrefix(text, "proto:"))
	if len(text) > maxWordsBytes {
		// It names the value, which may be of any size.
		text = strings.ToValidUTF8(text[:maxWordsBytes], "") + "…"
	}
	if strings.Contains(text, "bytes field") {
		text += " (bytes are written in Base64)"
	}
	return "the request cannot be read: " + text
}
