package main

import (
	"encoding/base64"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// frameJSON is what subscribe --json prints for a frame. Of data and
// data_base64 it has one.
type frameJSON struct {
	Type        string            `json:"type"`
	Position    string            `json:"position"`
	Data        *string           `json:"data,omitempty"`
	DataBase64  *string           `json:"data_base64,omitempty"`
	ContentType string            `json:"content_type,omitempty"`
	EventType   string            `json:"event_type,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"`
	Created     time.Time         `json:"created"`
}

func newFrameJSON(frame *fanfarev1.Frame) frameJSON {
	object := frameJSON{
		Type:        "frame",
		Position:    positionText(frame.GetPosition()),
		ContentType: frame.GetContentType(),
		EventType:   frame.GetEventType(),
		Headers:     frame.GetHeaders(),
		Created:     frame.GetCreated().AsTime(),
	}
	if payload := frame.GetPayload(); utf8.Valid(payload) {
		text := string(payload)
		object.Data = &text
	} else {
		text := base64.StdEncoding.EncodeToString(payload)
		object.DataBase64 = &text
	}
	return object
}

// The objects that subscribe --json prints for notices. In each, position is
// the client's position after the notice, which it may resume from.
type (
	subscribedJSON struct {
		Type     string `json:"type"`
		Position string `json:"position"`
		Head     string `json:"head"`
		Oldest   uint64 `json:"oldest"`
		Resumed  bool   `json:"resumed"`
	}
	gapJSON struct {
		Type      string `json:"type"`
		Position  string `json:"position"`
		Reason    string `json:"reason"`
		Requested string `json:"requested"`
		Oldest    uint64 `json:"oldest"`
		Head      string `json:"head"`
	}
	positionJSON struct {
		Type     string `json:"type"`
		Position string `json:"position"`
	}
	statusJSON struct {
		Type      string `json:"type"`
		Listening bool   `json:"listening"`
	}
	closingJSON struct {
		Type          string `json:"type"`
		Position      string `json:"position"`
		RetryInMillis int64  `json:"retry_in_ms"`
	}
)

// notice is one notice of a subscription, ready to be shown.
type notice struct {
	// position is the client's position from now on; nil leaves it.
	position *fanfarev1.Position
	object   any
	// text is for people; empty if there is nothing worth telling them.
	text string
}

// newNotice returns the response's notice; nil if it has none that is known.
func newNotice(response *fanfarev1.SubscribeResponse) *notice {
	switch n := response.GetNotice().(type) {
	case *fanfarev1.SubscribeResponse_Subscribed:
		return newSubscribed(n.Subscribed)
	case *fanfarev1.SubscribeResponse_CaughtUp:
		at := n.CaughtUp.GetPosition()
		return &notice{at, positionJSON{"caught_up", positionText(at)}, "caught up at " + positionText(at)}
	case *fanfarev1.SubscribeResponse_Gap:
		return newGap(n.Gap)
	case *fanfarev1.SubscribeResponse_Progress:
		at := n.Progress.GetPosition()
		return &notice{at, positionJSON{"progress", positionText(at)}, ""}
	case *fanfarev1.SubscribeResponse_Status:
		return newStatus(n.Status)
	case *fanfarev1.SubscribeResponse_Closed:
		at := n.Closed.GetLast()
		return &notice{at, positionJSON{"closed", positionText(at)}, "the stream was closed after " + positionText(at)}
	case *fanfarev1.SubscribeResponse_Closing:
		return newClosing(n.Closing)
	default:
		return nil
	}
}

func newSubscribed(n *fanfarev1.Subscribed) *notice {
	at := n.GetResumeAfter()
	return &notice{
		at,
		subscribedJSON{"subscribed", positionText(at), positionText(n.GetHead()), n.GetOldest(), n.GetResumed()},
		fmt.Sprintf("subscribed after %s, the stream's head is %s", positionText(at), positionText(n.GetHead())),
	}
}

func newGap(n *fanfarev1.Gap) *notice {
	at, reason := n.GetResumeAfter(), strings.TrimPrefix(n.GetReason().String(), "GAP_REASON_")
	return &notice{
		at,
		gapJSON{"gap", positionText(at), reason, positionText(n.GetRequested()), n.GetOldest(), positionText(n.GetHead())},
		fmt.Sprintf("gap: frames after %s are not available (%s); continuing after %s", positionText(n.GetRequested()), reason, positionText(at)),
	}
}

func newStatus(n *fanfarev1.Status) *notice {
	text := "the server lost its listener: frames wait until it is back"
	if n.GetListening() {
		text = "the server's listener is back"
	}
	return &notice{nil, statusJSON{"status", n.GetListening()}, text}
}

func newClosing(n *fanfarev1.Closing) *notice {
	at := n.GetResumeAfter()
	return &notice{
		at,
		closingJSON{"closing", positionText(at), n.GetRetryIn().AsDuration().Milliseconds()},
		fmt.Sprintf("the server ends this subscription after %s", positionText(at)),
	}
}
