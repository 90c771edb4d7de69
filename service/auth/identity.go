package auth

import (
	"context"
	"strings"
	"time"
)

// Action is something that a permission allows. There is none with the value 0.
type Action uint8

const (
	// Subscribe is to see a stream: its frames, its state, and that it exists.
	Subscribe Action = iota + 1
	// Publish is to publish frames to a stream, and tasks to a group.
	Publish
	// Work is to take tasks.
	Work
	// Admin is to close streams, to see and set policies, and reflection.
	Admin
)

// Permission is a pair of patterns, for the channel and the scope of streams. A pattern
// is an exact name, or a prefix and "*" behind it. The empty one is the empty name, so a
// scope that is left out is the empty scope.
type Permission struct {
	Channel string `json:"channel"`
	Scope   string `json:"scope,omitempty"`
}

// Permissions are what a token allows: the claim fanfare.
type Permissions struct {
	Subscribe []Permission `json:"subscribe,omitempty"`
	Publish   []Permission `json:"publish,omitempty"`
	Work      []Permission `json:"work,omitempty"`
	Admin     bool         `json:"admin,omitempty"`
}

// everything allows everything.
func everything() Permissions {
	all := []Permission{{Channel: "*", Scope: "*"}}
	return Permissions{Subscribe: all, Publish: all, Work: all, Admin: true}
}

// Identity is a caller, and what it may do. It does not change. A nil one may do
// nothing.
type Identity struct {
	// Subject is the claim sub; empty if there is none.
	Subject string
	// Expires is the claim exp; zero: never.
	Expires time.Time

	leeway      time.Duration
	permissions Permissions
}

// Trusted is who may do everything, for ever: a caller that needs no token.
func Trusted() *Identity { return &Identity{permissions: everything()} }

// Deadline is when what the identity began must end, which is Expires and the leeway of
// the verifier; zero: never, also for a nil identity.
func (i *Identity) Deadline() time.Time {
	if i == nil || i.Expires.IsZero() {
		return time.Time{}
	}
	return i.Expires.Add(i.leeway)
}

// Expired reports whether the deadline has come. A nil identity has none.
func (i *Identity) Expired(now time.Time) bool {
	deadline := i.Deadline()
	return !deadline.IsZero() && !now.Before(deadline)
}

// Allows reports whether the identity may do a to the stream of a channel and a scope.
// They do not matter for Admin. It does not look at the deadline.
func (i *Identity) Allows(a Action, channel, scope string) bool {
	if a == Admin {
		return i != nil && i.permissions.Admin
	}
	for _, p := range i.list(a) {
		if matches(p.Channel, channel) && matches(p.Scope, scope) {
			return true
		}
	}
	return false
}

// AllowsAny reports whether there is a stream to which the identity may do a.
func (i *Identity) AllowsAny(a Action) bool {
	if a == Admin {
		return i.Allows(a, "", "")
	}
	return len(i.list(a)) > 0
}

// AllowsAll reports whether the identity may do a to every stream there can be.
func (i *Identity) AllowsAll(a Action) bool {
	if a == Admin {
		return i.Allows(a, "", "")
	}
	for _, p := range i.list(a) {
		if p.Channel == "*" && p.Scope == "*" {
			return true
		}
	}
	return false
}

// list are the permissions to do a; none for an action that there is not.
func (i *Identity) list(a Action) []Permission {
	if i == nil {
		return nil
	}
	switch a {
	case Subscribe:
		return i.permissions.Subscribe
	case Publish:
		return i.permissions.Publish
	case Work:
		return i.permissions.Work
	default:
		return nil
	}
}

func matches(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

type contextKey struct{}

// NewContext returns a context that holds an identity.
func NewContext(ctx context.Context, i *Identity) context.Context {
	return context.WithValue(ctx, contextKey{}, i)
}

// FromContext returns the identity that a context holds; nil if it holds none.
func FromContext(ctx context.Context) *Identity {
	i, _ := ctx.Value(contextKey{}).(*Identity)
	return i
}
