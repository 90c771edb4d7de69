package transcode

import (
	"errors"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
)

// isOpen reports whether the path is that of a call that needs no token.
func isOpen(urlPath string) bool {
	return strings.HasPrefix(urlPath, "/"+grpc_health_v1.Health_ServiceDesc.ServiceName+"/")
}

// clientAddr is a net.Addr of a client over HTTP, for who logs that it was refused.
type clientAddr string

func (clientAddr) Network() string  { return "http" }
func (a clientAddr) String() string { return string(a) }

// authorized reports whether the request may be read, and answers it if not.
func (h *Handler) authorized(w http.ResponseWriter, r *http.Request) bool {
	if h.config.Authorize == nil {
		return true
	}
	caller := &peer.Peer{Addr: clientAddr(r.RemoteAddr)}
	err := h.config.Authorize(r.WithContext(peer.NewContext(r.Context(), caller)))
	if err == nil {
		return true
	}
	st := status.Convert(err)
	if !strings.HasPrefix(r.URL.Path, "/v1/") {
		_ = h.refusals.Write(w, r, connectError(st)) // the client has gone
		return false
	}
	httpStatus, ok := refusalStatuses[st.Code()]
	if !ok {
		httpStatus = http.StatusInternalServerError
	}
	writeProblem(w, httpStatus, problemOf(st.Proto()))
	return false
}

// refusalStatuses are the HTTP statuses of refusals of callers.
var refusalStatuses = map[codes.Code]int{
	codes.Unauthenticated:  http.StatusUnauthorized,
	codes.PermissionDenied: http.StatusForbidden,
	codes.Unavailable:      http.StatusServiceUnavailable,
	codes.DeadlineExceeded: http.StatusGatewayTimeout,
	codes.Canceled:         499, // nobody reads it
}

func connectError(st *status.Status) error {
	e := connect.NewError(connect.Code(st.Code()), errors.New(st.Message()))
	for _, detail := range st.Details() {
		if message, ok := detail.(protoadapt.MessageV1); ok {
			if d, err := connect.NewErrorDetail(protoadapt.MessageV2Of(message)); err == nil {
				e.AddDetail(d)
			}
		}
	}
	return e
}
