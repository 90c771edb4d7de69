package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

func TestNotices(t *testing.T) {
	position := func(sequence uint64) *fanfarev1.Position { return &fanfarev1.Position{Epoch: 7, Sequence: sequence} }
	gap := func(reason fanfarev1.GapReason) *fanfarev1.SubscribeResponse {
		return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Gap{Gap: &fanfarev1.Gap{
			Reason: reason, Requested: position(2), Oldest: 5, Head: position(9), ResumeAfter: position(4),
		}}}
	}
	for _, c := range []struct {
		response   *fanfarev1.SubscribeResponse
		json, text string
		moves      bool
	}{
		{
			&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Subscribed{Subscribed: &fanfarev1.Subscribed{
				Head: position(9), Oldest: 5, ResumeAfter: position(4), Resumed: true,
			}}},
			`{"type":"subscribed","position":"7-4","head":"7-9","oldest":5,"resumed":true}`, "subscribed after 7-4", true,
		},
		{
			&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_CaughtUp{CaughtUp: &fanfarev1.CaughtUp{Position: position(9)}}},
			`{"type":"caught_up","position":"7-9"}`, "caught up at 7-9", true,
		},
		{
			gap(fanfarev1.GapReason_GAP_REASON_TRIMMED),
			`{"type":"gap","position":"7-4","reason":"TRIMMED","requested":"7-2","oldest":5,"head":"7-9"}`, "TRIMMED", true,
		},
		{
			gap(fanfarev1.GapReason_GAP_REASON_EPHEMERAL_MAYBE_MISSED),
			`{"type":"gap","position":"7-4","reason":"EPHEMERAL_MAYBE_MISSED","requested":"7-2","oldest":5,"head":"7-9"}`, "gap: ephemeral frames may have been missed (", true,
		},
		{
			// A reason of a newer server is loss, too.
			gap(99),
			`{"type":"gap","position":"7-4","reason":"99","requested":"7-2","oldest":5,"head":"7-9"}`, "99", true,
		},
		{
			&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Progress{Progress: &fanfarev1.Progress{Position: position(9)}}},
			`{"type":"progress","position":"7-9"}`, "", true,
		},
		{
			&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Status{Status: &fanfarev1.Status{Listening: true}}},
			`{"type":"status","listening":true}`, "is back", false,
		},
		{
			&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Status{Status: &fanfarev1.Status{}}},
			`{"type":"status","listening":false}`, "lost its listener", false,
		},
		{
			&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Closed{Closed: &fanfarev1.Closed{Last: position(9)}}},
			`{"type":"closed","position":"7-9"}`, "closed after 7-9", true,
		},
		{
			&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Closing{Closing: &fanfarev1.Closing{
				ResumeAfter: position(9), RetryIn: durationpb.New(1500 * time.Millisecond),
			}}},
			`{"type":"closing","position":"7-9","retry_in_ms":1500}`, "after 7-9", true,
		},
	} {
		notice := newNotice(c.response)
		encoded, err := json.Marshal(notice.object)
		if err != nil || string(encoded) != c.json {
			t.Errorf("as JSON %s, %v, want %s", encoded, err, c.json)
		}
		if !strings.Contains(notice.text, c.text) || (c.text == "") != (notice.text == "") {
			t.Errorf("for people %q, want %q", notice.text, c.text)
		}
		if (notice.position != nil) != c.moves {
			t.Errorf("%s moves the position: %t", c.json, !c.moves)
		}
	}
	if notice := newNotice(&fanfarev1.SubscribeResponse{}); notice != nil {
		t.Errorf("a response without a notice that is known is shown as %v", notice)
	}
}
