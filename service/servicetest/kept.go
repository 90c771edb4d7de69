package servicetest

import "github.com/fanfare-io/fanfare/backlog"

// kept walks each subscription, from Subscribed to its end, by itself: an
// ephemeral frame that came in one may come in the next, too, which began on
// another replica before the frame was announced there.
//
// A replica that reads durable frames from the store may have them before the
// announcement of an ephemeral one that was committed before them. It delivers them
// in their order all the same, unless the announcement may be lost: then a Gap comes
// first, and everything that had been published by then may come in any order of the
// kinds. That an ephemeral frame must have come is certain only when one comes that
// was published after it.
func kept(run Run) []string {
	var v violations
	sent := sentFrames(run)
	for _, s := range run.Subscribers {
		for _, events := range subscriptions(s) {
			k := keptIn{
				Subscriber: s, sent: sent[s.Stream], violations: &v,
				got: map[Content]int{}, reached: map[string]int{}, overtaken: map[string]int{},
			}
			k.check(events)
		}
	}
	return v
}

// sentFrame is what was published under one content, of either kind.
type sentFrame struct {
	Publish
	// attempts counts those that may have succeeded: each of an ephemeral frame may
	// deliver it.
	attempts int
	// order, from 1, is the place of the one that was confirmed among all; 0 if none
	// was, or as a duplicate, of which it is not known when it was stored.
	order int
}

// sentFrames are the frames of a run by stream and content.
func sentFrames(run Run) map[backlog.StreamName]map[Content]sentFrame {
	out := map[backlog.StreamName]map[Content]sentFrame{}
	for i, p := range run.Publishes {
		if p.Result == Refused || p.Result == RolledBack {
			continue
		}
		if out[p.Stream] == nil {
			out[p.Stream] = map[Content]sentFrame{}
		}
		f := out[p.Stream][p.Content]
		f.attempts++
		if p.Result == Confirmed && !p.Duplicate {
			f.Publish, f.order = p, i+1
		}
		out[p.Stream][p.Content] = f
	}
	return out
}

// subscriptions splits what a subscriber saw into its subscriptions.
func subscriptions(s Subscriber) (out [][]Event) {
	for _, e := range s.Events {
		switch {
		case e.Kind == SawSubscribed:
			out = append(out, []Event{e})
		case len(out) > 0:
			out[len(out)-1] = append(out[len(out)-1], e)
		}
	}
	return out
}

// keptIn checks one subscription.
type keptIn struct {
	Subscriber
	sent map[Content]sentFrame
	*violations
	got map[Content]int
	// reached is, for each publisher, the greatest order of its ephemeral frames that
	// came; until is when the publishing of the latest of all began.
	reached map[string]int
	until   Tick
	// overtaken is, for each publisher, the greatest order of its durable frames that
	// came, of those that it published since the last Gap.
	overtaken map[string]int
	gap       Tick
	// missed is when the subscription was last told that it may have missed some.
	missed Tick
}

func (k *keptIn) check(events []Event) {
	for _, e := range events[1:] {
		switch {
		case e.Kind == SawFrame, e.Kind == SawEphemeral:
			k.take(e)
		case e.Kind == SawGap:
			k.gap = e.Tick
			clear(k.overtaken)
			if !e.isLoss() {
				k.missed = e.Tick
			}
		}
	}
	since := events[0].Tick
	for content, f := range k.sent {
		if f.order > 0 && f.Ephemeral && f.Began > max(since, k.missed) && f.Ended < k.until && k.got[content] == 0 {
			k.add("%s of %s, subscribed at %d, did not get the ephemeral frame that %s published at %d", k.Name, k.Stream, since, f.Publisher, f.Began)
		}
	}
}

// take checks that a frame is not repeated, and that none came before it that its
// publisher sent after it, where one of the two is ephemeral. Of durable frames among
// each other Once and Ordered say that.
func (k *keptIn) take(e Event) {
	f, ephemeral := k.sent[e.Content], e.Kind == SawEphemeral
	k.got[e.Content]++
	if ephemeral && k.got[e.Content] > max(1, f.attempts) {
		k.add("%s of %s got an ephemeral frame of %s %d times in one subscription", k.Name, k.Stream, f.Publisher, k.got[e.Content])
	}
	if f.order == 0 || !ephemeral && k.got[e.Content] > 1 {
		return
	}
	if f.order < k.reached[f.Publisher] {
		k.add("%s of %s got a frame that %s published at %d after an ephemeral one that it published later", k.Name, k.Stream, f.Publisher, f.Began)
	}
	if ephemeral && f.order < k.overtaken[f.Publisher] {
		k.add("%s of %s got an ephemeral frame that %s published at %d after a durable one that it published later", k.Name, k.Stream, f.Publisher, f.Began)
	}
	if !ephemeral && f.Began > k.gap {
		k.overtaken[f.Publisher] = max(k.overtaken[f.Publisher], f.order)
	}
	if ephemeral {
		k.reached[f.Publisher] = max(k.reached[f.Publisher], f.order)
		k.until = max(k.until, f.Began)
	}
}
