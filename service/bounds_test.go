package service_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

func setPolicy(t *testing.T, r *servicetest.Replica, p *fanfarev1.Policy) *fanfarev1.Bounds {
	t.Helper()
	answer, err := r.Client.SetPolicy(t.Context(), &fanfarev1.SetPolicyRequest{Policy: p})
	if err != nil {
		t.Fatalf("set the policy of %q: %v", p.GetChannel(), err)
	}
	return answer.GetEffective()
}

// oldestIs waits until new subscriptions of a stream begin with a sequence.
func oldestIs(t *testing.T, r *servicetest.Replica, request *fanfarev1.SubscribeRequest, sequence uint64) {
	t.Helper()
	began := time.Now()
	eventually(t, "a new subscription is bound by the policy", func() bool {
		s := subscribe(t, r, request)
		defer s.cancel()
		return s.subscribed.GetOldest() == sequence
	})
	// The re-read of all resident streams comes every 30 s.
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s until a new subscription was bound by the policy", took)
	}
}

// A policy binds what new subscriptions replay at once, also of a stream that is
// in memory because somebody subscribes to it; nothing is published meanwhile,
// and that subscriber does not notice.
func TestPoliciesBoundReplayAtOnce(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("bounded", "resident")
		positions := publishMany(t, w.a, s, 20, numbered)
		resident := subscribe(t, w.b, fromOldest(s))
		contiguous(t, resident.take(20), 1)
		resident.untilCaughtUp()

		bounds := setPolicy(t, w.a, &fanfarev1.Policy{Channel: s.Channel, Backlog: new(uint64(5))})
		if bounds.GetBacklog() != 5 || bounds.GetRetentionAge().AsDuration() != 0 || bounds.GetStreamRetention().AsDuration() != 7*24*time.Hour {
			t.Errorf("the bounds are %v", bounds)
		}
		for _, r := range []*servicetest.Replica{w.a, w.b} {
			oldestIs(t, r, fromOldest(s), 16)
			bounded := subscribe(t, r, fromOldest(s))
			contiguous(t, bounded.take(5), 16)
			bounded.cancel()
			gone := subscribe(t, r, after(s, positions[2]))
			if gap := gone.untilGap(); gap.GetReason() != fanfarev1.GapReason_GAP_REASON_TRIMMED || gap.GetOldest() != 16 {
				t.Errorf("after %v: %v", positions[2], gap)
			}
			contiguous(t, gone.take(5), 16)
			gone.cancel()
			page, err := r.Client.ReadFrames(t.Context(), &fanfarev1.ReadFramesRequest{Channel: s.Channel, Scope: s.Scope})
			if err != nil || len(page.GetFrames()) != 5 {
				t.Errorf("ReadFrames returns %d frames, %v", len(page.GetFrames()), err)
			}
		}
		publish(t, w.a, newFrame(s, "live"))
		if f := resident.take(1)[0]; f.GetPosition().GetSequence() != 21 || len(resident.notices) != 1 {
			t.Errorf("the subscriber got %v, and was told %v", f.GetPosition(), resident.notices)
		}
		// Other streams are as they were.
		other := stream("other", "")
		publishMany(t, w.a, other, 20, numbered)
		contiguous(t, subscribe(t, w.b, fromOldest(other)).take(20), 1)
	})
}

// The most specific policy decides, for each bound by itself; what is removed is
// inherited again; and all is in the database.
func TestPoliciesAreInherited(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		chat, room := stream("chat/rooms", ""), stream("chat/rooms/1", "")
		for _, p := range []*fanfarev1.Policy{
			{Prefix: true, Backlog: new(uint64(8)), StreamRetention: durationpb.New(time.Hour)},
			{Channel: "chat/", Prefix: true, Backlog: new(uint64(4)), RetentionAge: durationpb.New(time.Minute)},
			{Channel: room.Channel, Backlog: new(uint64(2))},
		} {
			setPolicy(t, w.a, p)
		}
		// A start would set the default backlog again.
		w.options = nil
		w.restart()
		answer, err := w.b.Client.GetPolicy(t.Context(), &fanfarev1.GetPolicyRequest{Channel: room.Channel})
		if err != nil || answer.GetPolicy().GetBacklog() != 2 || answer.GetPolicy().RetentionAge != nil ||
			answer.GetEffective().GetBacklog() != 2 || answer.GetEffective().GetRetentionAge().AsDuration() != time.Minute ||
			answer.GetEffective().GetStreamRetention().AsDuration() != time.Hour {
			t.Errorf("GetPolicy: %v, %v", answer, err)
		}
		list, err := w.b.Client.ListPolicies(t.Context(), &fanfarev1.ListPoliciesRequest{})
		if err != nil || len(list.GetPolicies()) != 3 || list.GetPolicies()[1].GetChannel() != "chat/" || list.GetBuiltIn().GetBacklog() != 1000 {
			t.Errorf("ListPolicies: %v, %v", list, err)
		}
		publishMany(t, w.a, chat, 10, numbered)
		publishMany(t, w.a, room, 10, numbered)
		contiguous(t, subscribe(t, w.b, fromOldest(chat)).take(4), 7)
		contiguous(t, subscribe(t, w.b, fromOldest(room)).take(2), 9)

		removed := setPolicy(t, w.a, &fanfarev1.Policy{Channel: room.Channel})
		if removed.GetBacklog() != 4 {
			t.Errorf("the bounds are %v", removed)
		}
		next := stream(room.Channel, "next")
		publishMany(t, w.a, next, 10, numbered)
		oldestIs(t, w.b, fromOldest(next), 7)
	})
}
