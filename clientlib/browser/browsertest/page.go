package browsertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// Page is a window of a [Browser] with one page in it.
type Page struct {
	t testing.TB
	// limited is the context of the tab, bounded by Patience.
	limited func() (context.Context, context.CancelFunc)
	console *console
	close   func()
}

func newPage(b *Browser) *Page {
	b.t.Helper()
	tab, closeTab := b.newTab()
	if err := chromedp.Do(tab); err != nil {
		b.t.Fatalf("opening a window: %v", err)
	}
	p := &Page{
		t: b.t,
		limited: func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(tab, Patience)
		},
		console: listen(b.t, tab),
	}
	closed := false
	p.close = func() {
		if closed {
			return
		}
		closed = true
		p.console.settle(p)
		closeTab()
		p.console.wait()
	}
	b.t.Cleanup(p.close)
	return p
}

// do runs actions in the page.
func (p *Page) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := p.limited()
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
}

// Allow lets the page write to its console what matches a regular expression, such
// as the browser's own word that a server was not reached. It holds for the whole
// life of the page, also for what was written before.
func (p *Page) Allow(pattern string) {
	p.t.Helper()
	p.console.allow(pattern)
}

// Navigate goes to an address and waits until the page is loaded.
func (p *Page) Navigate(url string) {
	p.t.Helper()
	p.do("opening "+url, chromedp.Navigate(url))
}

// Reload loads the page anew and waits until it is loaded.
func (p *Page) Reload() {
	p.t.Helper()
	p.do("reloading", chromedp.Reload())
}

// Back goes to the page before in the history, and does not wait for it: a browser that
// has kept the page as it was left does not load it. Wait for something of it.
func (p *Page) Back() {
	p.t.Helper()
	p.Run("history.back()")
}

// Close closes the window, once everything that the page has written to its console
// was judged. The end of the test does it, too.
func (p *Page) Close() { p.close() }

// Run runs JavaScript in the page and waits until it has run; a promise that it
// evaluates to is awaited.
func (p *Page) Run(script string) {
	p.t.Helper()
	p.do("running "+script, chromedp.Evaluate[chromedp.Void](script, chromedp.EvalAwaitPromise))
}

// Eval is the value of a JavaScript expression in the page, by way of JSON; a promise
// is awaited.
func Eval[T any](p *Page, expression string) T {
	p.t.Helper()
	value, err := evaluate[T](p, expression)
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

func evaluate[T any](p *Page, expression string) (T, error) {
	ctx, cancel := p.limited()
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// Wait waits until a JavaScript expression is true in the page, also across reloads,
// and also where the page is hidden. shown are expressions whose values are told if
// that does not happen.
func (p *Page) Wait(what, expression string, shown ...string) {
	p.t.Helper()
	deadline := time.Now().Add(Patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		// A page that is being replaced cannot answer; the next one can.
		holds, err := evaluate[bool](p, "Boolean("+expression+")")
		if err == nil && holds {
			return
		}
		if time.Now().After(deadline) {
			message := fmt.Sprintf("%s: %s did not become true within %v", what, expression, Patience)
			if err != nil {
				message += ": " + err.Error()
			}
			for _, expression := range shown {
				value, err := evaluate[string](p, "JSON.stringify("+expression+") ?? 'undefined'")
				message += fmt.Sprintf("\n%s = %s", expression, value)
				if err != nil {
					message += err.Error()
				}
			}
			p.t.Fatal(message)
		}
		<-tick.C
	}
}

// Text is the visible text of the first element that a CSS selector finds; it waits
// until there is one.
func (p *Page) Text(selector string) string {
	p.t.Helper()
	ctx, cancel := p.limited()
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Text(chromedp.CSS(selector)))
	if err != nil {
		p.t.Fatalf("reading %s: %v", selector, err)
	}
	return text
}

// Click clicks the first element that a CSS selector finds, as a mouse does; it waits
// until it is visible.
func (p *Page) Click(selector string) {
	p.t.Helper()
	p.do("clicking "+selector, chromedp.Click(chromedp.CSS(selector)))
}

// Type types into the first element that a CSS selector finds; "\r" is the Enter key.
func (p *Page) Type(selector, text string) {
	p.t.Helper()
	p.do("typing into "+selector, chromedp.SendKeys(chromedp.CSS(selector), text))
}

// Press presses keys where the focus is, such as kb.Tab of package chromedp/kb.
func (p *Page) Press(keys string) {
	p.t.Helper()
	p.do("pressing a key", chromedp.KeyEvent(keys))
}

// Size changes the size of what is shown, in CSS pixels; mobile has the page treated
// as on a phone.
func (p *Page) Size(width, height int, mobile bool) {
	p.t.Helper()
	var options []chromedp.EmulateViewportOption
	if mobile {
		options = append(options, chromedp.EmulateMobile, chromedp.EmulateTouch)
	}
	p.do("setting the size", chromedp.EmulateViewport(int64(width), int64(height), options...))
}

// Prefer sets a media feature that stands for a user's preference, such as
// "prefers-color-scheme" to "dark".
func (p *Page) Prefer(feature, value string) {
	p.t.Helper()
	p.do("preferring "+value, chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: feature, Value: value}},
		})
		return err
	}))
}

// Screenshot writes a picture of what is shown to a PNG file, whose directory is made
// if it is not there.
func (p *Page) Screenshot(path string) {
	p.t.Helper()
	ctx, cancel := p.limited()
	defer cancel()
	picture, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, picture, 0o644))
	}
	if err != nil {
		p.t.Fatalf("a screenshot for %s: %v", path, err)
	}
}
