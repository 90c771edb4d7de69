package console_test

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/browser/browsertest"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// js is a text as JavaScript has it.
func js(text string) string { return strconv.QuoteToASCII(text) }

// fill has a control of a form hold a text, and nothing else.
func fill(page *browsertest.Page, selector, text string) {
	page.Run(fmt.Sprintf("document.querySelector(%s).select()", js(selector)))
	page.Press(kb.Delete)
	if text != "" {
		page.Type(selector, text)
	}
}

// shows is an expression: the first element of a selector has a text.
func shows(selector, text string) string {
	return fmt.Sprintf("document.querySelector(%s)?.innerText.includes(%s)", js(selector), js(text))
}

// fact is an expression: the value of a fact of a stream, as text.
func fact(name string) string {
	return fmt.Sprintf("[...document.querySelectorAll('.fact')].find((f) => f.querySelector('dt').innerText === %s)?.querySelector('dd').innerText", js(name))
}

// cell is an expression: the text of a column in the row of a scope.
func cell(scope, column string) string {
	return fmt.Sprintf("[...document.querySelectorAll('.streams tbody tr')].find((r) => r.querySelector('.scope').innerText === %s)?.querySelector('[data-label=%s]').innerText.trim()", js(scope), js(column))
}

// The first minutes with Fanfare: an empty server says what to do, a frame published by
// the form is seen at once, and so is what others publish; the figures follow.
func TestTheFirstMinutes(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		t.Parallel()
		s := serve(t, db)
		browser := browsertest.Start(t)
		page := s.console(browser, "")
		page.Wait("the replica is ready", shows(".state", "ready"))
		page.Wait("an empty server says so", shows(".welcome", "No stream yet"))
		for _, command := range []string{"fanfare publish chat/messages lobby", "fanfare subscribe chat/messages lobby", "curl '" + s.url + "/v1/publish'", "curl -N '" + s.url + "/v1/streams?"} {
			page.Wait("it says what to type", shows(".welcome", command), "document.querySelector('.welcome').innerText")
		}
		fill(page, "[name=payload]", "hello from the form")
		page.Click("button[type=submit]")
		page.Wait("the new stream is shown", `location.hash.startsWith("#/stream?")`)
		page.Wait("its frame is there", shows(".tail-list", "hello from the form"))

		// What others do is seen live.
		lobby := clientlib.Stream{Channel: "chat/messages", Scope: "lobby"}
		end := s.subscribe(lobby, 3)
		s.publish(text("chat/messages", "lobby", "hello from a program"))
		page.Wait("what a program publishes arrives", shows(".tail-list > li", "hello from a program"))
		page.Wait("the subscribers are counted, the tail's own too", fact("Subscribers")+" === '4'", fact("Subscribers"))
		page.Wait("the head has moved", fact("Head")+".endsWith('-2')")
		end()
		page.Wait("they are no longer counted", fact("Subscribers")+" === '1'", fact("Subscribers"))

		s.publish(clientlib.NewFrame{Stream: lobby, Payload: []byte("typing"), Ephemeral: true})
		page.Wait("an ephemeral frame is told apart", shows(".tail-list > li", "ephemeral"))

		// Rates move while frames come, for the stream and for the replica.
		for i := range 50 {
			s.publish(text("chat/messages", "lobby", fmt.Sprint("frame ", i)))
		}
		page.Wait("the stream's rate moves", fact("Frames/s")+" > 1", fact("Frames/s"))
		page.Navigate(s.url + "/console/#/streams")
		page.Wait("the list has the stream", cell("lobby", "Head")+" === '52'", cell("lobby", "Head"))
		page.Wait("a chart tells of the replica's rate", "/at most [1-9]/.test(document.querySelector('.plot').ariaLabel)", "document.querySelector('.plot')?.ariaLabel")
		nothingForeign(t, page)
	})
}

// nothingForeign checks that all that the page has loaded came from its own origin. What
// its policy forbids is an error in its console, which ends the test.
func nothingForeign(t *testing.T, page *browsertest.Page) {
	t.Helper()
	foreign := browsertest.Eval[[]string](page, `performance.getEntriesByType("resource").map((e) => e.name).filter((n) => !n.startsWith(location.origin + "/"))`)
	if len(foreign) > 0 {
		t.Errorf("the page has asked elsewhere: %q", foreign)
	}
	if n := browsertest.Eval[int](page, `performance.getEntriesByType("resource").length`); n < 4 {
		t.Errorf("the page has asked for %d things only: the check above sees nothing", n)
	}
}

// What the server refuses is said at the control that it is about, and the frame stays
// in the form.
func TestTheFormTellsWhatTheServerRefuses(t *testing.T) {
	t.Parallel()
	s := serve(t, servicetest.Database{URL: "sqlite::memory:"})
	page := s.console(browsertest.Start(t), "#/publish?channel=c&scope=s")
	page.Allow("400|409|413") // the browser tells of each refusal in its console
	submit := func() {
		page.Click("form.publish button[type=submit]")
	}
	refused := func(control, why string) {
		t.Helper()
		page.Wait("the form says what is wrong", shows("form.publish [role=alert]", why), "document.querySelector('form.publish').innerText")
		if got := browsertest.Eval[string](page, `document.querySelector('form.publish [aria-invalid=true]')?.name ?? ''`); got != control {
			t.Errorf("%q is marked, want %q", got, control)
		}
	}
	fill(page, "[name=payload]", "kept")
	fill(page, "[name=channel]", "")
	submit()
	refused("channel", "must not be empty")
	fill(page, "[name=channel]", "c")
	fill(page, "[name=event-type]", "fanfare.gap")
	submit()
	refused("event-type", "fanfare.")
	fill(page, "[name=event-type]", "greeting")
	fill(page, "[name=headers]", "trace 7")
	submit()
	refused("headers", "“trace 7” is not a name, a colon and a value")
	fill(page, "[name=headers]", "trace: 7:8\n\nby:form")
	fill(page, "[name=key]", "k1")
	page.Run(`document.querySelector("[name=payload]").dispatchEvent(
		new KeyboardEvent("keydown", { key: "Enter", ctrlKey: true, bubbles: true, cancelable: true }))`)
	page.Wait("Ctrl+Enter has published it", shows("form.publish .notice.good", "Published at"))
	page.Run(`document.querySelector("[name=headers]").dispatchEvent(
		new KeyboardEvent("keydown", { key: "Enter", metaKey: true, bubbles: true, cancelable: true }))`)
	page.Wait("again, by Cmd+Enter, it is a duplicate", shows("form.publish .notice.good", "Was published before"))
	fill(page, "[name=payload]", "another")
	submit()
	refused("", "idempotency")
	page.Click("[name=ephemeral]")
	submit()
	page.Wait("an ephemeral frame was published", shows("form.publish .notice.good", "not stored"))

	// A file's bytes arrive as they are.
	page.Click("[name=ephemeral]")
	page.Run(`[...document.querySelectorAll("[name=source]")].at(-1).click()`)
	page.Wait("a file can be chosen", `document.querySelector("[type=file]")`)
	page.Run(`(() => {
		const files = new DataTransfer();
		files.items.add(new File([Uint8Array.from({ length: 256 }, (_, i) => i)], "bytes.bin", { type: "image/x-bytes" }));
		const input = document.querySelector("[type=file]");
		input.files = files.files;
		input.dispatchEvent(new Event("change", { bubbles: true }));
	})()`)
	fill(page, "[name=key]", "")
	submit()
	page.Wait("the file was published", shows("form.publish .notice.good", "Published at"))
	var frames struct {
		Frames []struct {
			Payload     []byte
			ContentType string
			EventType   string
			Headers     map[string]string
		}
	}
	s.read("/v1/frames?channel=c&scope=s", &frames)
	last := frames.Frames[len(frames.Frames)-1]
	if len(last.Payload) != 256 || last.Payload[255] != 255 || last.ContentType != "image/x-bytes" || last.EventType != "greeting" {
		t.Errorf("the file is %d bytes of %q, %q", len(last.Payload), last.ContentType, last.EventType)
	}
	first := frames.Frames[0]
	if string(first.Payload) != "kept" || first.ContentType != "text/plain" {
		t.Errorf("the first frame is %q of %q", first.Payload, first.ContentType)
	}
	if want := map[string]string{"trace": "7:8", "by": "form"}; !maps.Equal(first.Headers, want) {
		t.Errorf("its headers are %q, want %q", first.Headers, want)
	}
}

// A stream is closed only when that was confirmed; its tail waits for the next numbering.
func TestAStreamIsClosedAfterAConfirmation(t *testing.T) {
	t.Parallel()
	s := serve(t, servicetest.Database{URL: "sqlite::memory:"})
	s.publish(text("c", "s", "before"))
	page := s.console(browsertest.Start(t), "#/stream?channel=c&scope=s")
	page.Wait("the frame is there", shows(".tail-list", "before"))
	page.Click(".stream-head .danger")
	page.Wait("a dialog asks", shows("dialog", "Close this stream?"))
	if got := browsertest.Eval[string](page, "document.activeElement.innerText"); got != "Keep it open" {
		t.Errorf("the focus is on %q", got)
	}
	page.Press(kb.Escape)
	page.Wait("the dialog is gone", `!document.querySelector("dialog")`)
	focusIsBack := func() {
		t.Helper()
		page.Wait("the focus is on what opened the dialog", `document.activeElement.matches(".stream-head .danger")`, "document.activeElement.outerHTML")
	}
	focusIsBack()
	page.Press(kb.Enter)
	page.Wait("the dialog is there again", shows("dialog", "Close this stream?"))
	page.Press(kb.Enter)
	page.Wait("it was kept open", `!document.querySelector("dialog")`)
	focusIsBack()
	page.Click(".stream-head .danger")
	page.Click("dialog .danger")
	page.Wait("the stream is closed", shows(".stream-head", "The stream is closed."))
	page.Wait("the tail says so", shows(".tail-list", "The stream was closed after"))
	focusIsBack()
	page.Press(kb.Enter)
	s.publish(text("c", "s", "opened again"))
	page.Wait("the next numbering is shown", shows(".tail-list > li", "opened again"))
	page.Wait("it is open again", "!"+shows(".stream-head", "The stream is closed."))
	if browsertest.Eval[bool](page, `document.querySelector("dialog") !== null`) {
		t.Error("a closed stream can be closed")
	}
	if body := page.Text(".tail-list"); !strings.Contains(body, "before") {
		t.Errorf("the tail has lost what was before: %s", body)
	}
}

// While the tail is paused nothing moves and nothing is said, and nothing is lost.
func TestAPausedTailKeepsWhatComes(t *testing.T) {
	t.Parallel()
	s := serve(t, servicetest.Database{URL: "sqlite::memory:"})
	s.publish(text("c", "s", "first"))
	page := s.console(browsertest.Start(t), "#/stream?channel=c&scope=s")
	page.Wait("the frame is there", shows(".tail-list", "first"))
	page.Wait("it is said to who listens", shows(".tail [role=log]", "first"))
	page.Run("[...document.querySelectorAll('.tail button')].find((b) => b.innerText.startsWith('Pause')).click()")
	s.publish(text("c", "s", "second"))
	page.Wait("it counts what waits", shows(".tail [aria-pressed=true]", "1 new"))
	if page.Text(".tail-list"); browsertest.Eval[bool](page, shows(".tail", "second")) {
		t.Error("a paused tail shows what came")
	}
	page.Click(".tail [aria-pressed=true]")
	page.Wait("it goes on with what waited", shows(".tail-list > li", "second"))
	page.Wait("and says it", shows(".tail [role=log]", "second"))
}

// An address that names nothing shows the list, and says why; nothing malformed is asked for.
func TestAnAddressWithoutAStreamShowsTheList(t *testing.T) {
	t.Parallel()
	s := serve(t, servicetest.Database{URL: "sqlite::memory:"})
	s.publish(text("c", "s", "there"))
	page := s.console(browsertest.Start(t), "#/stream")
	for place, said := range map[string]string{
		"#/stream":                  "names no stream",
		"#/stream?channel=&scope=s": "names no stream",
		"#/nowhere":                 "has nothing at this address",
	} {
		page.Navigate(s.url + "/console/" + place)
		page.Wait(place+" is told of", shows("main .notice", said), "document.querySelector('main').innerText")
		page.Wait("the list is there", cell("s", "Head")+" === '1'")
	}
	page.Navigate(s.url + "/console/#/streams")
	page.Wait("where all is well nothing is said", "!document.querySelector('main .notice')")
}
