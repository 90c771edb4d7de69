package browsertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// Patience bounds each wait.
const Patience = 30 * time.Second

// Browser is a headless Chromium of one test.
type Browser struct {
	t testing.TB
	// newTab returns the context of a new tab, which ends with the browser, and what
	// closes the tab.
	newTab func() (context.Context, context.CancelFunc)
}

// Option changes how [Start] starts Chromium.
type Option func() []chromedp.ExecAllocatorOption

// TrustEverybody has the browser take certificates that nobody vouches for, such as
// those of httptest.
func TrustEverybody() []chromedp.ExecAllocatorOption {
	return []chromedp.ExecAllocatorOption{chromedp.IgnoreCertErrors}
}

// Flag gives Chromium a flag, without its dashes: a value, or true for one without.
func Flag(name string, value any) Option {
	return func() []chromedp.ExecAllocatorOption {
		return []chromedp.ExecAllocatorOption{chromedp.Flag(name, value)}
	}
}

// Start starts a browser, which ends with the test. Each has a profile of its own:
// no cookie, cache or connection of another test. Where [Run] runs the tests, those
// without options have one Chromium in common, as windows that know nothing of each
// other.
func Start(t testing.TB, options ...Option) *Browser {
	t.Helper()
	if len(options) == 0 && common.used() {
		profile, leave, err := common.profile()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(leave)
		return newBrowser(t, profile)
	}
	ctx, end, err := start(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Logf("Chromium had to be killed: %v", err)
		}
	})
	return newBrowser(t, ctx)
}

func newBrowser(t testing.TB, ctx context.Context) *Browser {
	t.Helper()
	// The first use of a context bounds the life of what it makes, so it has no deadline.
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("opening a window: %v", err)
	}
	return &Browser{t: t, newTab: func() (context.Context, context.CancelFunc) { return chromedp.NewContext(ctx) }}
}

// start starts Chromium, and returns its context and what ends it.
func start(options []Option) (_ context.Context, end func() error, _ error) {
	program := os.Getenv("FANFARE_TEST_CHROMIUM")
	if program == "" {
		return nil, nil, errors.New("FANFARE_TEST_CHROMIUM names no Chromium: run make test, which fetches one")
	}
	if _, err := os.Stat(program); err != nil {
		return nil, nil, fmt.Errorf("FANFARE_TEST_CHROMIUM: %w; run make test, which fetches one", err)
	}
	settings := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(program),
		chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-sync", true),
		// /dev/shm is small in containers.
		chromedp.Flag("disable-dev-shm-usage", true),
		// The same picture on every machine.
		chromedp.Flag("force-color-profile", "srgb"),
		chromedp.Flag("hide-scrollbars", true),
		chromedp.WindowSize(1280, 800),
	}
	for _, option := range options {
		settings = append(settings, option()...)
	}
	allocator, free := chromedp.NewExecAllocator(context.Background(), settings...)
	ctx, _ := chromedp.NewContext(allocator, chromedp.WithErrorf(func(string, ...any) {}))
	if err := chromedp.Do(ctx); err != nil {
		free()
		return nil, nil, fmt.Errorf("starting %s: %w", program, err)
	}
	return ctx, func() error {
		defer free()
		limited, stop := context.WithTimeout(ctx, 10*time.Second)
		defer stop()
		if err := chromedp.Cancel(limited); !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}, nil
}

// Open opens a page in a new window and waits until it is loaded.
func (b *Browser) Open(url string) *Page {
	b.t.Helper()
	page := b.Blank()
	page.Navigate(url)
	return page
}

// Blank opens an empty page in a new window, for what must be set before a page is
// loaded.
func (b *Browser) Blank() *Page {
	b.t.Helper()
	return newPage(b)
}
