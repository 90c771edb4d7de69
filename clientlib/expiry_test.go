package clientlib_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/service/auth"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// issuer signs tokens for a server of a test, which takes them until they expire and not
// a moment longer.
type issuer struct {
	key      auth.Key
	lifetime time.Duration

	mu     sync.Mutex // guards what follows
	last   string
	signed int
}

func newIssuer(t *testing.T, lifetime time.Duration) *issuer {
	t.Helper()
	key, err := auth.ParseSecret("", []byte(strings.Repeat("secret", 10)))
	if err != nil {
		t.Fatal(err)
	}
	return &issuer{key: key, lifetime: lifetime}
}

// verifier takes the tokens of the issuer.
func (i *issuer) verifier(t *testing.T) *auth.Verifier {
	t.Helper()
	v, err := auth.NewVerifier(t.Context(), auth.Config{Keys: []auth.Key{i.key}, Leeway: -1})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// start starts a server.
func (i *issuer) start(t *testing.T) *servicetest.Replica {
	t.Helper()
	return servicetest.Start(t, "sqlite::memory:", func(c *servicetest.Config) { c.Service.Verifier = i.verifier(t) })
}

// sign makes a token that allows everything in orders for a time.
func (i *issuer) sign(lifetime time.Duration) (string, error) {
	orders := []auth.Permission{{Channel: "orders", Scope: "*"}}
	return auth.Sign(i.key, auth.Grant{
		Subject: "till", Lifetime: lifetime, Permissions: auth.Permissions{Subscribe: orders, Publish: orders},
	})
}

// token is a clientlib.TokenSource.
func (i *issuer) token(_ context.Context, refresh bool) (string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !refresh && i.last != "" {
		return i.last, nil
	}
	token, err := i.sign(i.lifetime)
	i.last = token
	i.signed++
	return token, err
}

func (i *issuer) count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.signed
}

// long is a source of tokens that outlive the test.
func (i *issuer) long(context.Context, bool) (string, error) { return i.sign(time.Hour) }

// publishTo publishes payloads from one number to another with a token that lasts.
func (i *issuer) publishTo(t *testing.T, r *servicetest.Replica, s clientlib.Stream, first, last int) {
	t.Helper()
	client := newClient(t, []string{r.Addr}, clientlib.WithTokenSource(i.long))
	for n := first; n <= last; n++ {
		publish(t, client, frame(s, fmt.Sprint(n)))
	}
}

// Scenario S61, symptom: a subscription that was ended because its token had expired began
// anew from the start with the next one. Cause: the error made another subscription.
func TestSubscriptionGoesOnWithAFreshTokenWhereItWas(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, 2*time.Second)
	r := i.start(t)
	s := stream("expiry")
	i.publishTo(t, r, s, 1, 100)
	client := newClient(t, []string{r.Addr}, clientlib.WithTokenSource(i.token))
	sub := read(t, client.Subscribe(t.Context(), s, clientlib.Oldest()))
	sub.frames(100)
	before := i.count()
	var expired *clientlib.Error
	if err := until[*clientlib.Interrupted](sub).Err; !errors.As(err, &expired) || expired.Reason != "TOKEN_EXPIRED" {
		t.Fatalf("interrupted by %v", err)
	}
	i.publishTo(t, r, s, 101, 105)
	if got := sub.frames(5); !slices.Equal(got, []string{"101", "102", "103", "104", "105"}) {
		t.Errorf("with the next token came %q", got)
	}
	if fetched := i.count() - before; fetched != 1 {
		t.Errorf("%d tokens were fetched", fetched)
	}
}

func TestPublisherGoesOnWithAFreshToken(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, 2*time.Second)
	r := i.start(t)
	s := stream("publisher")
	client := newClient(t, []string{r.Addr}, clientlib.WithTokenSource(i.token), clientlib.WithoutIdempotencyKeys())
	p := client.NewPublisher(t.Context())
	deadline := time.Now().Add(time.Minute)
	for last := 1; i.count() < 3; last++ {
		if time.Now().After(deadline) {
			t.Fatalf("%d tokens in a minute: none expired", i.count())
		}
		pending, err := p.Publish(t.Context(), frame(s, fmt.Sprint(last)))
		if err != nil {
			t.Fatal(err)
		}
		if published, err := pending.Wait(t.Context()); err != nil || published.Position.Sequence != uint64(last) {
			t.Fatalf("frame %d: %v, %v", last, published, err)
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// Scenario S130 for sessions, symptom: all subscriptions of a session were interrupted
// each time a token expired.
func TestSessionOutlivesItsTokens(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, 2*time.Second)
	r := i.start(t)
	client := newClient(t, []string{r.Addr}, clientlib.WithTokenSource(i.token), clientlib.WithSession())
	var subs []*reader
	for n := range 10 {
		sub := read(t, client.Subscribe(t.Context(), stream(fmt.Sprint(n)), clientlib.Oldest()))
		until[*clientlib.CaughtUp](sub)
		subs = append(subs, sub)
	}
	eventually(t, "five tokens were used", func() bool { return i.count() >= 5 })
	for n, sub := range subs {
		i.publishTo(t, r, stream(fmt.Sprint(n)), 1, 1)
		sub.frames(1)
		if slices.Contains(sub.seen, "interrupted") {
			t.Errorf("subscription %d saw %q", n, sub.seen)
		}
	}
}

// A source that has one token only must not be asked for another again and again, and the
// session ends with it.
func TestSessionEndsWithTheOnlyToken(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, 0)
	r := i.start(t)
	only, err := i.sign(3 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	asked := 0
	source := func(context.Context, bool) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		asked++
		return only, nil
	}
	client := newClient(t, []string{r.Addr}, clientlib.WithTokenSource(source), clientlib.WithSession())
	sub := read(t, client.Subscribe(t.Context(), stream("only"), clientlib.Oldest()))
	var refused *clientlib.Error
	if err := sub.ends(); err == io.EOF || !errors.As(err, &refused) || refused.Reason != "TOKEN_EXPIRED" {
		t.Errorf("ended with %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if asked > 5 { // at the beginning twice, before it expires, and once it has
		t.Errorf("the source was asked %d times", asked)
	}
}
