package clientlib

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// What a server sends, in short.

func at(epoch, sequence uint64) *fanfarev1.Position {
	return &fanfarev1.Position{Epoch: epoch, Sequence: sequence}
}

func sendsFrames(positions ...*fanfarev1.Position) *fanfarev1.SubscribeResponse {
	r := &fanfarev1.SubscribeResponse{}
	for _, p := range positions {
		r.Frames = append(r.Frames, &fanfarev1.Frame{Position: p, Ephemeral: p == nil})
	}
	return r
}

func sendsSubscribed(after, head *fanfarev1.Position, resumed bool) *fanfarev1.SubscribeResponse {
	return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Subscribed{
		Subscribed: &fanfarev1.Subscribed{ResumeAfter: after, Head: head, Resumed: resumed},
	}}
}

func sendsGap(reason GapReason, requested, head, after *fanfarev1.Position) *fanfarev1.SubscribeResponse {
	return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Gap{
		Gap: &fanfarev1.Gap{Reason: fanfarev1.GapReason(reason), Requested: requested, Head: head, ResumeAfter: after},
	}}
}

func sendsCaughtUp(p *fanfarev1.Position) *fanfarev1.SubscribeResponse {
	return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_CaughtUp{CaughtUp: &fanfarev1.CaughtUp{Position: p}}}
}

func sendsClosed(p *fanfarev1.Position) *fanfarev1.SubscribeResponse {
	return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Closed{Closed: &fanfarev1.Closed{Last: p}}}
}

func sendsProgress(p *fanfarev1.Position) *fanfarev1.SubscribeResponse {
	return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Progress{Progress: &fanfarev1.Progress{Position: p}}}
}

// describe is what a track hands on, in short.
func describe(items []item) (events []string) {
	for _, i := range items {
		switch e := i.event.(type) {
		case nil:
			events = append(events, "dropped")
		case *Frame:
			events = append(events, e.Position.String())
		case *Gap:
			events = append(events, "gap "+e.Reason.String())
		default:
			events = append(events, fmt.Sprintf("%T", e)[len("*clientlib."):])
		}
	}
	return events
}

// plays has a track take responses, up to the first error.
func plays(t *track, responses ...*fanfarev1.SubscribeResponse) (events []string, err error) {
	for _, r := range responses {
		var items []item
		items, err = t.take(r)
		events = append(events, describe(items)...)
		if err != nil {
			return events, err
		}
	}
	return events, nil
}

// Every way in which a delivery is not contiguous ends the call, with what came before
// it handed on; repetitions are dropped; what only looks like either is neither.
func TestTrackHandsOnWhatIsContiguous(t *testing.T) {
	type responses = []*fanfarev1.SubscribeResponse
	begun := sendsSubscribed(at(7, 2), at(7, 9), true)
	for name, test := range map[string]struct {
		start     Start
		responses responses
		want      []string
		broken    bool
	}{
		"frames in order": {
			start: After(Position{7, 2}), responses: responses{begun, sendsFrames(at(7, 3), at(7, 4)), sendsFrames(at(7, 5))},
			want: []string{"Subscribed", "7-3", "7-4", "7-5"},
		},
		"another epoch after a restart": {
			start: After(Position{7, 2}), responses: responses{begun, sendsFrames(at(7, 3), at(8, 4))},
			want: []string{"Subscribed", "7-3", "8-4"},
		},
		"ephemeral frames among them": {
			start: After(Position{7, 2}), responses: responses{begun, sendsFrames(nil, at(7, 3), nil, at(7, 4))},
			want: []string{"Subscribed", "0-0", "7-3", "0-0", "7-4"},
		},
		"a hole": {
			start: After(Position{7, 2}), responses: responses{begun, sendsFrames(at(7, 3), at(7, 5))},
			want: []string{"Subscribed", "7-3"}, broken: true,
		},
		"a hole right after the beginning": {
			start: After(Position{7, 2}), responses: responses{begun, sendsFrames(at(7, 4))},
			want: []string{"Subscribed"}, broken: true,
		},
		"a repetition": {
			start: After(Position{7, 2}), responses: responses{begun, sendsFrames(at(7, 3), at(7, 3), at(7, 2), at(7, 4))},
			want: []string{"Subscribed", "7-3", "dropped", "dropped", "7-4"},
		},
		"an earlier frame of another epoch": {
			start: After(Position{7, 2}), responses: responses{begun, sendsFrames(at(7, 3), at(8, 3))},
			want: []string{"Subscribed", "7-3"}, broken: true,
		},
		"a frame before Subscribed": {
			responses: responses{sendsFrames(at(7, 1))}, broken: true,
		},
		"Subscribed twice": {
			start: After(Position{7, 2}), responses: responses{begun, begun}, want: []string{"Subscribed"}, broken: true,
		},
		"another beginning than was asked for": {
			start: After(Position{7, 2}), responses: responses{sendsSubscribed(at(7, 3), at(7, 9), true)}, broken: true,
		},
		"the beginning of a stream that has an epoch by now": {
			start: After(Position{}), responses: responses{sendsSubscribed(at(7, 0), at(7, 1), true), sendsFrames(at(7, 1))},
			want: []string{"Subscribed", "7-1"},
		},
		"a gap": {
			start: After(Position{7, 2}),
			responses: responses{
				sendsSubscribed(at(7, 2), at(7, 9), false), sendsGap(Trimmed, at(7, 2), at(7, 9), at(7, 7)),
				sendsFrames(at(7, 8)),
			},
			want: []string{"Subscribed", "gap TRIMMED", "7-8"},
		},
		"a gap into another numbering": {
			start: After(Position{7, 2}), responses: responses{begun, sendsGap(EpochChanged, at(7, 2), at(9, 1), at(9, 0)), sendsFrames(at(9, 1))},
			want: []string{"Subscribed", "gap EPOCH_CHANGED", "9-1"},
		},
		"a gap that was owed": {
			start: After(Position{7, 2}), responses: responses{sendsSubscribed(at(7, 2), at(7, 9), false), sendsFrames(at(7, 3))},
			want: []string{"Subscribed"}, broken: true,
		},
		"ephemeral frames maybe missed": {
			start: After(Position{7, 2}), responses: responses{begun, sendsGap(EphemeralMaybeMissed, at(7, 2), at(7, 9), at(7, 2)), sendsFrames(at(7, 3))},
			want: []string{"Subscribed", "gap EPHEMERAL_MAYBE_MISSED", "7-3"},
		},
		"caught up further than what came": {
			start: After(Position{7, 2}), responses: responses{begun, sendsCaughtUp(at(7, 3))},
			want: []string{"Subscribed"}, broken: true,
		},
		"closed further than what came": {
			start: After(Position{7, 2}), responses: responses{begun, sendsClosed(at(7, 3))},
			want: []string{"Subscribed"}, broken: true,
		},
		"progress further than what came": {
			start: After(Position{7, 2}), responses: responses{begun, sendsProgress(at(7, 3))},
			want: []string{"Subscribed"}, broken: true,
		},
		"what a newer server says": {
			start: After(Position{7, 2}), responses: responses{begun, {}, sendsFrames(at(7, 3))},
			want: []string{"Subscribed", "7-3"},
		},
		"the first frame of a numbering that was waited for": {
			responses: responses{sendsSubscribed(at(0, 0), at(7, 9), false), sendsFrames(at(8, 1))},
			want:      []string{"Subscribed", "8-1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			track := newTrack(Stream{}, test.start)
			track.begin()
			got, err := plays(&track, test.responses...)
			if !slices.Equal(got, test.want) || (err != nil) != test.broken {
				t.Errorf("got %q, %v; want %q, broken %t", got, err, test.want, test.broken)
			}
			if err != nil && !errors.Is(err, ErrNotContiguous) {
				t.Errorf("%v is not ErrNotContiguous", err)
			}
		})
	}
}

// Where the next call begins: the start again until the server has said where that is,
// then after the last position of any frame or notice.
func TestTrackResumes(t *testing.T) {
	track := newTrack(Stream{"c", "s"}, Live())
	if r := track.begin(); !r.GetLive() || r.GetChannel() != "c" || r.GetScope() != "s" {
		t.Fatalf("the first call asks for %v", r)
	}
	if r := track.begin(); !r.GetLive() {
		t.Fatalf("after a call that brought nothing the next asks for %v", r)
	}
	asks := func(want Position, responses ...*fanfarev1.SubscribeResponse) {
		t.Helper()
		_, _ = plays(&track, responses...)
		if r := track.begin(); positionOf(r.GetAfter()) != want {
			t.Fatalf("the next call asks for %v, want after %s", r, want)
		}
	}
	asks(Position{7, 4}, sendsSubscribed(at(7, 4), at(7, 4), false))
	asks(Position{7, 6}, sendsSubscribed(at(7, 4), at(7, 6), true), sendsFrames(at(7, 5), at(7, 6)))
	asks(Position{7, 7}, sendsSubscribed(at(7, 6), at(7, 9), true), sendsFrames(at(7, 7), at(7, 9)))
	asks(Position{7, 20}, sendsSubscribed(at(7, 7), at(7, 30), false), sendsGap(Trimmed, at(7, 7), at(7, 30), at(7, 20)))
	// The Gap did not come: it must be told again.
	asks(Position{7, 20}, sendsSubscribed(at(7, 20), at(9, 3), false))
}

// A subscription waits for the next numbering of a closed stream, at 0-0. Each time it
// resumes the server says Gap, since it cannot resume from there. Nothing was missed as
// long as the same numbering is closed; once there was another, something may have been.
func TestWaitingForAReopeningIsNoLoss(t *testing.T) {
	track := newTrack(Stream{}, Oldest())
	track.begin()
	none, closed := at(0, 0), at(7, 9)
	got, err := plays(&track, sendsSubscribed(none, closed, false), sendsCaughtUp(none))
	if want := []string{"Subscribed", "CaughtUp"}; err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %q, %v", got, err)
	}
	track.begin()
	got, err = plays(&track, sendsSubscribed(none, closed, false), sendsGap(EpochChanged, none, closed, none), sendsCaughtUp(none))
	if want := []string{"Subscribed", "CaughtUp"}; err != nil || !slices.Equal(got, want) {
		t.Fatalf("the same numbering is closed: got %q, %v, want %q", got, err, want)
	}
	track.begin()
	another := at(8, 2)
	got, err = plays(&track, sendsSubscribed(none, another, false), sendsGap(EpochChanged, none, another, none))
	if want := []string{"Subscribed", "gap EPOCH_CHANGED"}; err != nil || !slices.Equal(got, want) {
		t.Fatalf("another was opened and closed: got %q, %v, want %q", got, err, want)
	}
}

// Ephemeral frames of the time between two calls are missed. The server says nothing of
// them: to it the second call is a new subscription.
func TestResumingMissesEphemeralFrames(t *testing.T) {
	track := newTrack(Stream{}, Live())
	track.begin()
	subscribed := sendsSubscribed(at(7, 2), at(7, 2), true)
	if got, err := plays(&track, subscribed, sendsFrames(nil)); err != nil || len(got) != 2 {
		t.Fatalf("got %q, %v", got, err)
	}
	for range 2 {
		track.begin()
		got, err := plays(&track, subscribed)
		if want := []string{"Subscribed", "gap EPHEMERAL_MAYBE_MISSED"}; err != nil || !slices.Equal(got, want) {
			t.Fatalf("got %q, %v, want %q", got, err, want)
		}
	}
}

// A hole that is there each time is given up; one that resuming gets over is forgotten.
func TestHolesAreGivenUp(t *testing.T) {
	track := newTrack(Stream{}, Oldest())
	hole := func(from, to uint64) {
		track.begin()
		_, _ = plays(&track, sendsSubscribed(at(7, from), at(7, 9), true), sendsFrames(at(7, to)))
	}
	for range maxBreaks - 1 {
		hole(0, 2)
	}
	if track.hopeless() {
		t.Fatalf("given up after %d holes", maxBreaks-1)
	}
	hole(0, 1) // no hole
	for range maxBreaks - 1 {
		hole(1, 3)
	}
	if track.hopeless() {
		t.Fatal("holes that were got over still count")
	}
	if hole(1, 3); !track.hopeless() {
		t.Fatalf("not given up after %d holes", maxBreaks)
	}
}
