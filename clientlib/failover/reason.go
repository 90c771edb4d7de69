package failover

import (
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service"
)

// Reason is why a Conn has left its hub.
type Reason string

// Reasons.
const (
	// Absent: nothing answers on the hub's socket.
	Absent Reason = "absent"
	// Lost: the connection to the hub broke.
	Lost Reason = "lost"
	// NotAcknowledged: a subscription was not answered.
	NotAcknowledged Reason = "not acknowledged"
	// Evicted: the hub ended a subscription that was too slow for it.
	Evicted Reason = "evicted"
)

// errNotAcknowledged is what a call was cancelled for.
var errNotAcknowledged = errors.New("the hub has not answered a subscription in time")

// sign is what the end of a call says about the hub.
type sign int

const (
	nothing sign = iota
	// goingAway: the hub drains.
	goingAway
	lost
	evicted
)

// signOf reads the error with which a call on the hub ended. Everything that a
// server says has a reason; UNAVAILABLE without one is grpc's own and means that the
// connection is not there.
func signOf(err error) sign {
	st, _ := status.FromError(err)
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == service.ErrorDomain {
			return signOfReason(info.GetReason())
		}
	}
	if st.Code() == codes.Unavailable {
		return lost
	}
	return nothing
}

func signOfReason(reason string) sign {
	switch reason {
	case nameOf(fanfarev1.ErrorReason_ERROR_REASON_DRAINING):
		return goingAway
	case nameOf(fanfarev1.ErrorReason_ERROR_REASON_SLOW_SUBSCRIBER):
		return evicted
	default:
		return nothing
	}
}

// nameOf is a reason as ErrorInfo has it.
func nameOf(r fanfarev1.ErrorReason) string { return r.String()[len("ERROR_REASON_"):] }
