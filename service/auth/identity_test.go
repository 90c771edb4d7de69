package auth

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

// Scenario S133, symptom: a subscriber got frames of a stream that its token did not
// list. Cause: rights were checked by the form of the token, not by what was asked for.
func TestPatterns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		channel, scope string
		allowed        [][2]string
		denied         [][2]string
	}{
		{"chat", "lobby", [][2]string{{"chat", "lobby"}}, [][2]string{{"chat", "lobby2"}, {"chat", "lobb"}, {"chat", ""}, {"chat2", "lobby"}, {"Chat", "lobby"}, {"", "lobby"}}},
		{"chat", "", [][2]string{{"chat", ""}}, [][2]string{{"chat", "lobby"}, {"chat", "*"}}},
		{"chat/*", "lobby", [][2]string{{"chat/", "lobby"}, {"chat/a", "lobby"}, {"chat/a/b", "lobby"}, {"chat/*", "lobby"}}, [][2]string{{"chat", "lobby"}, {"chat/a", "lobby/a"}, {"xchat/a", "lobby"}}},
		{"chat*", "*", [][2]string{{"chat", ""}, {"chatter", "x"}, {"chat/a", "y"}}, [][2]string{{"cha", ""}, {"", ""}}},
		{"*", "*", [][2]string{{"chat", "lobby"}, {"x", ""}, {"*", "*"}}, nil},
		{"*", "tenant-1/*", [][2]string{{"chat", "tenant-1/"}, {"x", "tenant-1/y"}}, [][2]string{{"chat", "tenant-1"}, {"chat", "tenant-10/y"}, {"chat", "x/tenant-1/"}}},
		{"a*b", "*", [][2]string{{"a*b", "x"}}, [][2]string{{"ab", "x"}, {"axb", "x"}, {"a*bc", "x"}}},
		{"a**", "*", [][2]string{{"a*", "x"}, {"a*b", "x"}}, [][2]string{{"a", "x"}, {"ab", "x"}}},
		{"", "", nil, [][2]string{{"chat", ""}, {"chat", "lobby"}}},
		{".*", "[a-z]?", [][2]string{{".", "[a-z]?"}, {".x", "[a-z]?"}}, [][2]string{{"chat", "a"}, {"chat", "[a-z]?"}}},
		{"%", "_", nil, [][2]string{{"chat", "a"}}},
	} {
		list := []Permission{{Channel: "other", Scope: "none"}, {Channel: c.channel, Scope: c.scope}}
		for action, p := range map[Action]Permissions{Subscribe: {Subscribe: list}, Publish: {Publish: list}, Work: {Work: list}} {
			i := &Identity{permissions: p}
			for _, s := range c.allowed {
				if !i.Allows(action, s[0], s[1]) {
					t.Errorf("%v: %q does not allow %q", action, list[1], s)
				}
			}
			for _, s := range c.denied {
				if i.Allows(action, s[0], s[1]) {
					t.Errorf("%v: %q allows %q", action, list[1], s)
				}
			}
			for _, other := range []Action{0, Subscribe, Publish, Work, Admin, Admin + 1} {
				if other != action && (i.Allows(other, "other", "none") || i.AllowsAny(other) || i.AllowsAll(other)) {
					t.Errorf("permission for %v allows %v", action, other)
				}
			}
			if !i.AllowsAny(action) || i.AllowsAll(action) != (c.channel == "*" && c.scope == "*") {
				t.Errorf("%q: any %t, all %t", list[1], i.AllowsAny(action), i.AllowsAll(action))
			}
		}
	}
}

func TestNobodyAndAdminMayDoNothingElse(t *testing.T) {
	t.Parallel()
	for name, i := range map[string]*Identity{"nil": nil, "without permissions": {}, "admin": {permissions: Permissions{Admin: true}}} {
		for _, a := range []Action{0, Subscribe, Publish, Work, Admin, Admin + 1} {
			want := a == Admin && name == "admin"
			if i.Allows(a, "chat", "") != want || i.AllowsAny(a) != want || i.AllowsAll(a) != want {
				t.Errorf("%s: %v is %t, %t, %t", name, a, i.Allows(a, "chat", ""), i.AllowsAny(a), i.AllowsAll(a))
			}
		}
	}
	if got := FromContext(context.Background()); got != nil {
		t.Errorf("a context without an identity has %v", got)
	}
	if i := Trusted(); FromContext(NewContext(context.Background(), i)) != i {
		t.Error("a context has another identity")
	}
}

// The forms of the claim that the documentation shows are what is read.
func TestFormOfTheClaim(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{}`:                                     "{[] [] [] false}",
		`{"subscribe":[]}`:                       "{[] [] [] false}",
		`{"subscribe":[{"channel":"chat"}]}`:     "{[{chat }] [] [] false}",
		`{"subscribe":[{"scope":"lobby"}]}`:      "{[{ lobby}] [] [] false}",
		`{"publish":null,"admin":true}`:          "{[] [] [] true}",
		`{"work":[{"channel":"a","scope":"*"}]}`: "{[] [] [{a *}] false}",
	} {
		var p Permissions
		if err := json.Unmarshal([]byte(text), &p); err != nil || fmt.Sprint(p) != want {
			t.Errorf("%s is %v, %v", text, p, err)
		}
	}
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	expires := time.Unix(1000, 0)
	i := &Identity{Expires: expires, leeway: time.Minute}
	for after, want := range map[time.Duration]bool{0: false, time.Minute - 1: false, time.Minute: true, time.Hour: true} {
		if i.Expired(expires.Add(after)) != want {
			t.Errorf("expired after %s: %t", after, !want)
		}
	}
	if !i.Deadline().Equal(expires.Add(time.Minute)) {
		t.Errorf("the deadline is %s", i.Deadline())
	}
	var nobody *Identity
	if nobody.Expired(expires) || !nobody.Deadline().IsZero() {
		t.Error("nobody expires")
	}
}
