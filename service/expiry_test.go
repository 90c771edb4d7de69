package service

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/auth"
)

const (
	testLifetime = time.Minute
	testLeeway   = 5 * time.Second
)

// testKey is what tests sign tokens with.
func testKey() auth.Key {
	key, err := auth.ParseSecret("", bytes.Repeat([]byte("secret"), 10))
	if err != nil {
		panic(err)
	}
	return key
}

// testVerifier takes the tokens of tests.
func testVerifier(t *testing.T) *auth.Verifier {
	t.Helper()
	v, err := auth.NewVerifier(t.Context(), auth.Config{Keys: []auth.Key{testKey()}, Leeway: testLeeway})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// grant is what a token for a minute says that allows to subscribe to channels, each with
// any scope.
func grant(subject string, channels ...string) auth.Grant {
	g := auth.Grant{Subject: subject, Lifetime: testLifetime}
	for _, c := range channels {
		g.Permissions.Subscribe = append(g.Permissions.Subscribe, auth.Permission{Channel: c, Scope: "*"})
	}
	return g
}

func signed(t *testing.T, g auth.Grant) string {
	t.Helper()
	token, err := auth.Sign(testKey(), g)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// newExpiryWorld is a world with authentication whose calls are somebody's, who may
// subscribe to channels for a minute.
func newExpiryWorld(t *testing.T, channels ...string) *deliveryWorld {
	t.Helper()
	var verifier *auth.Verifier
	w := newDeliveryWorld(t, func(c *Config) {
		verifier = testVerifier(t)
		c.Verifier = verifier
	})
	caller, err := verifier.Verify(t.Context(), signed(t, grant("somebody", channels...)))
	if err != nil {
		t.Fatal(err)
	}
	w.caller = caller
	return w
}

// hasExpired checks that a call ended because its token had.
func hasExpired(t *testing.T, err error) {
	t.Helper()
	f := failureOf(err)
	if f.code != codes.Unauthenticated || f.reason != fanfarev1.ErrorReason_ERROR_REASON_TOKEN_EXPIRED || f.retryIn != 0 {
		t.Errorf("it ended with %+v", f)
	}
}

var chatLobby = backlog.StreamName{Channel: "chat", Scope: "lobby"}

// Scenario S130, symptom: a stream went on without end that had begun seconds before its
// token expired. Cause: tokens were checked when a call began, and never again.
func TestSubscriptionEndsWithItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newExpiryWorld(t, "chat")
		begun := time.Now()
		call := w.subscribe(chatLobby, newConnection(noConn{}))
		w.publishEach(chatLobby, 3)
		call.takeAll()
		elapse(testLifetime + testLeeway - time.Nanosecond)
		w.publish(chatLobby, 1)
		call.takeAll()
		call.goesOn()
		elapse(time.Nanosecond)
		hasExpired(t, call.end())
		if took := time.Since(begun); took != testLifetime+testLeeway {
			t.Errorf("it ended after %s", took)
		}
		w.publish(chatLobby, 1)
		call.takeAll()
		call.isWhole(4)
		call.saysGoodBye(4, 0)
	})
}

// What a client has not taken when its token expires is not sent afterwards, and nobody
// waits for it.
func TestNoFrameFollowsTheEndOfAToken(t *testing.T) {
	for _, large := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newExpiryWorld(t, "chat")
			if large {
				w.store.size = 100 << 10
			}
			call := w.subscribe(chatLobby, newConnection(noConn{}))
			elapse(testLifetime) // below the time in which it must take something
			w.publishEach(chatLobby, 20)
			if n := call.inFlight(); n < 1 || n > maxInFlight {
				t.Fatalf("%d messages are in flight", n)
			}
			sent := call.stream.count.Load()
			begun := time.Now()
			hasExpired(t, call.end())
			if took := time.Since(begun); took != testLeeway {
				t.Errorf("it ended after %s", took)
			}
			call.takeAll()
			if n := call.stream.count.Load(); n != sent {
				t.Errorf("%d messages followed", n-sent)
			}
		})
	}
}

func TestCallThatHasNotBegunEndsWithItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newExpiryWorld(t, "chat")
		w.store.held = make(chan struct{})
		call := w.subscribe(chatLobby, newConnection(noConn{}))
		elapse(testLifetime + testLeeway)
		hasExpired(t, call.end())
		close(w.store.held)
		call.takeAll()
		if len(call.responses) != 0 {
			t.Errorf("it was sent %v", call.responses)
		}
	})
}

func TestSessionEndsWithItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newExpiryWorld(t, "chat")
		s := w.session(newConnection(noConn{}))
		s.subscribe(1, chatLobby)
		w.publishEach(chatLobby, 3)
		s.takeAll()
		s.isWhole(1, 3)
		elapse(testLifetime + testLeeway - time.Nanosecond)
		w.publish(chatLobby, 1)
		s.takeAll()
		s.goesOn()
		elapse(time.Nanosecond)
		hasExpired(t, s.end())
		w.publish(chatLobby, 1)
		s.takeAll()
		s.isWhole(1, 4)
		if last := s.took[len(s.took)-1]; last.GetClosing() == nil {
			t.Errorf("the last message is %v", shortened(last))
		}
	})
}

// authenticate has the client show another token.
func (s *fakeSession) authenticate(token string) {
	s.requests <- &fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Authenticate{Authenticate: &fanfarev1.SessionAuthenticate{Token: token}}}
}

func TestSessionGoesOnWithAnotherToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newExpiryWorld(t, "chat")
		begun := time.Now()
		s := w.session(newConnection(noConn{}))
		s.subscribe(1, chatLobby)
		s.takeAll()
		for range 10 {
			elapse(testLifetime / 2)
			s.authenticate(signed(t, grant("somebody", "chat")))
			responses := s.takeAll()
			i := slices.IndexFunc(responses, func(r *fanfarev1.SessionResponse) bool { return r.GetAuthenticated() != nil })
			if i < 0 {
				t.Fatalf("it was sent %v", responses)
			}
			if expires := responses[i].GetAuthenticated().GetExpires().AsTime(); !expires.Equal(time.Now().Add(testLifetime)) {
				t.Errorf("the token expires at %s", expires)
			}
		}
		w.publishEach(chatLobby, 2)
		s.takeAll()
		s.isWhole(1, 2)
		hasExpired(t, s.end())
		if took, want := time.Since(begun), 10*testLifetime/2+testLifetime+testLeeway; took != want {
			t.Errorf("it ended after %s, want %s", took, want)
		}
	})
}

// Subscriptions that the new token does not allow end, before any frame that follows it;
// the others go on.
func TestAnotherTokenEndsWhatItDoesNotAllow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newExpiryWorld(t, "a", "b", "c")
		s := w.session(newConnection(noConn{}))
		var streams []backlog.StreamName
		for _, channel := range []string{"a", "b", "c"} {
			streams = append(streams, backlog.StreamName{Channel: channel})
		}
		for i := range 30 {
			s.subscribe(uint32(i+1), streams[i%3])
		}
		s.takeAll()
		// What was taken from the hub, and waits for the client, does not count as sent.
		for range 20 {
			for _, stream := range streams {
				w.publish(stream, 1)
			}
			synctest.Wait()
		}
		s.authenticate(signed(t, grant("somebody", "b", "d")))
		synctest.Wait()
		responses := s.takeAll()
		at := slices.IndexFunc(responses, func(r *fanfarev1.SessionResponse) bool { return r.GetAuthenticated() != nil })
		if at < 0 || at > maxInFlight {
			t.Fatalf("Authenticated is response %d", at)
		}
		ended := map[uint32]bool{}
		for _, r := range responses[at:] {
			for _, number := range r.GetNumbers() {
				if number%3 != 2 && r.GetEnded() == nil {
					t.Errorf("%d was sent %s", number, shortened(r))
				}
				if e := r.GetEnded().GetError(); e != nil {
					ended[number] = true
					if e.GetReason() != fanfarev1.ErrorReason_ERROR_REASON_PERMISSION_DENIED || number%3 == 2 {
						t.Errorf("%d ended with %v", number, e)
					}
				}
			}
		}
		if len(ended) != 20 {
			t.Errorf("%d subscriptions ended", len(ended))
		}
		for number := uint32(2); number <= 30; number += 3 {
			s.isWhole(number, 20)
		}
		if n := w.server.calls.Load(); n != 11 {
			t.Errorf("%d calls and subscriptions are counted", n)
		}
		s.subscribe(1, streams[0])
		s.subscribe(31, backlog.StreamName{Channel: "d"})
		s.takeAll()
		if s.subs[1] != nil || s.subs[31] == nil {
			t.Error("what the new token allows is not what may begin")
		}
	})
}

// What has not begun, because the store is slow, and what rests, because its client gave no
// credit, ends as well, and nothing comes of it afterwards.
func TestAnotherTokenEndsWhatHasNotBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newExpiryWorld(t, "a", "b")
		s := w.session(newConnection(noConn{}))
		resting, kept := backlog.StreamName{Channel: "a", Scope: "resting"}, backlog.StreamName{Channel: "b"}
		s.subscribeWith(1, resting, new(uint64))
		s.takeAll()
		w.publishEach(resting, 3)
		w.store.held = make(chan struct{})
		s.subscribe(2, backlog.StreamName{Channel: "a", Scope: "slow"})
		s.subscribe(3, kept)
		synctest.Wait()
		s.authenticate(signed(t, grant("somebody", "b")))
		for _, r := range s.takeAll() {
			if e := r.GetEnded().GetError(); e != nil && e.GetReason() != fanfarev1.ErrorReason_ERROR_REASON_PERMISSION_DENIED {
				t.Errorf("%v ended with %v", r.GetNumbers(), e)
			}
		}
		if s.subs[1] != nil || s.subs[2] != nil || s.subs[3] == nil {
			t.Fatalf("left are %v", s.subs)
		}
		s.give(1, 1<<20)
		close(w.store.held)
		w.publishEach(kept, 2)
		s.takeAll() // which fails for what comes for 1 or 2
		s.isWhole(3, 2)
	})
}

// Whoever shows a token that is not valid, or of somebody else, must not go on with the
// rights of the last one.
func TestRefusedTokenEndsTheSession(t *testing.T) {
	for name, token := range map[string]func(t *testing.T) string{
		"garbage":            func(*testing.T) string { return "token" },
		"empty":              func(*testing.T) string { return "" },
		"another's":          func(t *testing.T) string { return signed(t, grant("another", "chat")) },
		"nobody's":           func(t *testing.T) string { return signed(t, grant("", "chat")) },
		"with word Bearer":   func(t *testing.T) string { return "Bearer " + signed(t, grant("somebody", "chat")) },
		"larger than tokens": func(*testing.T) string { return string(make([]byte, 1<<20)) },
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newExpiryWorld(t, "chat")
			s := w.session(newConnection(noConn{}))
			s.subscribe(1, chatLobby)
			s.takeAll()
			s.authenticate(token(t))
			f := failureOf(s.end())
			if f.code != codes.Unauthenticated || f.reason != fanfarev1.ErrorReason_ERROR_REASON_UNAUTHENTICATED {
				t.Errorf("%s: it ended with %+v", name, f)
			}
			w.publish(chatLobby, 1)
			s.takeAll()
			if s.subs[1].count != 0 {
				t.Errorf("%s: a frame came", name)
			}
		})
	}
}

func TestExpiredTokenEndsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newExpiryWorld(t, "chat")
		s := w.session(newConnection(noConn{}))
		short := grant("somebody", "chat")
		short.Lifetime = time.Second
		token := signed(t, short)
		elapse(time.Second + testLeeway)
		s.authenticate(token)
		hasExpired(t, s.end())
	})
}

// A server without authentication takes any token, which never expires: a client need not
// know which servers have it.
func TestSessionWithoutAuthenticationTakesAnyToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		s := w.session(newConnection(noConn{}))
		s.authenticate("token")
		responses := s.takeAll()
		if len(responses) != 1 || responses[0].GetAuthenticated() == nil || responses[0].GetAuthenticated().GetExpires() != nil {
			t.Errorf("it was sent %v", responses)
		}
	})
}

// Answers to tokens wait for the client as others do, and are bounded as others are.
func TestTokensThatAreNotAnsweredAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newExpiryWorld(t, "chat")
		s := w.session(newConnection(noConn{}))
		token := signed(t, grant("somebody", "chat"))
		const tokens = 3 * maxAnswers
		for range tokens {
			s.authenticate(token)
		}
		synctest.Wait()
		if left := len(s.requests); left < tokens-maxAnswers-2*maxInFlight {
			t.Errorf("%d requests of %d are left", left, tokens)
		}
		if n := len(s.takeAll()); n != tokens {
			t.Errorf("%d tokens were answered", n)
		}
	})
}

// A token that never expires, and no authentication, leave calls alone.
func TestCallsWithoutAnEndGoOn(t *testing.T) {
	for _, authentication := range []bool{false, true} {
		t.Run(fmt.Sprint(authentication), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newDeliveryWorld(t, func(c *Config) {
					if authentication {
						c.Verifier = testVerifier(t)
					}
				})
				w.caller = auth.Trusted()
				call := w.subscribe(chatLobby, newConnection(noConn{}))
				call.stream.takeEverything()
				elapse(24 * time.Hour)
				call.goesOn()
			})
		})
	}
}
