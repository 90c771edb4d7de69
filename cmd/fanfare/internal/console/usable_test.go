package console_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/browser/browsertest"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// views are all places of the console, with what tells that each is there.
var views = []struct{ place, has string }{
	{"#/streams", ".streams"},
	{"#/streams?q=nothing+has+this", ".said"},
	{"#/stream?channel=chat/messages&scope=lobby", ".tail-list"},
	{"#/publish", "form.publish"},
	{"#/health", ".findings"},
}

// hostile are names and payloads that try to be something else than text. \u202e has
// what follows read from right to left; names hold no control characters, payloads do.
var hostile = struct{ channel, scope, eventType, payload string }{
	channel:   `<img src=x onerror="window.harmed=1">`,
	scope:     "\u202egnp.exe\u2066 <script>window.harmed=2</script> " + strings.Repeat("long", 30),
	eventType: `"><svg onload=window.harmed=3>`,
	payload:   "<script>window.harmed=4</script>\x00\x1b[31m\r\n\u202egpj\u2069 <a href='javascript:window.harmed=5'>x</a>",
}

// serveVariety serves streams of all kinds.
func serveVariety(t *testing.T) *server {
	t.Helper()
	s := serve(t, servicetest.Database{URL: "sqlite::memory:"})
	for i := range 12 {
		s.publish(text("chat/messages", "lobby", fmt.Sprint("frame ", i)))
	}
	s.publish(text("deployments", "", strings.Repeat("a very long line ", 400)))
	s.publish(clientlib.NewFrame{
		Stream:  clientlib.Stream{Channel: hostile.channel, Scope: hostile.scope},
		Payload: []byte(hostile.payload), EventType: hostile.eventType, ContentType: "text/html",
		Headers: map[string]string{"<b>name</b>": "<i>value\u202e</i>"},
	})
	s.publish(clientlib.NewFrame{
		Stream:  clientlib.Stream{Channel: "binary", Scope: "b"},
		Payload: []byte{0xff, 0xfe, 0x00, 0x01},
	})
	return s
}

// On a phone nothing is cut off or has to be scrolled to sideways, whatever the names;
// and what is to be touched is large enough (WCAG 2.5.8: 24 by 24).
func TestThePageFitsAPhone(t *testing.T) {
	t.Parallel()
	s := serveVariety(t)
	browser := browsertest.Start(t)
	page := s.console(browser, "")
	for _, width := range []int{320, 390} {
		page.Size(width, 800, true)
		for _, view := range views {
			page.Navigate(s.url + "/console/" + view.place)
			page.Wait(view.place+" is there", fmt.Sprintf("document.querySelector(%s)", js(view.has)))
			if got := browsertest.Eval[int](page, "document.documentElement.scrollWidth"); got > width {
				t.Errorf("%s is %d wide on a phone of %d: %v", view.place, got, width, browsertest.Eval[[]string](page, fmt.Sprintf(
					"[...document.querySelectorAll('*')].filter((e) => e.getBoundingClientRect().right > %d).map((e) => e.outerHTML.slice(0, 120)).slice(0, 5)", width)))
			}
			small := browsertest.Eval[[]string](page, `[...document.querySelectorAll("button, select, input, summary, nav a")]
				.map((e) => [e, e.getBoundingClientRect()]).filter(([e, r]) => r.width > 0 && (r.height < 24 || r.width < 24) && !e.closest("label")).map(([e]) => e.outerHTML.slice(0, 100))`)
			if len(small) > 0 {
				t.Errorf("%s has controls too small for a finger: %q", view.place, small)
			}
		}
	}
	hostileNames := fmt.Sprintf("#/stream?channel=%s&scope=%s", url.QueryEscape(hostile.channel), url.QueryEscape(hostile.scope))
	page.Navigate(s.url + "/console/" + hostileNames)
	page.Wait("the frame is there", `document.querySelector(".tail-list summary")`)
	page.Click(".tail-list summary")
	page.Wait("it is open", `document.querySelector(".tail-more pre")`)
	if got := browsertest.Eval[int](page, "document.documentElement.scrollWidth"); got > 390 {
		t.Errorf("an open frame is %d wide on a phone of 390", got)
	}
}

// contrasts lists text whose contrast is below WCAG's AA: 4.5, or 3 for large text.
const contrasts = `(() => {
	const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
	const rgba = (color) => {
		canvas.clearRect(0, 0, 1, 1);
		canvas.fillStyle = color;
		canvas.fillRect(0, 0, 1, 1);
		const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
		return [r, g, b, a / 255];
	};
	const over = (top, below) => top.slice(0, 3).map((c, i) => c * top[3] + below[i] * (1 - top[3]));
	const backgroundOf = (e) => {
		const layers = [];
		for (let at = e; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
		return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
	};
	const luminance = (c) => {
		const [r, g, b] = c.map((v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	};
	const bad = [];
	let looked = 0;
	const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let node = walker.nextNode(); node; node = walker.nextNode()) {
		const e = node.parentElement;
		if (!node.data.trim() || e.closest(":disabled, [aria-disabled=true], noscript") || !e.checkVisibility()) continue;
		const style = getComputedStyle(e);
		const below = backgroundOf(e);
		const [a, b] = [luminance(over(rgba(style.color), below)), luminance(below)].sort((x, y) => y - x);
		const size = parseFloat(style.fontSize);
		const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
		const contrast = (a + 0.05) / (b + 0.05);
		looked++;
		if (contrast < (large ? 3 : 4.5)) bad.push(contrast.toFixed(2) + " " + node.data.trim().slice(0, 40) + " <" + e.tagName + " " + e.className + ">");
	}
	return looked > 10 ? bad : ["only " + looked + " texts were looked at"];
})()`

// In light and dark all text is readable, and the switch beats the system.
func TestLightAndDarkAreReadable(t *testing.T) {
	t.Parallel()
	s := serveVariety(t)
	s.subscribe(clientlib.Stream{Channel: "chat/messages", Scope: "lobby"}, 1)
	page := s.console(browsertest.Start(t), "")
	page.Prefer("prefers-color-scheme", "light")
	background := func() string {
		t.Helper()
		return browsertest.Eval[string](page, "getComputedStyle(document.body).backgroundColor")
	}
	light := background()
	page.Prefer("prefers-color-scheme", "dark")
	page.Wait("the page follows the system", fmt.Sprintf("getComputedStyle(document.body).backgroundColor !== %s", js(light)))
	dark := background()
	choose := func(theme string) {
		t.Helper()
		page.Run(fmt.Sprintf(`(() => {
			const select = document.querySelector(".theme select");
			select.value = %s;
			select.dispatchEvent(new Event("change", { bubbles: true }));
		})()`, js(theme)))
	}
	for _, theme := range []string{"light", "dark"} {
		choose(theme)
		page.Reload()
		want := map[string]string{"light": light, "dark": dark}[theme]
		if got := background(); got != want {
			t.Errorf("chosen %s, and loaded anew, the background is %s, want %s", theme, got, want)
		}
		for _, view := range views {
			page.Navigate(s.url + "/console/" + view.place)
			page.Wait(view.place+" is there", fmt.Sprintf("document.querySelector(%s)", js(view.has)))
			page.Run("Promise.all(document.getAnimations().map((a) => a.finished))")
			if bad := browsertest.Eval[[]string](page, contrasts); len(bad) > 0 {
				t.Errorf("%s in %s: too little contrast: %q", view.place, theme, bad)
			}
		}
	}
	choose("system")
	page.Prefer("prefers-color-scheme", "light")
	page.Wait("without a choice it follows the system again", fmt.Sprintf("getComputedStyle(document.body).backgroundColor === %s", js(light)))
}

// Everything is reached and done with the keyboard alone, and where the focus is can be
// seen.
func TestTheKeyboardIsEnough(t *testing.T) {
	t.Parallel()
	s := serveVariety(t)
	page := s.console(browsertest.Start(t), "#/streams")
	page.Wait("the list is there", `document.querySelectorAll(".streams tbody a").length === 4`)
	focused := func() string {
		t.Helper()
		return browsertest.Eval[string](page, `(document.activeElement.labels?.[0]?.innerText || document.activeElement.ariaLabel || document.activeElement.innerText || "").trim()`)
	}
	// tabTo moves the focus on until it is on something, and checks that it is seen.
	tabTo := func(name string) {
		t.Helper()
		var passed []string
		for range 40 {
			page.Press(kb.Tab)
			at := focused()
			outlined := browsertest.Eval[bool](page, `(() => {
				const style = getComputedStyle(document.activeElement);
				return document.activeElement === document.body || (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2);
			})()`)
			if !outlined {
				t.Errorf("the focus on %q is not to be seen", at)
			}
			if strings.HasPrefix(at, name) {
				return
			}
			passed = append(passed, at)
		}
		t.Fatalf("the focus does not come to %q, but to %q", name, passed)
	}
	tabTo("Skip to the content")
	page.Press(kb.Enter)
	page.Wait("the content has the focus", `document.activeElement.id === "main"`)
	tabTo("Find")
	page.Press("lobby" + kb.Enter)
	page.Wait("the search has one stream", `document.querySelectorAll(".streams tbody a").length === 1`)
	tabTo("All")
	page.Press(kb.Enter)
	page.Wait("all are listed again", `document.querySelectorAll(".streams tbody a").length === 4`)
	// Back at the beginning, as the link that had the focus is gone or is not.
	page.Run("document.activeElement.blur()")
	tabTo("Skip to the content")
	page.Press(kb.Enter)
	tabTo("Subscribers")
	page.Press(kb.Enter)
	page.Wait("the table is in another order", `[...document.querySelectorAll("th[aria-sort]")].find((h) => h.ariaSort === "descending")?.innerText.startsWith("Subscribers")`)
	page.Run("document.querySelector('.streams tbody a').focus()")
	first := focused()
	page.Press(kb.ArrowDown)
	if second := focused(); second == first {
		t.Error("an arrow key does not move between the streams")
	}
	page.Press(kb.ArrowUp)
	if again := focused(); again != first {
		t.Errorf("the focus comes back to %q, want %q", again, first)
	}
	page.Run(`[...document.querySelectorAll(".streams tbody a")].find((a) => a.innerText.includes("chat/messages")).focus()`)
	page.Press(kb.Enter)
	page.Wait("the stream is open", shows(".tail-list", "frame 11"))
	page.Wait("the content has the focus", `document.activeElement.id === "main"`)
	tabTo("Frames, newest first")
	page.Press(kb.Tab + kb.Enter)
	page.Wait("the newest frame opens", shows(".tail-more", "frame 11"))
	tabTo("Text") // the choice of text or file
	tabTo("Text") // the text
	page.Press("typed with keys")
	tabTo("Publish")
	page.Press(kb.Enter)
	page.Wait("the frame was published", shows("form.publish .notice.good", "Published at"))
	page.Wait("and is in the tail", shows(".tail-list > li", "typed with keys"))
	unnamed := browsertest.Eval[[]string](page, `[...document.querySelectorAll("input, select, textarea, button, a[href]")]
		.filter((e) => !(e.labels?.length || e.ariaLabel || e.innerText.trim())).map((e) => e.outerHTML)`)
	if len(unnamed) > 0 {
		t.Errorf("controls without a name: %q", unnamed)
	}
}

// Names that differ are seen to differ, also where only spaces do, and a long one leaves
// room for the others.
func TestNamesAreToldApart(t *testing.T) {
	t.Parallel()
	s := serve(t, servicetest.Database{URL: "sqlite::memory:"})
	long := strings.Repeat("long", 60)
	for _, scope := range []string{"", "  ", "a b", "a  b", " a b", long + "1"} {
		s.publish(text("c", scope, "x"))
	}
	page := s.console(browsertest.Start(t), "#/streams")
	page.Wait("the list is there", `document.querySelectorAll(".streams tbody a").length === 6`)
	wide := browsertest.Eval[map[string]float64](page, `Object.fromEntries([...document.querySelectorAll(".streams .scope")].map((e) =>
		[e.innerText, e.getBoundingClientRect().width]))`)
	for _, scope := range []string{"no scope", `\u0020\u0020`, "a b", "a  b", `\u0020a b`} {
		if wide[scope] == 0 {
			t.Errorf("%q is not shown in %v", scope, wide)
		}
	}
	if wide["a  b"] <= wide["a b"] {
		t.Errorf("two spaces are shown as one: %v", wide)
	}
	for width, most := range map[int]int{1280: 90, 360: 190} {
		page.Size(width, 800, width < 500)
		if high := browsertest.Eval[int](page, `Math.max(...[...document.querySelectorAll(".streams tbody tr")].map((r) => r.offsetHeight))`); high > most {
			t.Errorf("on a screen of %d a long name makes a row %d high, want %d at most", width, high, most)
		}
	}
	if title := browsertest.Eval[string](page, `document.querySelector(".streams [title]").title`); !strings.HasSuffix(title, long+"1") {
		t.Errorf("the whole of a long name is %q", title)
	}
}

// Names and payloads are shown as what they are, and do nothing.
func TestHostileNamesAndPayloadsAreInert(t *testing.T) {
	t.Parallel()
	s := serveVariety(t)
	page := s.console(browsertest.Start(t), "#/streams")
	page.Wait("the list is there", `document.querySelectorAll(".streams tbody a").length === 4`)
	page.Wait("markup in a channel is text", shows(".streams", hostile.channel))
	page.Wait("what turns the direction is an escape", shows(".streams", `\u202egnp.exe\u2066 <script>`))
	page.Run(`[...document.querySelectorAll(".streams tbody a")].find((a) => a.innerText.includes("onerror")).click()`)
	page.Wait("its view is there", shows("#stream-title", hostile.channel))
	page.Wait("its frame is there", `document.querySelector(".tail-list summary")`)
	page.Click(".tail-list summary")
	page.Wait("the payload is text with escapes", shows(".tail-more pre", `<script>window.harmed=4</script>\u0000\u001b[31m\r`), `document.querySelector(".tail-more pre")?.innerText`)
	page.Wait("the event type is text", shows(".tail-more", hostile.eventType))
	page.Wait("headers are text", shows(".tail-more", `<i>value\u202e</i>`))
	page.Click(".stream-head .danger")
	page.Wait("the dialog names it as text", shows("dialog", `\u202egnp.exe`))
	page.Press(kb.Escape)
	if title := browsertest.Eval[string](page, "document.title"); strings.ContainsRune(title, '\u202e') {
		t.Errorf("the title turns its direction: %q", title)
	}
	raw := browsertest.Eval[[]string](page, `(() => {
		const bad = [];
		const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
		for (let n = walker.nextNode(); n; n = walker.nextNode()) if (/[\u202a-\u202e\u2066-\u2069\u0000\u001b]/.test(n.data)) bad.push(n.data);
		return bad;
	})()`)
	if len(raw) > 0 {
		t.Errorf("text acts on what stands around it: %q", raw)
	}
	if harm := browsertest.Eval[string](page, "String(window.harmed)"); harm != "undefined" {
		t.Errorf("a script of a publisher has run: %s", harm)
	}
	if made := browsertest.Eval[int](page, `document.querySelectorAll("main img, main script, main svg[onload], main a[href^=javascript]").length`); made != 0 {
		t.Errorf("%d elements of a publisher are in the page", made)
	}

	page.Navigate(s.url + "/console/#/stream?channel=binary&scope=b")
	page.Wait("its frame is there", `document.querySelector(".tail-list summary")`)
	page.Click(".tail-list summary")
	page.Wait("bytes that are no text are in hexadecimal", shows(".tail-more pre", "ff fe 00 01"))
	nothingForeign(t, page)

	// The policy is in force: what is written into the page does not run.
	page.Allow("Content Security Policy")
	page.Run(`(() => {
		const script = document.createElement("script");
		script.textContent = "window.harmed = 6";
		document.body.append(script);
	})()`)
	if harm := browsertest.Eval[string](page, "String(window.harmed)"); harm != "undefined" {
		t.Error("an inline script runs")
	}
}
