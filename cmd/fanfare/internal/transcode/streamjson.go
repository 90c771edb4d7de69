package transcode

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/http"
	"strings"

	"connectrpc.com/vanguard"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// smallAnswerBytes is up to where a message of an answer is made JSON without asking for
// memory: servers put frames together up to this, and one in a message that is larger.
const smallAnswerBytes = 64<<10 + 1<<10

// methodTypes returns the types of a method's requests and responses; nil if there is no
// such method here.
func methodTypes(urlPath string) (request, response protoreflect.MessageType) {
	name := protoreflect.FullName(strings.ReplaceAll(strings.Trim(urlPath, "/"), "/", "."))
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	method, ok := found.(protoreflect.MethodDescriptor)
	if err != nil || !ok {
		return nil, nil
	}
	request, err = protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
	response, failed := protoregistry.GlobalTypes.FindMessageByName(method.Output().FullName())
	if errors.Join(err, failed) != nil {
		return nil, nil
	}
	return request, response
}

// fromJSON makes a message Protocol Buffers.
func (h *Handler) fromJSON(kind protoreflect.MessageType) func([]byte) ([]byte, error) {
	return func(text []byte) ([]byte, error) {
		message := kind.New().Interface()
		if err := h.json.Unmarshal(text, message); err != nil {
			return nil, err
		}
		return proto.Marshal(message)
	}
}

// jsonAnswer makes the messages of a stream's answer JSON, which come in Protocol Buffers,
// and holds none of them when it has been written. The transcoder, which could do it too,
// would keep each until the next one, in both forms.
type jsonAnswer struct {
	http.ResponseWriter
	media string // of the client
	kind  protoreflect.MessageType
	json  vanguard.Codec
	// take waits until so many bytes may be held; held has them.
	take func(bytes int64) error
	held *budget
	// cancel ends the call, with fault.
	cancel context.CancelFunc
	fault  *streamFault

	// plain is true if there are no messages in the answer: an error of HTTP.
	plain, begun bool
	envelope     []byte
	message      bytes.Buffer
	// left is what is still to come of the message.
	left int64
	// lost is true if a message could not be written: none that follows is.
	lost bool
}

// WriteHeader implements http.ResponseWriter.
func (a *jsonAnswer) WriteHeader(status int) {
	if !a.begun {
		a.begun = true
		header := a.Header()
		if a.plain = !isEnvelopedType(header.Get("Content-Type")); !a.plain {
			header.Set("Content-Type", a.media)
		}
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *jsonAnswer) Write(p []byte) (int, error) {
	if !a.begun {
		a.WriteHeader(http.StatusOK)
	}
	if a.plain {
		return a.ResponseWriter.Write(p)
	}
	for rest := p; len(rest) > 0; {
		if len(a.envelope) < envelopeBytes {
			n := min(envelopeBytes-len(a.envelope), len(rest))
			a.envelope, rest = append(a.envelope, rest[:n]...), rest[n:]
			if len(a.envelope) < envelopeBytes {
				break
			}
			a.begin()
		}
		n := int(min(a.left, int64(len(rest))))
		if !a.lost || a.isEnd() {
			a.message.Write(rest[:n])
		}
		rest = rest[n:]
		if a.left -= int64(n); a.left == 0 {
			if err := a.end(); err != nil {
				return 0, err
			}
		}
	}
	return len(p), nil
}

// isEnd reports whether the message is no message, but how the stream has ended.
func (a *jsonAnswer) isEnd() bool { return a.envelope[0]&^compressed != 0 }

// begin prepares for a message.
func (a *jsonAnswer) begin() {
	a.left = int64(binary.BigEndian.Uint32(a.envelope[1:]))
	if a.isEnd() || a.lost || a.left <= smallAnswerBytes {
		return
	}
	// As it came, decoded, and as JSON.
	if a.take(4*a.left) != nil {
		a.lost = true
		_ = a.fault.set(codes.Unavailable, reasonLimit, "the server holds as much of what its clients are slow to take as it may; go on from the last position")
	}
}

// end writes a message that has come whole.
func (a *jsonAnswer) end() error {
	envelope, out, lost := a.envelope, a.message.Bytes(), a.lost && !a.isEnd()
	if !a.isEnd() && !lost {
		message := a.kind.New().Interface()
		err := proto.Unmarshal(out, message)
		if err == nil {
			out, err = a.json.MarshalAppend(nil, message)
		}
		if err != nil {
			return err // the server's is another protocol
		}
		binary.BigEndian.PutUint32(envelope[1:], uint32(len(out)))
	}
	a.envelope, a.message = nil, bytes.Buffer{}
	defer a.held.shrink(0)
	if lost {
		// Not before: how the call ends comes after whole messages only.
		a.cancel()
		return nil
	}
	a.held.shrink(int64(cap(out)))
	if _, err := a.ResponseWriter.Write(envelope); err != nil {
		return err
	}
	_, err := a.ResponseWriter.Write(out)
	return err
}

// Flush implements http.Flusher. A part of a message is not sent.
func (a *jsonAnswer) Flush() {
	if !a.begun {
		a.WriteHeader(http.StatusOK) // else it would go as it came
	}
	if len(a.envelope) == 0 {
		_ = http.NewResponseController(a.ResponseWriter).Flush()
	}
}

// Unwrap is for http.ResponseController.
func (a *jsonAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
