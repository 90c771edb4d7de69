package service

import (
	"strings"
	"testing"
	"time"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/auth"
)

// Of a batch with one frame that may not be published, none is.
func TestBatchNeedsTheRightToEachFrame(t *testing.T) {
	g := newGuarded(t)
	ctx := with(t.Context(), "Bearer "+signed(t, auth.Grant{Lifetime: testLifetime, Permissions: auth.Permissions{Publish: []auth.Permission{{Channel: "chat", Scope: "lobby"}}}}))
	other := newLobbyFrame()
	other.Scope = "kitchen"
	_, err := fanfarev1.NewFanfareServiceClient(g.conn).PublishBatch(ctx, &fanfarev1.PublishBatchRequest{Frames: []*fanfarev1.NewFrame{newLobbyFrame(), other}})
	if reasonOf(err) != "PERMISSION_DENIED" || !strings.Contains(err.Error(), "frames[1]") {
		t.Errorf("got %v", err)
	}
	if head := g.store.heads[chatLobby]; head != 1 {
		t.Errorf("the head is %d: a frame was published", head)
	}
	_, err = fanfarev1.NewFanfareServiceClient(g.conn).PublishBatch(ctx, &fanfarev1.PublishBatchRequest{Frames: []*fanfarev1.NewFrame{newLobbyFrame(), newLobbyFrame()}})
	if err != nil {
		t.Error(err)
	}
}

// Frames of a PublishStream that may not be published are refused one by one; the others
// are published, in their order.
func TestPublishStreamRefusesFramesOneByOne(t *testing.T) {
	g := newGuarded(t)
	ctx := with(t.Context(), "Bearer "+signed(t, auth.Grant{Lifetime: testLifetime, Permissions: auth.Permissions{Publish: []auth.Permission{{Channel: "chat", Scope: "lobby"}}}}))
	call, err := fanfarev1.NewFanfareServiceClient(g.conn).PublishStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		f := newLobbyFrame()
		if i%2 == 1 {
			f.Scope = "kitchen"
		}
		if err := call.Send(&fanfarev1.PublishStreamRequest{Number: uint64(i), Frame: f}); err != nil {
			t.Fatal(err)
		}
	}
	if err := call.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		answer, err := call.Recv()
		if err != nil {
			t.Fatal(err)
		}
		refused := answer.GetError().GetReason() == fanfarev1.ErrorReason_ERROR_REASON_PERMISSION_DENIED
		if refused != (answer.GetNumber()%2 == 1) || !refused && answer.GetPublished().GetPosition().GetSequence() == 0 {
			t.Errorf("answer %d is %v", i, answer)
		}
	}
}

// A PublishStream ends with its token, and what it had taken is answered.
func TestPublishStreamEndsWithItsToken(t *testing.T) {
	g := newGuarded(t)
	v, err := auth.NewVerifier(t.Context(), auth.Config{Keys: []auth.Key{testKey()}, Leeway: -1})
	if err != nil {
		t.Fatal(err)
	}
	g.Server.cfg.Verifier = v
	ctx := with(t.Context(), "Bearer "+signed(t, auth.Grant{Lifetime: 5 * time.Second, Permissions: auth.Permissions{Publish: []auth.Permission{{Channel: "chat", Scope: "lobby"}}}}))
	call, err := fanfarev1.NewFanfareServiceClient(g.conn).PublishStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	sent, answered := uint64(0), uint64(0)
	for {
		if sent == answered && call.Send(&fanfarev1.PublishStreamRequest{Number: sent, Frame: newLobbyFrame()}) == nil {
			sent++
		}
		answer, err := call.Recv()
		if err != nil {
			if reasonOf(err) != "TOKEN_EXPIRED" {
				t.Errorf("it ended with %v", err)
			}
			break
		}
		if answer.GetPublished() == nil {
			t.Fatalf("frame %d: %v", answer.GetNumber(), answer.GetError())
		}
		answered++
	}
	if stored := uint64(len(g.store.submissions())); stored != answered || answered == 0 {
		t.Errorf("%d frames were stored, %d answered", stored, answered)
	}
}
