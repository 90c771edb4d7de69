package console_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/browser/browsertest"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// requests is an expression: how often the page has asked for a path.
func requests(path string) string {
	return fmt.Sprintf(`performance.getEntriesByType("resource").filter((e) => new URL(e.name).pathname.endsWith(%s)).length`, js(path))
}

// With thousands of streams a page of them is shown and asked for, a search finds any,
// and what is not shown is not asked for again.
func TestThousandsOfStreams(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		t.Parallel()
		const streams = 2000
		s := serve(t, db)
		for from := 0; from < streams; from += 1000 {
			batch := make([]clientlib.NewFrame, 1000)
			for i := range batch {
				n := from + i
				batch[i] = text(fmt.Sprintf("tenant/%02d", n/100), fmt.Sprintf("order-%04d", n), "x")
			}
			if _, err := s.client.PublishBatch(patient(t), batch); err != nil {
				t.Fatal(err)
			}
		}
		browser := browsertest.Start(t)
		page := s.console(browser, "#/streams")
		rows := "document.querySelectorAll('.streams tbody tr').length"
		page.Wait("a page is shown", rows+" === 50", rows)
		page.Wait("it is the first", shows(".streams tbody tr", "order-0000"))
		page.Run("[...document.querySelectorAll('.pages button')].at(-1).click()")
		page.Wait("the next page is shown", shows(".streams tbody tr", "order-0050"))
		page.Wait("it is told which", shows(".pages", "Page 2"))
		page.Run("document.querySelector('.pages button').click()")
		page.Wait("the first is shown again", shows(".streams tbody tr", "order-0000"))

		find := func(words string) {
			t.Helper()
			fill(page, "#search", words+"\r")
		}
		find("order-1987")
		page.Wait("a scope is found", rows+" === 1 && "+shows(".streams tbody tr", "order-1987"), rows)
		s.publish(text("tenant/19", "order-1987", "y"))
		page.Wait("what is found is followed", cell("order-1987", "Head")+" === '2'")
		page.Wait("its rate, too", "Number("+cell("order-1987", "Frames/s")+") > 0")
		find("TENANT/07")
		page.Wait("a channel is found, and of its streams some are shown", rows+" === 25", rows)
		page.Wait("it says that there are more", shows(".said", "there are more"))
		find("not there")
		page.Wait("it says that nothing was found", shows(".said", "None of 2,000 streams"))
		page.Navigate(s.url + "/console/#/streams?channel=tenant/07")
		page.Wait("a channel alone is listed by pages", rows+" === 50 && "+shows(".streams tbody tr", "order-0700"), rows)

		// A page that nobody sees asks for nothing, and goes on when it is seen.
		page.Run("performance.clearResourceTimings()")
		page.Wait("it asks again and again", requests("/v1/list-streams")+" >= 1")
		page.Hide()
		page.Run("performance.clearResourceTimings()")
		s.publish(text("tenant/07", "order-0700", "z"))
		before := browsertest.Eval[int](page, requests("/v1/list-streams")+" + "+requests("/healthz"))
		seen := s.console(browser, "#/streams")
		seen.Wait("a page that is seen has asked several times meanwhile", requests("/v1/list-streams")+" >= 3")
		seen.Close()
		if after := browsertest.Eval[int](page, requests("/v1/list-streams")+" + "+requests("/healthz")); after > before {
			t.Errorf("a hidden page has asked %d times", after-before)
		}
		page.Show()
		page.Wait("it goes on", cell("order-0700", "Head")+" === '2'", cell("order-0700", "Head"))
	})
}

// A server that asks for a token gets it in a header, from this tab alone.
func TestATokenIsAskedForAndKeptInTheTab(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, bytes.Repeat([]byte("0123456789abcdef"), 4), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, servicetest.Database{URL: "sqlite::memory:"}, "--jwt-secret-file", secret)
	token := func(rights ...string) string {
		t.Helper()
		out, err := exec.Command(servicetest.Program(t), append([]string{"token", "--jwt-secret-file", secret}, rights...)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	all := token("--subscribe", "*", "--publish", "c=s", "--admin")
	page := s.console(browsertest.Start(t), "#/publish?channel=c&scope=s")
	page.Allow("401|403") // the browser tells of each refusal in its console
	page.Wait("health needs no token", shows(".state", "ready"))
	page.Navigate(s.url + "/console/#/streams")
	page.Wait("a dialog asks for one", shows("dialog", "asks for a token"))
	page.Type("#token", "not a token\r")
	page.Wait("a wrong one is refused", shows("dialog", "does not take this token"))
	page.Type("#token", all+"\r")
	page.Wait("with the right one it goes on", shows("main", "No stream yet"))
	fill(page, "form.publish [name=channel]", "c")
	fill(page, "form.publish [name=scope]", "s")
	fill(page, "form.publish [name=payload]", "with a token")
	page.Click("form.publish button[type=submit]")
	page.Wait("the tail has the token, too", shows(".tail-list", "with a token"), "document.querySelector('.tail')?.innerText")
	page.Reload()
	page.Wait("the tab remembers it", shows(".tail-list", "with a token"))
	headFitsAPhone(t, page)
	if kept := browsertest.Eval[string](page, "JSON.stringify([localStorage, document.cookie, location.href, history.state])"); strings.Contains(kept, all) {
		t.Errorf("the token is in %s", kept)
	}
	if urls := browsertest.Eval[string](page, `performance.getEntriesByType("resource").map((e) => e.name).join("\n")`); strings.Contains(urls, all) {
		t.Errorf("the token was sent in a URL: %s", urls)
	}
	page.Navigate(s.url + "/console/#/publish?channel=other&scope=s")
	page.Click("form.publish button[type=submit]")
	page.Wait("what the token does not allow is said", shows("form.publish [role=alert]", "Your token does not allow this"), "document.querySelector('form.publish').innerText")
	page.Run(`[...document.querySelectorAll("header button")].find((b) => b.innerText === "Forget token").click()`)
	page.Navigate(s.url + "/console/#/streams")
	page.Wait("a forgotten one is asked for again", shows("dialog", "asks for a token"))
	page.Run(`[...document.querySelectorAll("dialog button")].find((b) => b.innerText === "Not now").click()`)
	page.Wait("who has none is told", shows("main .notice", "Without one"))
	page.Wait("and that nothing is under way", shows("main .empty", "Sign in to see the streams"))
	if log := s.process.Log(); strings.Contains(log, all) {
		t.Error("the server's log has the token")
	}
}

// Behind a proxy that serves the server under a path of its own everything works.
func TestTheConsoleWorksUnderAPrefix(t *testing.T) {
	t.Parallel()
	s := serve(t, servicetest.Database{URL: "sqlite::memory:"})
	s.publish(text("c", "s", "behind a proxy"))
	target, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	outside := httptest.NewServer(http.StripPrefix("/messages/fanfare", proxy))
	t.Cleanup(outside.Close)
	page := browsertest.Start(t).Open(outside.URL + "/messages/fanfare/console/")
	page.Wait("the streams are listed", shows(".streams", "c"))
	page.Wait("the replica is ready", shows(".state", "ready"))
	page.Click(".streams tbody a")
	page.Wait("the tail is live", shows(".tail-list", "behind a proxy"))
	page.Type("form.publish [name=payload]", "through the proxy")
	page.Click("form.publish button[type=submit]")
	page.Wait("what is published there arrives", shows(".tail-list > li", "through the proxy"), "document.querySelector('form.publish').innerText")
	outsidePrefix := browsertest.Eval[[]string](page, `performance.getEntriesByType("resource").map((e) => new URL(e.name).pathname).filter((p) => !p.startsWith("/messages/fanfare/"))`)
	if len(outsidePrefix) > 0 {
		t.Errorf("the page has asked beside the prefix: %q", outsidePrefix)
	}
}

// A database that is away, and a server that is, are said in words with what to do; the
// page goes on by itself.
func TestFaultsAreToldInWords(t *testing.T) {
	t.Parallel()
	database := pgtest.NewDatabase(t)
	proxy := pgtest.Proxy(t, database)
	address := pgtest.FreeAddress(t)
	s := serveAt(t, servicetest.Database{URL: proxy.URL(database)}, address)
	s.publish(text("c", "s", "before"))
	browser := browsertest.Start(t)
	tail := s.console(browser, "#/stream?channel=c&scope=s")
	tail.Wait("the frame is there", shows(".tail-list", "before"))
	page := s.console(browser, "#/health")
	for _, page := range []*browsertest.Page{page, tail} {
		page.Allow("503|Failed to load|ERR_") // the browser tells of each in its console
	}
	page.Wait("all is well", shows(".findings", "The store answers.")+" && "+shows("#health-title", "is ready"))
	proxy.Refuse()
	proxy.Cut()
	page.Wait("the store is away", shows(".findings", "The store has not answered for"), "document.querySelector('main').innerText")
	page.Wait("it says what that means", shows(".findings", "Nothing can be published"))
	page.Wait("nothing is heard", shows(".findings", "New frames have not been heard of for"))
	page.Wait("the top of the page says so", shows(".state", "not ready"))
	proxy.Restore()
	page.Wait("it is back", shows(".findings", "The store answers.")+" && "+shows(".state", "ready")+" && !"+shows(".state", "not"))
	s.process.Kill()
	page.Wait("a server that is gone is told", shows("main .notice", "gets no answer"))
	page.Wait("and at the top", shows(".state", "no answer"))
	// It had been said to be ready for some seconds, with the answer of before.
	page.Wait("it is not called ready", shows("#health-title", "gives no answer")+" && !"+shows(".findings", "The store answers."), "document.querySelector('main').innerText")
	headFitsAPhone(t, page)
	tail.Wait("the tail waits", shows(".tail-state", "Interrupted"))
	tail.Wait("one fault is told once", "document.querySelectorAll('main .notice').length === 1", "document.querySelector('main').innerText")

	s = serveAt(t, servicetest.Database{URL: database}, address)
	page.Wait("a server that is back is asked again", shows("#health-title", "is ready")+" && !document.querySelector('main .notice')")
	s.publish(text("c", "s", "after"))
	tail.Wait("the tail goes on", shows(".tail-list > li", "after")+" && "+shows(".tail-list", "before"))
}

// headFitsAPhone checks that what stands at the top of a page leaves room on a phone.
func headFitsAPhone(t *testing.T, page *browsertest.Page) {
	t.Helper()
	page.Size(360, 740, true)
	if high := browsertest.Eval[int](page, "document.querySelector('header').offsetHeight"); high > 105 {
		t.Errorf("the top is %d pixels high on a phone", high)
	}
	page.Size(1280, 800, false)
}
