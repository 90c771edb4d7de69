package browser_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/browser/browsertest"
	"github.com/fanfare-io/fanfare/clientlib/sse"
)

// A page's token expires, its connection ends, and the page goes on with another token.
// When it gets no other one, that is the end.
func TestAPageGoesOnWithAnotherTokenWhenItsOwnExpires(t *testing.T) {
	var good atomic.Value
	good.Store("first")
	w := newWorld(t, func(o *options) {
		o.events.Authorize = func(r *http.Request, _ []clientlib.Stream) (sse.Grant, error) {
			switch token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "); {
			case token != good.Load():
				return sse.Grant{}, &sse.Refusal{Status: http.StatusUnauthorized, Message: "not " + token}
			case token == "first":
				good.Store("second")
				return sse.Grant{Expires: time.Now().Add(1500 * time.Millisecond)}, nil
			default:
				return sse.Grant{}, nil
			}
		}
	})
	w.publish("one")
	page := open(t, w.url)
	page.Allow("the server responded with a status of 401")
	page.Run(`tokens = ["first", "second", "third"]; asked = [];
		follow(` + source + `, {token: async ({refresh}) => { asked.push(refresh); if (refresh) tokens.shift(); return tokens[0] }})`)
	awaitLast(page, "one")
	page.Wait("the end of the first token", `reasons.length > 0`, "told")
	w.publish("two")
	expect(t, "the page got", awaitLast(page, "two"), []string{"one", "two"})
	expect(t, "it had waited because of", browsertest.Eval[[]string](page, "reasons"), []string{"TOKEN_EXPIRED"})

	good.Store("nobody's")
	w.server.CloseClientConnections()
	page.Allow(cutOff)
	page.Wait("the end", `subscription.status.state === "ended"`, "told")
	expect(t, "at the end it was told", browsertest.Eval[[]string](page, "told.slice(-2)"), []string{"ended", "error 401 not third"})
	expect(t, "tokens were asked for anew", browsertest.Eval[[]bool](page, "asked"), []bool{false, false, true, false, true})
}

// A page renews the signed address of its stream in time: its connection never ends
// because the address has expired.
func TestASignedAddressIsRenewedInTime(t *testing.T) {
	signer, err := sse.NewSigner(bytes.Repeat([]byte("k"), sse.MinKeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	var signed atomic.Int64
	w := newWorld(t, func(o *options) { o.events.Authorize = signer.Verify })
	w.pages.HandleFunc("/sign", func(rw http.ResponseWriter, r *http.Request) {
		u, err := url.Parse(address)
		if err == nil {
			u, err = signer.Sign(u, time.Now().Add(6*time.Second))
		}
		if err != nil {
			http.Error(rw, err.Error(), http.StatusInternalServerError)
			return
		}
		signed.Add(1)
		fmt.Fprint(rw, u)
	})
	w.publish("one")
	page := open(t, w.url)
	page.Run("follow({url: async () => (await fetch('/sign')).text()})")
	awaitLast(page, "one")
	deadline := time.Now().Add(browsertest.Patience)
	for n := 2; signed.Load() < 2; n++ {
		if time.Now().After(deadline) {
			t.Fatalf("only %d addresses were signed", signed.Load())
		}
		payload := fmt.Sprint(n)
		w.publish(payload)
		awaitLast(page, payload)
	}
	got := browsertest.Eval[[]string](page, "got")
	expect(t, "the page got", got, append([]string{"one"}, numbers(2, len(got))...))
	expect(t, "it waited because of", browsertest.Eval[[]string](page, "reasons"), []string{})
	page.Run("subscription.close()")

	page.Allow("the server responded with a status of 401")
	page.Run("follow(" + source + ")")
	page.Wait("the end", `subscription.status.state === "ended"`, "told")
	expect(t, "without a signature it was told", browsertest.Eval[[]string](page, "told.slice(-1)"), []string{"error 401 the URL has no valid signature"})
}

// Pages of an origin that is allowed use a server of another one, also when they come
// back, which needs a header that must be allowed. Pages of others are refused by their
// browser.
func TestAPageOfAnotherOrigin(t *testing.T) {
	pages := func() string {
		server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "text/html; charset=utf-8")
			fmt.Fprint(rw, strings.Replace(pageHTML, "'/fanfare.js'", "'"+r.URL.Query().Get("server")+"/fanfare.js'", 1))
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	good, foreign := pages(), pages()
	w := newWorld(t, func(o *options) {
		o.events.AllowedOrigins = []string{good}
		o.events.Authorize = func(r *http.Request, _ []clientlib.Stream) (sse.Grant, error) {
			cookie, _ := r.Cookie("session")
			if r.Header.Get("Authorization") != "Bearer secret" && (cookie == nil || cookie.Value != "secret") {
				return sse.Grant{}, &sse.Refusal{Status: http.StatusUnauthorized, Message: "who are you?"}
			}
			return sse.Grant{}, nil
		}
	})
	w.pages.HandleFunc("/login", func(rw http.ResponseWriter, _ *http.Request) {
		http.SetCookie(rw, &http.Cookie{Name: "session", Value: "secret", HttpOnly: true, SameSite: http.SameSiteLaxMode})
		servePage(rw, nil)
	})
	w.publish("one")
	page := open(t, w.url+"/login")
	page.Allow(cutOff)
	for name, options := range map[string]string{
		"with a token over fetch":        `token: () => "secret"`,
		"with a cookie over EventSource": `credentials: "include"`,
		"with a cookie over fetch":       `credentials: "include", transport: "fetch"`,
	} {
		page.Navigate(good + "/?server=" + url.QueryEscape(w.url))
		page.Wait("the module", "window.ready")
		page.Run(fmt.Sprintf("follow(%s, {last: 1, server: %q, %s})", source, w.url, options))
		first := awaitLast(page, browsertest.Eval[string](page, "new Promise((f) => setInterval(() => got.length && f(got[0]), 10))"))
		w.server.CloseClientConnections()
		page.Wait("the end of the connection", `told.includes("waiting")`, "told")
		w.publish(name)
		expect(t, name+" the page got", awaitLast(page, name), append(first, name))
		page.Run("subscription.close()")
	}
	page.Run(fmt.Sprintf("follow(%s, {server: %q, token: () => 'wrong'})", source, w.url))
	page.Allow("the server responded with a status of 401")
	page.Wait("the end", `subscription.status.state === "ended"`, "told")
	expect(t, "with a wrong token it was told", browsertest.Eval[[]string](page, "told.slice(-1)"), []string{"error 401 who are you?"})

	page.Navigate(foreign + "/?server=" + url.QueryEscape(w.url))
	page.Allow("has been blocked by CORS policy|net::ERR_FAILED")
	page.Wait("the module", "window.ready")
	page.Run(fmt.Sprintf("follow(%s, {server: %q, credentials: 'include'})", source, w.url))
	page.Wait("the refusal", `told.filter((line) => line === "waiting").length > 2`, "told")
	if got := browsertest.Eval[int](page, "got.length"); got != 0 {
		t.Errorf("a page of another origin got %d frames", got)
	}
}
