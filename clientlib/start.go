package clientlib

import (
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Start says where a subscription begins. The zero value is [Oldest].
type Start struct {
	kind     startKind
	position Position
	last     uint64
}

type startKind uint8

const (
	startOldest startKind = iota
	startLive
	startAfter
	startLast
)

// Oldest begins with everything that the backlog may replay.
func Oldest() Start { return Start{} }

// Live begins with the frames that commit after [Subscribed].
func Live() Start { return Start{kind: startLive} }

// After begins with the frame after a position, such as [Subscription.Position] of an
// earlier subscription. If that is not possible, a [Gap] follows Subscribed.
func After(p Position) Start { return Start{kind: startAfter, position: p} }

// Last begins with the newest n frames, or as many of them as the backlog may replay.
// Last(0) is Live.
func Last(n uint64) Start { return Start{kind: startLast, last: n} }

func (s Start) request(stream Stream) *fanfarev1.SubscribeRequest {
	r := &fanfarev1.SubscribeRequest{Channel: stream.Channel, Scope: stream.Scope}
	switch s.kind {
	case startOldest:
		r.Start = &fanfarev1.SubscribeRequest_Oldest{Oldest: true}
	case startLive:
		r.Start = &fanfarev1.SubscribeRequest_Live{Live: true}
	case startAfter:
		r.Start = &fanfarev1.SubscribeRequest_After{After: s.position.proto()}
	case startLast:
		r.Start = &fanfarev1.SubscribeRequest_Last{Last: s.last}
	}
	return r
}
