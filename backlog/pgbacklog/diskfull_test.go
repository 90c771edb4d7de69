package pgbacklog

import (
	"errors"
	"testing"

	"github.com/fanfare-io/fanfare/backlog"
)

// TestDiskFull: what the server could not store for lack of space is said to be
// just that, by every way of writing; reading goes on, and writing works again
// when there is space. The server's error is raised by triggers.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	stream := backlog.StreamName{Channel: "full"}
	first := mustPublish(t, s.Store, backlog.Publication{Stream: stream})
	execute(t, s.url, `
		create function full_disk() returns trigger language plpgsql as $$
		begin
		  raise exception using errcode = '53100', message = 'could not extend file "base/1/2": No space left on device';
		end $$;
		create trigger full_disk before insert on fanfare.channel_frames execute function full_disk();
		create trigger full_disk before insert or update on fanfare.policies execute function full_disk();
		create trigger full_disk before update on fanfare.streams execute function full_disk()`)
	_, publishErr := backlog.Publish(t.Context(), s, backlog.Publication{Stream: stream})
	_, keyedErr := backlog.Publish(t.Context(), s, backlog.Publication{Stream: stream, IdempotencyKey: "k"})
	_, batchErr := s.PublishBatch(t.Context(), []backlog.Publication{{Stream: stream}, {Stream: stream}})
	_, closeErr := s.CloseStream(t.Context(), stream, nil)
	policyErr := s.SetPolicy(t.Context(), backlog.Policy{Channel: "full", Backlog: uint64Of(1)})
	for what, err := range map[string]error{
		"publish": publishErr, "publish with a key": keyedErr, "batch": batchErr, "close": closeErr, "policy": policyErr,
	} {
		if !errors.Is(err, backlog.ErrDiskFull) || errors.Is(err, backlog.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrDiskFull", what, err)
		}
	}
	page, err := s.ReadPage(t.Context(), 0, backlog.PageRequest{Stream: stream, MaxFrames: 10, MaxBytes: 1000})
	if err != nil || len(page.Frames) != 1 || page.State.Head != first.Position || page.State.Closed {
		t.Errorf("the stream reads as %v, %v, want its one frame", page, err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("ping: %v", err)
	}

	execute(t, s.url, `drop function full_disk() cascade`)
	if o := mustPublish(t, s.Store, backlog.Publication{Stream: stream, IdempotencyKey: "k"}); o.Position.Sequence != 2 || o.Duplicate {
		t.Errorf("the first publish with space again is %v, want sequence 2", o)
	}
	if err := s.SetPolicy(t.Context(), backlog.Policy{Channel: "full", Backlog: uint64Of(1)}); err != nil {
		t.Error(err)
	}
}
