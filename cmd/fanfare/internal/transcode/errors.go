package transcode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
)

// Problem is an error as JSON over HTTP tells it. It has the fields of an error of the
// Connect protocol that clients need, and what gRPC has in details.
type Problem struct {
	// Code is that of gRPC, in lower case: invalid_argument.
	Code string `json:"code"`
	// Message is for people.
	Message string `json:"message"`
	// Reason is a name of ErrorReason without its prefix; empty if the error is not
	// the server's own.
	Reason string `json:"reason,omitempty"`
	// Field is the one that is outside its limit.
	Field string `json:"field,omitempty"`
	// Metadata is as the reasons tell: the position of the head, for one.
	Metadata map[string]string `json:"metadata,omitempty"`
	// RetryIn is how long to wait before another try, in seconds; 0 means that it does
	// not help. Retry-After has it, too, in whole ones.
	RetryIn float64 `json:"retryIn,omitempty"`
}

const (
	maxErrorBytes = 64 << 10
	reasonLimit   = "LIMIT_REACHED"
	reasonField   = "INVALID_FIELD"
	reasonUnknown = "OUTCOME_UNKNOWN"
	// errorDomain is that of the server's own reasons.
	errorDomain = "fanfare.dev"
)

// codesOf are the codes of what HTTP, or the transcoder, refuses without asking the
// server.
var codesOf = map[int]connect.Code{
	http.StatusBadRequest:                  connect.CodeInvalidArgument,
	http.StatusUnauthorized:                connect.CodeUnauthenticated,
	http.StatusForbidden:                   connect.CodePermissionDenied,
	http.StatusNotFound:                    connect.CodeUnimplemented,
	http.StatusMethodNotAllowed:            connect.CodeUnimplemented,
	http.StatusRequestTimeout:              connect.CodeDeadlineExceeded,
	http.StatusRequestEntityTooLarge:       connect.CodeInvalidArgument,
	http.StatusUnsupportedMediaType:        connect.CodeInvalidArgument,
	http.StatusHTTPVersionNotSupported:     connect.CodeUnimplemented,
	http.StatusRequestHeaderFieldsTooLarge: connect.CodeInvalidArgument,
	http.StatusServiceUnavailable:          connect.CodeUnavailable,
	http.StatusBadGateway:                  connect.CodeUnavailable,
	http.StatusGatewayTimeout:              connect.CodeDeadlineExceeded,
}

// Refuse answers with a Problem whose code follows from the HTTP status.
func Refuse(w http.ResponseWriter, httpStatus int, message string) {
	refuse(w, httpStatus, message)
}

func refuse(w http.ResponseWriter, httpStatus int, message string) {
	code, ok := codesOf[httpStatus]
	if !ok {
		code = connect.CodeInternal
	}
	writeProblem(w, httpStatus, Problem{Code: code.String(), Message: message})
}

func refuseSize(w http.ResponseWriter, limit int64) {
	writeProblem(w, http.StatusRequestEntityTooLarge, Problem{
		Code: connect.CodeInvalidArgument.String(), Reason: reasonField,
		Message: sizeMessage(limit),
	})
}

func sizeMessage(limit int64) string {
	return fmt.Sprintf("the request must be at most %d bytes, also when it is decompressed; nothing was sent to the server, and the same again would not be", limit)
}

// refuseForNow refuses what there is no room for at the moment.
func refuseForNow(w http.ResponseWriter, message string) {
	writeProblem(w, http.StatusServiceUnavailable, Problem{
		Code: connect.CodeUnavailable.String(), Message: message, Reason: reasonLimit, RetryIn: 1,
	})
}

func writeProblem(w http.ResponseWriter, httpStatus int, p Problem) {
	body, err := json.Marshal(p)
	if err != nil {
		body = []byte(`{"code":"internal","message":"the error cannot be written"}`)
	}
	header := w.Header()
	if p.RetryIn > 0 {
		header.Set("Retry-After", strconv.Itoa(int(math.Ceil(p.RetryIn))))
	}
	header.Set("Content-Type", "application/json")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Del("Content-Encoding")
	header.Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(httpStatus)
	_, _ = w.Write(append(body, '\n')) // the client has gone
}

// withJSONErrors has the errors of a transcoder be Problems. Some are a
// google.rpc.Status in JSON, others plain text.
func withJSONErrors(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := &errorWriter{ResponseWriter: w}
		next.ServeHTTP(e, r)
		if e.status == 0 {
			return
		}
		for _, name := range []string{"Grpc-Status", "Grpc-Message", "Grpc-Status-Details-Bin"} {
			w.Header().Del(name)
		}
		p := e.problem()
		if f := faultOf(r.Context()); f != nil && !f.begun && e.status >= http.StatusInternalServerError {
			e.status, p.Code = http.StatusBadRequest, connect.CodeInvalidArgument.String()
		}
		if p.Reason == "" && p.Code == connect.CodeInvalidArgument.String() {
			p.Reason = reasonField
		}
		writeProblem(w, e.status, p)
	})
}

// withJSONRefusals has what a transcoder refuses in plain text, since it cannot tell what
// protocol the request is in, be Problems. Other errors are in the request's own protocol.
func withJSONRefusals(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := &errorWriter{ResponseWriter: w, plainOnly: true}
		if next.ServeHTTP(e, r); e.status != 0 {
			writeProblem(w, e.status, e.plain())
		}
	})
}

// errorWriter keeps an answer that is an error.
type errorWriter struct {
	http.ResponseWriter
	// plainOnly has it keep those in plain text only.
	plainOnly bool
	// status is that of an error, or 0.
	status int
	body   bytes.Buffer
	begun  bool
}

// WriteHeader implements http.ResponseWriter.
func (e *errorWriter) WriteHeader(httpStatus int) {
	if e.begun {
		return
	}
	e.begun = true
	if httpStatus >= http.StatusBadRequest && (!e.plainOnly || strings.HasPrefix(e.Header().Get("Content-Type"), "text/plain")) {
		e.status = httpStatus
		return
	}
	e.ResponseWriter.WriteHeader(httpStatus)
}

// Write implements http.ResponseWriter.
func (e *errorWriter) Write(p []byte) (int, error) {
	if e.begun = true; e.status == 0 {
		return e.ResponseWriter.Write(p)
	}
	e.body.Write(p[:min(len(p), maxErrorBytes-e.body.Len())])
	return len(p), nil
}

// Flush implements http.Flusher. Errors go when they are complete.
func (e *errorWriter) Flush() {
	if e.status == 0 {
		_ = http.NewResponseController(e.ResponseWriter).Flush()
	}
}

// Unwrap is for http.ResponseController.
func (e *errorWriter) Unwrap() http.ResponseWriter { return e.ResponseWriter }

func (e *errorWriter) problem() Problem {
	var st status.Status
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(e.body.Bytes(), &st); err != nil || st.Code == 0 {
		return e.plain()
	}
	return problemOf(&st)
}

// problemOf is an error of the server.
func problemOf(st *status.Status) Problem {
	p := Problem{Code: connect.Code(st.Code).String(), Message: st.Message}
	for _, detail := range st.Details {
		message, err := detail.UnmarshalNew()
		if err != nil {
			continue // of a newer server
		}
		switch d := message.(type) {
		case *errdetails.ErrorInfo:
			p.Reason, p.Metadata = d.Reason, d.Metadata
		case *errdetails.RetryInfo:
			p.RetryIn = d.RetryDelay.AsDuration().Seconds()
		case *errdetails.BadRequest:
			for _, violation := range d.FieldViolations {
				p.Field = violation.Field
			}
		}
	}
	return p
}

// plain is an error that the transcoder answers before it knows the call.
func (e *errorWriter) plain() Problem {
	code, ok := codesOf[e.status]
	if !ok {
		code = connect.CodeInternal
	}
	message := strings.TrimSpace(e.body.String())
	switch e.status {
	case http.StatusNotFound:
		message = "there is nothing at this path; /openapi.json describes what there is"
	case http.StatusMethodNotAllowed:
		message = "the method must be " + e.Header().Get("Allow")
	}
	return Problem{Code: code.String(), Message: message}
}
