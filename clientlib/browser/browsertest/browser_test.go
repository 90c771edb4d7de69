package browsertest_test

import (
	"fmt"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/fanfare-io/fanfare/clientlib/browser/browsertest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(run(func() int { return browsertest.Run(m) }))
}

// run is what goleak wants of a testing.M.
type run func() int

func (r run) Run() int { return r() }

// serve serves one page at every path.
func serve(t *testing.T, html string) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, html)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestAPageIsDrivenAndRead(t *testing.T) {
	page := browsertest.Start(t).Open(serve(t, `<!doctype html><link rel=icon href="data:,">
		<input id=name><button onclick="setTimeout(() => greeting.textContent = 'hello, ' + document.getElementById('name').value)">greet</button>
		<p id=greeting></p>`))
	page.Type("#name", "ann")
	page.Click("button")
	page.Wait("the greeting", `greeting.textContent !== ""`)
	if got := page.Text("#greeting"); got != "hello, ann" {
		t.Errorf("the page says %q", got)
	}
	if sum := browsertest.Eval[int](page, "Promise.resolve(1 + 2)"); sum != 3 {
		t.Errorf("1 + 2 = %d", sum)
	}
	page.Run("window.before = true")
	page.Reload()
	page.Wait("another document", "window.before === undefined")
}

func TestTestsKnowNothingOfEachOther(t *testing.T) {
	url := serve(t, `<!doctype html><link rel=icon href="data:,">`)
	first := browsertest.Start(t).Open(url)
	first.Run(`document.cookie = "who=ann"; localStorage.who = "ann"`)
	first.Reload()
	if got := browsertest.Eval[string](first, "document.cookie + localStorage.who"); got != "who=annann" {
		t.Errorf("the first page remembers %q", got)
	}
	second := browsertest.Start(t).Open(url)
	if got := browsertest.Eval[string](second, "document.cookie + localStorage.who"); got != "undefined" {
		t.Errorf("the second page knows %q", got)
	}
	first.Hide()
	if got := browsertest.Eval[string](second, "document.visibilityState"); got != "visible" {
		t.Errorf("when the first page is hidden the second one is %s", got)
	}
}

func TestAPageIsHiddenAndShown(t *testing.T) {
	page := browsertest.Start(t).Open(serve(t, `<!doctype html><link rel=icon href="data:,">
		<script>states = []; document.onvisibilitychange = () => states.push(document.visibilityState)</script>`))
	page.Hide()
	page.Show()
	if states := browsertest.Eval[[]string](page, "states"); len(states) != 2 || states[0] != "hidden" || states[1] != "visible" {
		t.Errorf("the page was told %q", states)
	}
}

func TestAPageIsFrozenAndThawed(t *testing.T) {
	page := browsertest.Start(t).Open(serve(t, `<!doctype html><link rel=icon href="data:,">
		<script>states = []; document.onfreeze = document.onresume = (event) => states.push(event.type)</script>`))
	page.Freeze()
	page.Thaw()
	page.Wait("both events", `states.join() === "freeze,resume"`, "states")
	page.Show()
}

func TestAPageIsSeen(t *testing.T) {
	page := browsertest.Start(t).Open(serve(t, `<!doctype html><link rel=icon href="data:,"><meta name=viewport content="width=device-width">`))
	page.Size(390, 700, true)
	page.Prefer("prefers-color-scheme", "dark")
	page.Wait("the preference", `matchMedia("(prefers-color-scheme: dark)").matches`)
	path := filepath.Join(t.TempDir(), "images", "page.png")
	page.Screenshot(path)
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if picture, err := png.DecodeConfig(file); err != nil || picture.Width != 390 || picture.Height != 700 {
		t.Errorf("the picture is %dx%d, %v", picture.Width, picture.Height, err)
	}
}

func TestAPageIsTakenOffline(t *testing.T) {
	page := browsertest.Start(t).Open(serve(t, `<!doctype html><link rel=icon href="data:,">
		<script>states = []; ononline = onoffline = (event) => states.push(event.type)</script>`))
	page.Allow("ERR_INTERNET_DISCONNECTED")
	for _, want := range []string{"failed", "answered"} {
		offline := want == "failed"
		page.Offline(offline)
		if got := browsertest.Eval[string](page, `fetch("/").then(() => "answered", () => "failed")`); got != want {
			t.Errorf("offline is %v, and a request %s", offline, got)
		}
	}
	page.Wait("both events", `states.join() === "offline,online"`, "states")
}

// report records how a test would have failed.
type report struct {
	testing.TB
	failures []string
	cleanups []func()
}

func (r *report) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *report) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func TestWhatIsWrittenToTheConsoleFailsTheTest(t *testing.T) {
	url := serve(t, `<!doctype html><link rel=icon href="data:,"><script>
		console.log("all is well");
		console.error("not so well");
		console.warn("beware of the dog");
		Promise.reject(new Error("nobody caught this"));
		throw new Error("thrown");
	</script>`)
	report := &report{TB: t}
	page := browsertest.Start(report).Open(url)
	page.Allow("of the d.g")
	for i := len(report.cleanups) - 1; i >= 0; i-- {
		report.cleanups[i]()
	}
	got := strings.Join(report.failures, "\n")
	for _, want := range []string{"error: not so well", "exception: Uncaught (in promise) Error: nobody caught this", "exception: Uncaught Error: thrown"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q did not fail the test; failures:\n%s", want, got)
		}
	}
	if len(report.failures) != 3 {
		t.Errorf("also what was allowed, or no error, failed the test:\n%s", got)
	}
}
