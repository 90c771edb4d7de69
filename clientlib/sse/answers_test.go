package sse_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/sse"
)

func TestBadRequestsAreRefusedWithTheFieldAndTheLimit(t *testing.T) {
	e := start(t, func(c *sse.Config, _ *http.Server) { c.MaxStreams = 2 })
	long := strings.Repeat("x", 256)
	for _, c := range []struct {
		target, lastEventID, field, says string
	}{
		{"/v1/streams", "", "channel", "channel is empty"},
		{"/v1/streams?channel=" + long, "", "channel", "256 bytes, the limit is 255"},
		{"/v1/streams?channel=a&scope=" + long, "", "scope", "256 bytes, the limit is 255"},
		{"/v1/streams?channel=a%0Ab", "", "channel", "control character U+000A"},
		{"/v1/streams?channel=a%C2%85b", "", "channel", "control character U+0085"},
		{"/v1/streams?channel=%FF", "", "channel", "UTF-8"},
		{"/v1/streams?channel=a&channel=b", "", "channel", "channel and scope must be there once"},
		{"/v1/streams/orders", "", "path", "CHANNEL/SCOPE"},
		{"/v1/streams/a/b/c", "", "path", "one slash"},
		{"/v1/streams/a/b?channel=x", "", "stream", "path"},
		{"/v1/streams?stream=a/1&stream=a/2&stream=a/3", "", "stream", "3 times, the limit is 2"},
		{"/v1/streams?stream=a/1&stream=a/1", "", "stream", "twice"},
		{"/v1/streams?stream=a", "", "stream", "CHANNEL/SCOPE"},
		{"/v1/streams?stream=a/1&channel=b", "", "stream", "stream excludes channel and scope"},
		{"/v1/streams?channel=%zz", "", "query", "percent-encoded"},
		{one + "?after=1", "", "after", "EPOCH-SEQUENCE"},
		{one + "?after=1-01", "", "after", "leading zeros"},
		{one + "?after=1--1", "", "after", "EPOCH-SEQUENCE"},
		{one + "?after=1-9223372036854775808", "", "after", "below 2^63"},
		{one + "?after=1-1,1-2", "", "after", "2 positions, and there are 1 streams"},
		{one + "?after=1-1&last=5", "", "after", "after, last and from exclude each other"},
		// Symptom: this subscribed to the empty scope, and nobody was told.
		{"/v1/streams?channel=orders&scop=1", "", "scop", "parameter \"scop\", which is none of channel, scope, stream"},
		{one + "?token=secret&from=live", "", "token", "parameter \"token\""},
		{one + "?last=-1", "", "last", "decimal number"},
		{one + "?last=1.5", "", "last", "decimal number"},
		{one + "?from=newest", "", "from", "oldest or live"},
		{one + "?format=xml", "", "format", "json"},
		{one + "?heartbeat=15", "", "heartbeat", "comment or event"},
		{one + "?from=live&from=live", "", "from", "2 times"},
		{one, "1", "Last-Event-ID", "EPOCH-SEQUENCE"},
		{one, "1-1,2-2", "Last-Event-ID", "2 positions"},
		{"/v1/streams?stream=a/1&stream=a/2", "1-1", "Last-Event-ID", "1 positions, and there are 2 streams"},
		{"/v1/streams?stream=a/1&stream=a/2&format=plain", "", "format", "plain"},
	} {
		var headers []string
		if c.lastEventID != "" {
			headers = []string{"Last-Event-ID", c.lastEventID}
		}
		response, cancel := e.request(http.MethodGet, c.target, headers...)
		var body struct{ Code, Reason, Field, Message string }
		err := json.NewDecoder(response.Body).Decode(&body)
		cancel()
		if err != nil || response.StatusCode != http.StatusBadRequest || body.Code != "invalid_argument" || body.Reason != "INVALID_FIELD" || body.Field != c.field || !strings.Contains(body.Message, c.says) {
			t.Errorf("%.80s, id %q: %s, %+v, %v; want 400, field %s, %q", c.target, c.lastEventID, response.Status, body, err, c.field, c.says)
		}
	}
	if got := e.Stats(); got.Refused == 0 || got.Refused != got.Requests || got.Connections != 0 {
		t.Errorf("the statistics are %+v", got)
	}
}

// A position that the server cannot have given is no error: the page is told a gap and goes
// on, as every other subscriber.
func TestAPositionAheadOfTheHeadIsAGap(t *testing.T) {
	e := start(t, nil)
	head := e.publish("1", "a", "b")
	for _, at := range []clientlib.Position{{Epoch: head.Epoch, Sequence: head.Sequence + 1000}, {Epoch: head.Epoch ^ 1, Sequence: 1}, {Epoch: 1<<63 - 1, Sequence: 1<<63 - 1}} {
		b := e.open(one, "Last-Event-ID", at.String())
		gap := b.until("fanfare.gap")
		b.until("caught_up")
		if !strings.Contains(gap.data, `"reason":"AHEAD"`) && !strings.Contains(gap.data, `"reason":"EPOCH_CHANGED"`) {
			t.Errorf("after %s: %s", at, gap)
		}
		e.publish("1", "next")
		b.until("next")
		b.leave()
	}
}

func TestHeadersKeepProxiesAndBrowsersFromSpoilingTheStream(t *testing.T) {
	e := start(t, nil)
	b := e.open(one, "Accept-Encoding", "gzip, br")
	for name, want := range map[string]string{
		"Content-Type": "text/event-stream", "Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no",
		"Content-Encoding": "", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff", "Content-Length": "",
	} {
		if got := b.response.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	b.until("caught_up")
	if b.parser.retry < 2*time.Second || b.parser.retry > 6*time.Second {
		t.Errorf("retry is %s", b.parser.retry)
	}
	if b.id() != "0-0" {
		t.Errorf("the id of a stream that does not exist is %q", b.id())
	}
}

func TestMethods(t *testing.T) {
	e := start(t, nil)
	for _, c := range []struct {
		method, target string
		want           int
	}{
		{http.MethodHead, one, 200}, {http.MethodHead, one + "?after=x", 400}, {http.MethodOptions, one, 204},
		{http.MethodPost, one, 405}, {http.MethodDelete, one, 405}, {http.MethodGet, "/v1/streams2", 404}, {http.MethodGet, "/", 404},
	} {
		response, cancel := e.request(c.method, c.target)
		body, err := io.ReadAll(response.Body)
		if response.StatusCode != c.want || c.method == http.MethodHead && len(body) > 0 || err != nil {
			t.Errorf("%s %s: %s, %q, %v", c.method, c.target, response.Status, body, err)
		}
		if body := string(body); c.want >= 404 && !strings.HasPrefix(body, `{"code":"unimplemented","message":"the`) {
			t.Errorf("%s %s: the body is %s", c.method, c.target, body)
		}
		if allow := response.Header.Get("Allow"); c.want == 405 && allow != "GET, HEAD, OPTIONS" {
			t.Errorf("%s: Allow is %q", c.method, allow)
		}
		cancel()
	}
	if n := e.Stats().Streams; n != 0 {
		t.Errorf("%d streams are subscribed to for requests that want none", n)
	}
}

// nginx speaks HTTP/1.0 to its upstreams by default.
func TestHTTP10GetsAPlainStreamUntilTheEnd(t *testing.T) {
	e := start(t, nil)
	last := e.publish("1", "a")
	socket, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close() //nolint:errcheck // of a test
	_ = socket.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintf(socket, "GET %s HTTP/1.0\r\n\r\n", one); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(socket)
	response, err := http.ReadResponse(reader, nil)
	if err != nil || response.StatusCode != 200 || len(response.TransferEncoding) > 0 {
		t.Fatalf("%+v, %v", response, err)
	}
	b := &browser{t: t, parser: newParser(response.Body)}
	b.expect("a", caughtUp("1", last.String()))
	e.closeStream("1")
	b.until("fanfare.closed")
	b.ends()
}

func TestManyStreamsShareAConnectionOverHTTP2(t *testing.T) {
	var connections atomic.Int64
	e := startTLS(t, func(_ *sse.Config, s *http.Server) {
		s.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
			connections.Add(1)
			return ctx
		}
	})
	e.publish("idle", "x")
	var browsers []*browser
	for i := range 30 { // a browser opens six connections over HTTP/1.1
		browsers = append(browsers, e.open(fmt.Sprintf("/v1/streams/orders/%d", i)))
	}
	for i, b := range browsers {
		b.until("caught_up")
		if b.response.ProtoMajor != 2 {
			t.Fatalf("the protocol is %s", b.response.Proto)
		}
		e.publish(fmt.Sprint(i), "a")
	}
	for _, b := range browsers {
		b.expect("a")
	}
	if got := e.status("/v1/streams/orders/1?last=x"); got != 400 {
		t.Errorf("an ordinary request was answered %d", got)
	}
	if n := connections.Load(); n != 1 { // Connection: close would end it
		t.Errorf("there were %d connections", n)
	}
}

func TestOneConnectionCarriesManyStreams(t *testing.T) {
	e := start(t, nil)
	target := "/v1/streams?"
	var want []string
	for i := range 50 {
		scope := fmt.Sprintf("a/%%b %d", i)
		want = append(want, e.publish(scope, "first").String())
		target += "&stream=" + url.QueryEscape("orders/"+url.PathEscape(scope))
	}
	target = strings.Replace(target, "?&", "?", 1)
	b := e.open(target)
	for range 100 { // a frame and caught_up of each
		if _, err := b.next(); err != nil {
			t.Fatal(err)
		}
	}
	if b.id() != strings.Join(want, ",") {
		t.Fatalf("the id is %s, want %s", b.id(), want)
	}
	b.leave()
	missed := e.publishFrame(clientlib.NewFrame{Stream: stream("a/%b 7"), Payload: []byte("second")})
	b = e.open(target, "Last-Event-ID", strings.Join(want, ","))
	second := b.until(`"second"`)
	if want[7] = missed.String(); second.id != strings.Join(want, ",") || !strings.Contains(second.data, `"stream":{"channel":"orders","scope":"a/%b 7"}`) {
		t.Errorf("the event is %+v", second)
	}
	e.publishFrame(clientlib.NewFrame{Stream: stream("a/%b 8"), Payload: []byte("passing"), Ephemeral: true})
	if passing := b.until(`"passing"`); passing.id != second.id || !strings.Contains(passing.data, `"ephemeral":true`) {
		t.Errorf("the ephemeral frame's event is %+v", passing)
	}
}

func TestEphemeralFramesDoNotMoveTheID(t *testing.T) {
	e := start(t, nil)
	last := e.publish("1", "a")
	b := e.open(one)
	b.expect("a", caughtUp("1", last.String()))
	e.publishEphemeral("1", "x", "y")
	b.expect("x", "y")
	if b.id() != last.String() {
		t.Errorf("the id is %s, want %s", b.id(), last)
	}
	// One that comes back may have missed some, and is told so.
	b.leave()
	b = e.open(one, "Last-Event-ID", last.String())
	b.expect(fmt.Sprintf(`fanfare.gap {"stream":{"channel":"orders","scope":"1"},"reason":"EPHEMERAL_MAYBE_MISSED","requested":"%[1]s","oldest":"1","head":"%[1]s","resume_after":"%[1]s"}`, last), caughtUp("1", last.String()))
	e.publishEphemeral("1", "z")
	b.expect("z")
}

// A stream that has had ephemeral frames alone has an epoch and no frame to resume from:
// who comes when others watch already must still get what is published.
func TestEphemeralFramesReachThoseWhoComeAfterTheFirst(t *testing.T) {
	e := start(t, nil)
	first := e.open(one)
	first.until("caught_up")
	e.publishEphemeral("1", "x")
	first.expect("x")
	for _, query := range []string{"", "?from=live", "?last=5", "?after=0-0"} {
		b := e.open(one + query)
		b.until("caught_up")
		e.publishEphemeral("1", "y"+query)
		b.expect("y" + query)
		b.leave()
	}
}

func TestAuthorize(t *testing.T) {
	var answer error
	var seen []clientlib.Stream
	e := start(t, func(c *sse.Config, _ *http.Server) {
		c.Authorize = func(r *http.Request, streams []clientlib.Stream) (sse.Grant, error) {
			seen = streams
			return sse.Grant{}, answer
		}
	})
	for _, c := range []struct {
		err  error
		want int
		says string
	}{
		{&sse.Refusal{Status: 401, Message: "who are you"}, 401, "unauthenticated UNAUTHENTICATED"},
		{&sse.Refusal{Status: 401, Reason: "TOKEN_EXPIRED", Message: "renew"}, 401, "unauthenticated TOKEN_EXPIRED"},
		{fmt.Errorf("wrapped: %w", &sse.Refusal{Status: 403, Message: "no"}), 403, "permission_denied PERMISSION_DENIED"},
		{&sse.Refusal{Message: "no"}, 403, "permission_denied PERMISSION_DENIED"}, {&sse.Refusal{Status: 500}, 403, "permission_denied PERMISSION_DENIED"},
		{errors.New("the directory is away"), 200, ""},
	} {
		answer = c.err
		response, cancel := e.request(http.MethodGet, "/v1/streams?stream=a/1&stream=b/2", "Last-Event-ID", "1-2,3-4")
		body, err := io.ReadAll(response.Body)
		cancel()
		if response.StatusCode != c.want || err != nil {
			t.Errorf("%v: %s, %v", c.err, response.Status, err)
		}
		var problem struct{ Code, Reason string }
		if err := json.Unmarshal(body, &problem); c.want != 200 && (err != nil || problem.Code+" "+problem.Reason != c.says) {
			t.Errorf("%v: the body is %s, want %s", c.err, body, c.says)
		}
		if c.want == 200 {
			events, err := strict(strings.NewReader(string(body)))
			if err != nil || len(events) != 1 || events[0].kind != "fanfare.reconnect" || !strings.Contains(events[0].data, "UNAVAILABLE") || events[0].id != "1-2,3-4" {
				t.Errorf("%q: %v, %v", body, events, err)
			}
		}
		if c.want == 401 && response.Header.Get("WWW-Authenticate") != "Bearer" {
			t.Error("401 does not say what credential is wanted")
		}
	}
	if len(seen) != 2 || seen[1] != (clientlib.Stream{Channel: "b", Scope: "2"}) {
		t.Errorf("the streams to authorize were %v", seen)
	}
}

// An Authorize of a program's own may look at a parameter of its own.
func TestParametersOfAuthorizeAreNotRefused(t *testing.T) {
	e := start(t, func(c *sse.Config, _ *http.Server) { c.Parameters = []string{"ticket"} })
	if got := e.status(one + "?ticket=7"); got != 200 {
		t.Errorf("it was answered %d", got)
	}
	if got := e.status(one + "?tickets=7"); got != 400 {
		t.Errorf("another was answered %d", got)
	}
}

func TestAStreamEndsWhenItsGrantExpires(t *testing.T) {
	expires := time.Now().Add(4 * time.Second) // subscribed by then, on a busy machine too
	e := start(t, func(c *sse.Config, _ *http.Server) {
		c.Authorize = func(*http.Request, []clientlib.Stream) (sse.Grant, error) { return sse.Grant{Expires: expires}, nil }
	})
	b := e.open(one)
	b.until("caught_up")
	e.publish("1", "a")
	b.expect("a")
	if reconnect := b.until("fanfare.reconnect"); !strings.Contains(reconnect.data, "TOKEN_EXPIRED") {
		t.Errorf("the event is %s", reconnect)
	}
	b.ends()
	if time.Now().Before(expires) {
		t.Error("the stream ended before its grant expired")
	}
	if got := e.status(one, "Last-Event-ID", b.id()); got != 401 {
		t.Errorf("after that the request was answered %d", got)
	}
}

// What stands in for a handler that is not there yet must be readable by pages, and leave
// browsers their positions; what is wrong for good is told at once.
func TestAHandlerWithoutServersTellsBrowsersToComeBack(t *testing.T) {
	const origin = "https://app.example.com"
	h := sse.New(nil, sse.Config{AllowedOrigins: []string{origin}, Retry: time.Minute, Authorize: func(*http.Request, []clientlib.Stream) (sse.Grant, error) {
		return sse.Grant{}, errors.New("not asked")
	}})
	answer := func(target, id string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
		r.Header.Set("Origin", origin)
		r.Header.Set("Last-Event-ID", id)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := w.Header(); got.Get("Access-Control-Allow-Origin") != origin || got.Get("Access-Control-Allow-Credentials") != "true" {
			t.Errorf("%s: pages get %v", target, got)
		}
		return w
	}
	retries := map[time.Duration]bool{}
	for range 20 {
		w := answer(one, "5-7")
		p := newParser(w.Body)
		e, err := p.next()
		if w.Code != http.StatusOK || err != nil || !strings.Contains(e.String(), `fanfare.reconnect {"reason":"UNAVAILABLE"`) || e.id != "5-7" {
			t.Fatalf("%d, %+v, %v", w.Code, e, err)
		}
		if p.retry < time.Minute || p.retry >= 3*time.Minute {
			t.Errorf("told to come back in %s", p.retry)
		}
		retries[p.retry] = true
	}
	if len(retries) < 15 {
		t.Errorf("20 browsers are told to come back at %d different times", len(retries))
	}
	if w := answer(one+"?last=x", ""); w.Code != http.StatusBadRequest {
		t.Errorf("a bad request is answered %d", w.Code)
	}
}
