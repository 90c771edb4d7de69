package main

import (
	"slices"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// replayMeter shows how much of a subscription's replay has come. Without a
// meter it does nothing.
type replayMeter struct {
	meter *meter
	// after is the sequence after which the replay begins.
	after uint64
}

// show takes a response into account, of a subscription that wants at most so
// many more frames.
func (r *replayMeter) show(response *fanfarev1.SubscribeResponse, wanted uint64) {
	if last := lastSequence(response.GetFrames()); last > r.after {
		r.meter.reach(int64(last - r.after))
	}
	switch n := response.GetNotice().(type) {
	case *fanfarev1.SubscribeResponse_Subscribed:
		r.begin(n.Subscribed.GetResumeAfter(), n.Subscribed.GetHead(), wanted)
	case *fanfarev1.SubscribeResponse_Gap:
		if n.Gap.GetReason() == fanfarev1.GapReason_GAP_REASON_EPHEMERAL_MAYBE_MISSED {
			return // nothing is replayed for it
		}
		r.begin(n.Gap.GetResumeAfter(), n.Gap.GetHead(), wanted)
	case *fanfarev1.SubscribeResponse_CaughtUp:
		r.meter.end()
	}
}

// lastSequence is that of the last durable frame; 0 if there is none.
func lastSequence(frames []*fanfarev1.Frame) uint64 {
	for _, frame := range slices.Backward(frames) {
		if !frame.GetEphemeral() {
			return frame.GetPosition().GetSequence()
		}
	}
	return 0
}

// begin begins to show a replay of what follows after, up to head.
func (r *replayMeter) begin(after, head *fanfarev1.Position, wanted uint64) {
	r.after = after.GetSequence()
	if head.GetSequence() <= r.after {
		r.meter.end()
		return
	}
	r.meter.begin(int64(min(head.GetSequence()-r.after, wanted)), inFrames)
}
