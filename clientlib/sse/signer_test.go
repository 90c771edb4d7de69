package sse_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/sse"
)

var key1, key2 = bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)

func newSigner(t testing.TB, keys ...[]byte) *sse.Signer {
	t.Helper()
	s, err := sse.NewSigner(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// sign signs a target of an edge for a minute.
func sign(t testing.TB, s *sse.Signer, target string) string {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := s.Sign(u, time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	return signed.String()
}

func TestASignedURLIsGoodForItsStreamsAlone(t *testing.T) {
	s := newSigner(t, key1)
	e := start(t, func(c *sse.Config, _ *http.Server) { c.Authorize = s.Verify })
	two := sign(t, s, "/v1/streams?stream=orders/1&stream=orders/2")
	for _, c := range []struct {
		name, target string
		want         int
	}{
		{"as it was signed", sign(t, s, one), 200},
		{"with another start, format and heartbeat", sign(t, s, one) + "&from=live&format=json&heartbeat=event", 200},
		{"named by the query", strings.Replace(sign(t, s, one), one+"?", "/v1/streams?channel=orders&scope=1&", 1), 200},
		{"two in the other order", strings.Replace(two, "stream=orders%2F1&stream=orders%2F2", "stream=orders%2F2&stream=orders%2F1", 1), 200},
		{"behind a prefix that is stripped", strings.TrimPrefix(sign(t, s, "/api"+one), "/api"), 200},
		{"for another stream", strings.Replace(sign(t, s, one), "orders/1", "orders/2", 1), 401},
		{"for one more stream", two + "&stream=orders/3", 401},
		{"for one stream of two", strings.Replace(two, "&stream=orders%2F2", "", 1), 401},
		{"good for longer", strings.Replace(sign(t, s, one), "expires=1", "expires=2", 1), 401},
		{"with another key", sign(t, newSigner(t, key2), one), 401},
		{"without a signature", one, 401},
		{"with a signature that is none", one + "?expires=1&signature=%21", 401},
		{"with an end that is none", one + "?expires=x&signature=AAAA", 401},
		// Of two the first was taken, and who looks at URLs before the handler may take the last.
		{"with a second end", sign(t, s, one) + "&expires=1", 401},
		{"with a second signature", sign(t, s, one) + "&signature=AAAA", 401},
		// The last character stands for four bits alone, and the others of it were ignored.
		{"with other letters for its signature", lastBit(sign(t, s, one)), 401},
		{"with a line break in its signature", strings.Replace(sign(t, s, one), "signature=", "signature=%0A", 1), 401},
	} {
		response, cancel := e.request(http.MethodGet, c.target)
		cancel()
		if response.StatusCode != c.want {
			t.Errorf("%s: %s, want %d", c.name, response.Status, c.want)
		}
	}
	// Names that are the same bytes when they are written one after the other.
	split := strings.NewReplacer("channel=ab", "channel=a", "scope=c", "scope=bc").Replace(sign(t, s, "/v1/streams?channel=ab&scope=c"))
	if got := e.status(split); got != 401 || !strings.Contains(split, "scope=bc") {
		t.Errorf("%s, another split of the names, was answered %d", split, got)
	}
}

// lastBit changes the bit that base64 does not use, of the signature at the end of a URL.
func lastBit(signed string) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := len(signed) - 1
	return signed[:last] + string(letters[strings.IndexByte(letters, signed[last])^1])
}

func TestKeysOfASignerCanBeChanged(t *testing.T) {
	before, between, after := newSigner(t, key1), newSigner(t, key2, key1), newSigner(t, key2)
	for _, c := range []struct {
		signs, verifies *sse.Signer
		good            bool
	}{{before, between, true}, {between, between, true}, {between, after, true}, {before, after, false}, {between, before, false}} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, sign(t, c.signs, one), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.verifies.Verify(r, []clientlib.Stream{stream("1")}); (err == nil) != c.good {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestASignerRefusesWhatIsUnsafe(t *testing.T) {
	for _, keys := range [][][]byte{nil, {key1, key1[:31]}, {{}}} {
		if _, err := sse.NewSigner(keys...); err == nil {
			t.Errorf("%d keys were taken", len(keys))
		}
	}
	s := newSigner(t, key1)
	for target, in := range map[string]time.Duration{one: time.Hour + time.Minute, one + "?": -time.Second, "/other": time.Minute, "/v1/streams": time.Minute, "/v1/streams?stream=%zz": time.Minute} {
		u, err := url.Parse(target)
		if err != nil {
			t.Fatal(err)
		}
		if signed, err := s.Sign(u, time.Now().Add(in)); err == nil {
			t.Errorf("%s for %s was signed: %s", target, in, signed)
		}
	}
}

// Symptom: of a URL whose prefix has the route, too, other streams were signed than the
// handler behind the prefix reads, or none; and of one that only begins like the route, some.
func TestTheRouteIsFoundBehindAnyPrefix(t *testing.T) {
	s := newSigner(t, key1)
	e := start(t, func(c *sse.Config, _ *http.Server) { c.Authorize = s.Verify })
	for prefix, target := range map[string]string{
		"/v1/streams": one, "/v1/streams/api": one, "/v1/streamsfoo": one, "/a/v1/streams/b/c": "/v1/streams?channel=v1&scope=streams", "": "/v1/streams/v1/streams",
	} {
		response, cancel := e.request(http.MethodHead, strings.TrimPrefix(sign(t, s, prefix+target), prefix))
		cancel()
		if response.StatusCode != 200 {
			t.Errorf("%s behind %q: %s", target, prefix, response.Status)
		}
	}
	for _, target := range []string{"/v1/streamsfoo?channel=a", "/v1/streams2/orders/1", "/v1/streams/orders/1/v1/streamsfoo"} {
		u, err := url.Parse(target)
		if err != nil {
			t.Fatal(err)
		}
		if signed, err := s.Sign(u, time.Now().Add(time.Minute)); err == nil {
			t.Errorf("%s was signed: %s", target, signed)
		}
	}
}

// A handler may serve more or fewer streams at once than 50: what it refuses is not signed,
// and what it serves is.
func TestASignerHasTheHandlersLimitOfStreams(t *testing.T) {
	target := "/v1/streams?stream=orders/0"
	for i := range 60 {
		target += fmt.Sprintf("&stream=orders/%d", i+1)
	}
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	for limit, good := range map[int]bool{0: false, 60: false, 61: true} {
		s := newSigner(t, key1)
		s.MaxStreams = limit
		if _, err := s.Sign(u, time.Now().Add(time.Minute)); (err == nil) != good || !good && !strings.Contains(err.Error(), "stream is there 61 times") {
			t.Errorf("61 streams with the limit %d: %v", limit, err)
		}
	}
}
