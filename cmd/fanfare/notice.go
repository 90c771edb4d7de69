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
// data_base64 it has one, of position and ephemeral too.
type frameJSON struct {
	Type        string            `json:"type"`
	Position    string            `json:"position,omitempty"`
	Ephemeral   bool              `json:"ephemeral,omitempty"`
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
		Ephemeral:   frame.GetEphemeral(),
		ContentType: frame.GetContentType(),
		EventType:   frame.GetEventType(),
		Headers:     frame.GetHeaders(),
		Created:     frame.GetCreated().AsTime(),
	}
	if !frame.GetEphemeral() {
		object.Position = positionText(frame.GetPosition())
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
	// warns is true if it is more than the normal course of things.
	warns bool
	// why explains it, on a terminal; may be empty.
	why string
}

// shown is the notice's text as an output gets it.
func (n *notice) shown(d display) string {
	text := n.text
	if d.terminal && n.why != "" {
		text += ": " + n.why
	}
	if n.warns {
		return d.paint(warningStyle, text)
	}
	return d.paint(quietStyle, text)
}

// newNotice returns the response's notice; nil if it has none that is known.
func newNotice(response *fanfarev1.SubscribeResponse) *notice {
	switch n := response.GetNotice().(type) {
	case *fanfarev1.SubscribeResponse_Subscribed:
		return newSubscribed(n.Subscribed)
	case *fanfarev1.SubscribeResponse_CaughtUp:
		at := n.CaughtUp.GetPosition()
		return &notice{position: at, object: positionJSON{"caught_up", positionText(at)}, text: "caught up at " + positionText(at)}
	case *fanfarev1.SubscribeResponse_Gap:
		return newGap(n.Gap)
	case *fanfarev1.SubscribeResponse_Progress:
		at := n.Progress.GetPosition()
		return &notice{position: at, object: positionJSON{"progress", positionText(at)}}
	case *fanfarev1.SubscribeResponse_Status:
		return newStatus(n.Status)
	case *fanfarev1.SubscribeResponse_Closed:
		at := n.Closed.GetLast()
		return &notice{position: at, object: positionJSON{"closed", positionText(at)}, text: "the stream was closed after " + positionText(at)}
	case *fanfarev1.SubscribeResponse_Closing:
		return newClosing(n.Closing)
	default:
		return nil
	}
}

func newSubscribed(n *fanfarev1.Subscribed) *notice {
	at := n.GetResumeAfter()
	return &notice{
		position: at,
		object:   subscribedJSON{"subscribed", positionText(at), positionText(n.GetHead()), n.GetOldest(), n.GetResumed()},
		text:     fmt.Sprintf("subscribed after %s, the stream's head is %s", positionText(at), positionText(n.GetHead())),
	}
}

func newGap(n *fanfarev1.Gap) *notice {
	at, reason := n.GetResumeAfter(), strings.TrimPrefix(n.GetReason().String(), "GAP_REASON_")
	missing := fmt.Sprintf("frames after %s are not available", positionText(n.GetRequested()))
	if n.GetReason() == fanfarev1.GapReason_GAP_REASON_EPHEMERAL_MAYBE_MISSED {
		missing = "ephemeral frames may have been missed"
	}
	return &notice{
		position: at,
		object:   gapJSON{"gap", positionText(at), reason, positionText(n.GetRequested()), n.GetOldest(), positionText(n.GetHead())},
		text:     fmt.Sprintf("gap: %s (%s); continuing after %s", missing, reason, positionText(at)),
		warns:    true,
		why:      gapCauses[n.GetReason()],
	}
}

// gapCauses are what reasons mean to those who meet one.
var gapCauses = map[fanfarev1.GapReason]string{
	fanfarev1.GapReason_GAP_REASON_TRIMMED:                "they are out of the backlog's bounds, which fanfare policy sets",
	fanfarev1.GapReason_GAP_REASON_EPOCH_CHANGED:          "the position is of another numbering, from before the stream was closed and opened again, or of another stream",
	fanfarev1.GapReason_GAP_REASON_AHEAD:                  "the stream has not come so far",
	fanfarev1.GapReason_GAP_REASON_EPHEMERAL_MAYBE_MISSED: "the server did not hear of new frames for a while; stored ones were not missed",
}

func newStatus(n *fanfarev1.Status) *notice {
	text := "the server lost its listener: stored frames wait until it is back, ephemeral ones may be missed"
	if n.GetListening() {
		text = "the server's listener is back"
	}
	return &notice{object: statusJSON{"status", n.GetListening()}, text: text, warns: !n.GetListening()}
}

func newClosing(n *fanfarev1.Closing) *notice {
	at := n.GetResumeAfter()
	return &notice{
		position: at,
		object:   closingJSON{"closing", positionText(at), n.GetRetryIn().AsDuration().Milliseconds()},
		text:     fmt.Sprintf("the server ends this subscription after %s", positionText(at)),
		warns:    true,
	}
}
