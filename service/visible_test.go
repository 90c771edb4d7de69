package service

import (
	"fmt"
	"slices"
	"testing"

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
	const hidden = maxHiddenReads * backlog.MaxListedStreams
	states := slices.Concat(rooms("a", 3), rooms("b", hidden+backlog.MaxListedStreams), rooms("c", 3))
	list := listing(t, states, auth.Permission{Channel: "a", Scope: "*"}, auth.Permission{Channel: "c", Scope: "*"})
	page, err := list(&fanfarev1.ListStreamsRequest{PageSize: 3})
	if err != nil || len(page.GetStreams()) != 3 || page.GetNextPageToken() == "" {
		t.Fatalf("the first page is %v, %v", page, err)
	}
	_, err = list(&fanfarev1.ListStreamsRequest{PageSize: 3, PageToken: page.GetNextPageToken()})
	if err == nil || failureOf(err).code != codes.ResourceExhausted || failureOf(err).reason != fanfarev1.ErrorReason_ERROR_REASON_LIMIT_REACHED {
		t.Errorf("the next page: %v", err)
	}
	page, err = list(&fanfarev1.ListStreamsRequest{Channel: "c"})
	if err != nil || len(page.GetStreams()) != 3 {
		t.Errorf("of the channel: %v, %v", page, err)
	}
}
