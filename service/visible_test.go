package service

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/auth"
)

// rooms are streams of one channel, in their order.
func rooms(channel string, n int) []backlog.StreamState {
	states := make([]backlog.StreamState, n)
	for i := range states {
		states[i] = backlog.StreamState{Stream: backlog.StreamName{Channel: channel, Scope: fmt.Sprintf("%07d", i)}, Exists: true}
	}
	return states
}

// listing is a server whose store has streams, and a caller who may subscribe to some.
func listing(t *testing.T, states []backlog.StreamState, allowed ...auth.Permission) func(r *fanfarev1.ListStreamsRequest) (*fanfarev1.ListStreamsResponse, error) {
	t.Helper()
	s := testServer(t, &fakeStore{streams: states})
	s.cfg.Verifier = testVerifier(t)
	token := signed(t, auth.Grant{Lifetime: testLifetime, Permissions: auth.Permissions{Subscribe: allowed}})
	caller, err := s.cfg.Verifier.Verify(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	return func(r *fanfarev1.ListStreamsRequest) (*fanfarev1.ListStreamsResponse, error) {
		return s.ListStreams(auth.NewContext(t.Context(), caller), r)
	}
}

func TestListsShowWhatTheCallerMaySubscribeTo(t *testing.T) {
	states := slices.Concat(rooms("a", 2500), rooms("b", 10), rooms("c", 2500))
	for name, c := range map[string]struct {
		allowed []auth.Permission
		visible func(backlog.StreamName) bool
	}{
		"everything":       {[]auth.Permission{{Channel: "*", Scope: "*"}}, func(backlog.StreamName) bool { return true }},
		"nothing":          {nil, func(backlog.StreamName) bool { return false }},
		"a channel":        {[]auth.Permission{{Channel: "b", Scope: "*"}}, func(s backlog.StreamName) bool { return s.Channel == "b" }},
		"the first":        {[]auth.Permission{{Channel: "a", Scope: "0000000"}}, func(s backlog.StreamName) bool { return s.Channel == "a" && s.Scope == "0000000" }},
		"the last":         {[]auth.Permission{{Channel: "c", Scope: "0002499"}}, func(s backlog.StreamName) bool { return s.Channel == "c" && s.Scope == "0002499" }},
		"one of each":      {[]auth.Permission{{Channel: "*", Scope: "0000007"}}, func(s backlog.StreamName) bool { return s.Scope == "0000007" }},
		"a thousand of it": {[]auth.Permission{{Channel: "c", Scope: "0001*"}}, func(s backlog.StreamName) bool { return s.Channel == "c" && s.Scope[:4] == "0001" }},
	} {
		list := listing(t, states, c.allowed...)
		for _, channel := range []string{"", "c"} {
			var want, got []backlog.StreamName
			for _, state := range states {
				if c.visible(state.Stream) && (channel == "" || channel == state.Stream.Channel) {
					want = append(want, state.Stream)
				}
			}
			r := &fanfarev1.ListStreamsRequest{Channel: channel, PageSize: 300}
			for more := true; more; more = r.PageToken != "" {
				page, err := list(r)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if len(page.GetStreams()) < 300 && page.GetNextPageToken() != "" {
					t.Errorf("%s: a page of %d has a next one", name, len(page.GetStreams()))
				}
				for _, s := range page.GetStreams() {
					got = append(got, backlog.StreamName{Channel: s.GetChannel(), Scope: s.GetScope()})
				}
				r.PageToken = page.GetNextPageToken()
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s of channel %q: %d streams are listed, want %d", name, channel, len(got), len(want))
			}
		}
	}
}

// A caller must not have the whole list read again and again; it is told how to find what
// it may see.
func TestListsDoNotLookThroughTooMuch(t *testing.T) {
	const hidden = maxListReads * backlog.MaxListedStreams
	states := slices.Concat(rooms("a", 3), rooms("b", hidden+backlog.MaxListedStreams), rooms("c", 3))
	list := listing(t, states, auth.Permission{Channel: "a", Scope: "*"}, auth.Permission{Channel: "c", Scope: "*"})
	for _, size := range []uint32{3, 4} { // a full page, and one that is none
		page, err := list(&fanfarev1.ListStreamsRequest{PageSize: size})
		if err != nil || len(page.GetStreams()) != 3 || page.GetNextPageToken() == "" {
			t.Fatalf("the first page of %d is %v, %v", size, page, err)
		}
		_, err = list(&fanfarev1.ListStreamsRequest{PageSize: size, PageToken: page.GetNextPageToken()})
		if err == nil || failureOf(err).code != codes.ResourceExhausted || failureOf(err).reason != fanfarev1.ErrorReason_ERROR_REASON_LIMIT_REACHED {
			t.Errorf("the next page of %d: %v", size, err)
		}
	}
	page, err := list(&fanfarev1.ListStreamsRequest{Channel: "c"})
	if err != nil || len(page.GetStreams()) != 3 {
		t.Errorf("of the channel: %v, %v", page, err)
	}
}

// Symptom: streams that the caller may see were withheld, as too many that it may not see
// followed. Pages end there, and go on, until nothing is found in one.
func TestListsGoOnAfterManyHiddenStreams(t *testing.T) {
	const apart = maxListReads * backlog.MaxListedStreams * 2 / 3
	states := slices.Concat(rooms("a", 1), rooms("b", apart), rooms("b+", 1), rooms("bb", apart), rooms("c", 1))
	list := listing(t, states,
		auth.Permission{Channel: "a", Scope: "*"}, auth.Permission{Channel: "b+", Scope: "*"}, auth.Permission{Channel: "c", Scope: "*"})
	var got []string
	r := &fanfarev1.ListStreamsRequest{PageSize: 10}
	for {
		page, err := list(r)
		if err != nil {
			t.Fatalf("after %q: %v", got, err)
		}
		for _, s := range page.GetStreams() {
			got = append(got, s.GetChannel())
		}
		if r.PageToken = page.GetNextPageToken(); r.PageToken == "" {
			break
		}
	}
	if !slices.Equal(got, []string{"a", "b+", "c"}) {
		t.Errorf("listed were %q", got)
	}
}

// Each list may read very much, so only some do at a time; others wait as long as their
// callers do.
func TestListsWaitForEachOther(t *testing.T) {
	s := testServer(t, &fakeStore{streams: rooms("a", 3)})
	s.cfg.Verifier = testVerifier(t)
	if err := s.looking.Acquire(t.Context(), maxLooking); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	list := func(ctx context.Context, grant auth.Grant) error {
		caller, err := s.cfg.Verifier.Verify(t.Context(), signed(t, grant))
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.ListStreams(auth.NewContext(ctx, caller), &fanfarev1.ListStreamsRequest{})
		return err
	}
	if err := list(ctx, grant("somebody", "a")); err == nil || failureOf(err).code != codes.DeadlineExceeded {
		t.Errorf("while others look: %v", err)
	}
	if err := list(t.Context(), grant("somebody", "*")); err != nil {
		t.Errorf("who may see everything: %v", err)
	}
	s.looking.Release(maxLooking)
	if err := list(t.Context(), grant("somebody", "a")); err != nil {
		t.Errorf("then: %v", err)
	}
}
