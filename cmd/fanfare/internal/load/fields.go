package load

import (
	"encoding/base64"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// maxHeaderBytes bounds the headers of a response.
const maxHeaderBytes = 1 << 20

// fields are what a header block of a response says, as far as a client must know.
type fields struct {
	// last is whether the stream ends with this block; bytes is its size so far.
	last  bool
	bytes int

	httpStatus  string
	contentType string
	grpcStatus  string
	grpcMessage string
	details     string
}

// take is called with each field of a block.
func (f *fields) take(h hpack.HeaderField) {
	switch h.Name {
	case ":status":
		f.httpStatus = h.Value
	case "content-type":
		f.contentType = h.Value
	case "grpc-status":
		f.grpcStatus = h.Value
	case "grpc-message":
		f.grpcMessage = h.Value
	case "grpc-status-details-bin":
		f.details = h.Value
	}
}

// check looks at the block that a response begins with, which may also be its end.
// Trailers need no look before their status.
func (f *fields) check(trailers bool) error {
	switch {
	case trailers && !f.last:
		return status.Error(codes.Internal, "the server sent headers twice")
	case trailers:
		return nil
	case f.httpStatus != "200":
		return status.Errorf(codes.Unknown, "the server answered with the HTTP status %q", f.httpStatus)
	case !strings.HasPrefix(f.contentType, "application/grpc"):
		return status.Errorf(codes.Unknown, "the server answered with the content type %q", f.contentType)
	}
	return nil
}

// outcome is what the block that ends a call says, with so many bytes of a message
// left over.
func (f *fields) outcome(left int) error {
	code, err := strconv.ParseUint(f.grpcStatus, 10, 32)
	switch {
	case err != nil:
		return status.Errorf(codes.Internal, "the server ended the call with the status %q", f.grpcStatus)
	case code == 0 && left > 0:
		return status.Error(codes.Internal, "the server ended the call within a message")
	case code == 0:
		return nil
	}
	var details spb.Status
	if raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(f.details, "=")); err == nil && len(raw) > 0 &&
		proto.Unmarshal(raw, &details) == nil && details.GetCode() == int32(code) {
		return status.ErrorProto(&details)
	}
	message, err := url.PathUnescape(f.grpcMessage)
	if err != nil {
		message = f.grpcMessage
	}
	return status.Error(codes.Code(code), message)
}

// resetError is what a RST_STREAM means to a call, as the gRPC protocol over HTTP/2
// has it.
func resetError(code http2.ErrCode) error {
	means := codes.Internal
	switch code {
	case http2.ErrCodeRefusedStream:
		means = codes.Unavailable
	case http2.ErrCodeCancel:
		means = codes.Canceled
	case http2.ErrCodeEnhanceYourCalm:
		means = codes.ResourceExhausted
	case http2.ErrCodeInadequateSecurity:
		means = codes.PermissionDenied
	}
	return status.Errorf(means, "the server reset the stream: %v", code)
}
