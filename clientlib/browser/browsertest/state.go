package browsertest

import (
	"context"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// Hide minimizes the window and waits until the page knows that nobody sees it.
func (p *Page) Hide() {
	p.t.Helper()
	p.window(browser.WindowStateMinimized)
	p.Wait("hiding the page", `document.visibilityState === "hidden"`)
}

// Show shows the window again and waits until the page knows.
func (p *Page) Show() {
	p.t.Helper()
	p.window(browser.WindowStateNormal)
	p.Wait("showing the page", `document.visibilityState === "visible"`)
}

func (p *Page) window(state browser.WindowState) {
	p.t.Helper()
	p.do("making the window "+string(state), chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		window, err := cdp.Call(ctx, tab, browser.GetWindowForTarget, browser.GetWindowForTargetParams{})
		if err != nil {
			return err
		}
		_, err = cdp.Call(ctx, tab, browser.SetWindowBounds, browser.SetWindowBoundsParams{
			WindowID: window.WindowID,
			Bounds:   &browser.Bounds{WindowState: state},
		})
		return err
	}))
}

// Freeze hides the page and stops it, as a browser does with one that nobody has seen for
// long: it is told, and nothing of it runs until [Page.Thaw]. Do not have it run anything
// meanwhile.
func (p *Page) Freeze() {
	p.t.Helper()
	p.Hide()
	p.lifecycle("frozen")
}

// Thaw has a frozen page run again, and leaves it hidden.
func (p *Page) Thaw() {
	p.t.Helper()
	p.lifecycle("active")
}

func (p *Page) lifecycle(state string) {
	p.t.Helper()
	p.do("making the page "+state, chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, page.SetWebLifecycleState, page.SetWebLifecycleStateParams{State: page.SetWebLifecycleStateState(state)})
		return err
	}))
}

// Offline tells the page that there is no network and has what it requests from then
// on fail; or gives it the network back. What is open already stays open: cut it at
// the server.
func (p *Page) Offline(offline bool) {
	p.t.Helper()
	p.do("going offline or online", chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		if _, err := cdp.Call(ctx, tab, network.Enable, network.EnableParams{}); err != nil {
			return err
		}
		conditions := []*network.Conditions{}
		if offline {
			conditions = append(conditions, &network.Conditions{Offline: true, DownloadThroughput: -1, UploadThroughput: -1})
		}
		_, err := cdp.Call(ctx, tab, network.EmulateNetworkConditionsByRule, network.EmulateNetworkConditionsByRuleParams{
			MatchedNetworkConditions: conditions,
		})
		if err != nil {
			return err
		}
		_, err = cdp.Call(ctx, tab, network.OverrideNetworkState, network.OverrideNetworkStateParams{
			Offline: offline, DownloadThroughput: -1, UploadThroughput: -1,
		})
		return err
	}))
}
