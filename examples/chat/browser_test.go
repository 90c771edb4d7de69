package main

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/clientlib/browser/browsertest"
)

// What a page shows.
const (
	live      = `document.querySelector("#status").dataset.state === "live"`
	sequences = `[...document.querySelectorAll("#messages .message")].map((m) => Number(m.dataset.sequence))`
	badges    = `[...document.querySelectorAll("#rooms .unread")].map((b) => b.textContent)`
	notes     = `[...document.querySelectorAll("#messages .note")].map((n) => n.textContent)`
)

func shows(body string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("#messages .body")].some((b) => b.textContent === %q)`, body)
}

// lost is what a browser writes to the console when a server has gone away.
const lost = `ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_EMPTY_RESPONSE|ERR_CONNECTION|502|504`

// open opens a room and waits until its page is connected.
func (s *site) open(t *testing.T, b *browsertest.Browser, room, name string) *browsertest.Page {
	t.Helper()
	page := b.Blank()
	page.Allow(lost)
	page.Navigate(s.url + "/rooms/lobby/history") // of the same origin, without a script
	page.Run(fmt.Sprintf("localStorage.setItem('chat name', %q)", name))
	page.Navigate(s.url + "/rooms/" + room)
	page.Wait(name+"'s page is connected", live)
	return page
}

// expectAll waits for the last message, and checks that the page shows all up to it,
// each once and in order.
func expectAll(t *testing.T, page *browsertest.Page, what string, last int) {
	t.Helper()
	page.Wait(what, fmt.Sprintf("%s.at(-1) >= %d", sequences, last), sequences, notes)
	got := browsertest.Eval[[]int](page, sequences)
	for i, sequence := range got {
		if sequence != got[0]+i {
			t.Fatalf("%s: the page shows %v", what, got)
		}
	}
	if len(got) < min(last, historyLength) {
		t.Fatalf("%s: the page shows %v of %d messages", what, got, last)
	}
}

func replicaOf(page *browsertest.Page) string {
	_, name, _ := strings.Cut(page.Text("#status"), "replica ")
	return name
}

// Everything runs as it does for make chat: three replicas, two servers and nginx.
func TestChatInBrowsers(t *testing.T) {
	s := startDemo(t)
	one, other := browsertest.Start(t), browsertest.Start(t)
	s.messagesAndTypingCrossReplicas(t, one, other)
	s.aPageMadeBeforeMissesNothing(t, one)
	s.aPageLoadedAgainDuringTrafficMissesNothing(t, one)
	s.unreadMessagesAreCounted(t, one)
	s.anEventSourceAloneOutlivesItsReplica(t, one)
	s.aHiddenPageCatchesUp(t, other)
	s.aQuietPageStays(t, one)
	s.aPageWaitsForAReplica(t, other)
}

func (s *site) messagesAndTypingCrossReplicas(t *testing.T, one, other *browsertest.Browser) {
	t.Helper()
	ann := s.open(t, one, "lobby", "Ann")
	ben := s.open(t, other, "lobby", "Ben")
	defer ann.Close()
	defer ben.Close()
	if a, b := replicaOf(ann), replicaOf(ben); a == b || a == "" || b == "" {
		t.Errorf("Ann is served by replica %q, Ben by %q", a, b)
	}
	ann.Wait("Ann sees Ben", `document.querySelector("#people").textContent.includes("Ben")`)
	ben.Wait("Ben sees Ann", `document.querySelector("#people").textContent.includes("Ann")`)
	ann.Type("#text", "Hello, Ben")
	ben.Wait("Ben sees Ann type", `document.querySelector("#typing").textContent === "Ann is typing…"`)
	ann.Press("\r")
	for _, page := range []*browsertest.Page{ann, ben} {
		page.Wait("the message", shows("Hello, Ben"))
		page.Wait("nobody types", `document.querySelector("#typing").textContent === ""`)
	}
	// Markup is text, in both directions, and a name is no more trusted than a text.
	markup := `<img src=x onerror="document.title='owned'"><b>bold</b>`
	ben.Run(`const name = document.querySelector("#name"); name.value = "<i>Ben</i>"; name.dispatchEvent(new Event("change"))`)
	ben.Type("#text", markup+"\r")
	for _, page := range []*browsertest.Page{ann, ben} {
		page.Wait("the message as text", shows(markup))
	}
	ann.Wait("the new name as text", `document.querySelector("#people").textContent.includes("<i>Ben</i>")`)
	if n := browsertest.Eval[int](ann, `document.querySelectorAll("#messages b, #messages i, #messages img, #people i").length`); n != 0 {
		t.Errorf("%d elements came out of messages and names", n)
	}
	expectAll(t, ann, "all messages", 2)

	// As after a gap.
	ann.Run(`import("/static/messages.js").then(({ refill }) => refill())`)
	ann.Wait("the history that was read again", notes+`.some((n) => n.includes("the history was read again"))`, notes)
	ben.Type("#text", "And then?\r")
	ann.Wait("what comes after it", shows("And then?"))
	expectAll(t, ann, "the history and what came after it", 3)

	// As after a second gap while the history is read: what is between it and the gap is in
	// neither, unless it is read once more.
	ann.Run(`
		document.querySelectorAll("#messages .note").forEach((note) => note.remove());
		window.asked = [];
		const real = window.fetch;
		window.fetch = (url, options) => !url.endsWith("/history") ? real(url, options) : new Promise((resolve) => {
			asked.push({ limited: options?.signal instanceof AbortSignal, go: () => resolve(real(url, options)) });
		});
		import("/static/messages.js").then(({ refill }) => { refill(); refill(); })`)
	ann.Wait("the history is asked for", "asked.length === 1")
	ann.Run("asked[0].go()")
	ann.Wait("the history is asked for once more", "asked.length === 2 && asked.every(({ limited }) => limited)", "asked")
	ann.Run("asked[1].go()")
	ann.Wait("the history that was read again", notes+`.some((n) => n.includes("the history was read again"))`, notes)
	expectAll(t, ann, "the history that was read twice", 3)
}

// The page has the messages, and the position, of when it was made. What is written
// before it subscribes, which here is long after, is missing in neither.
func (s *site) aPageMadeBeforeMissesNothing(t *testing.T, b *browsertest.Browser) {
	t.Helper()
	for i, test := range []struct{ before, after int }{{0, 3}, {2, 3}} {
		room := []string{"engine-room", "kitchen"}[i]
		s.post(t, room, bodies("before", test.before)...)
		_, stale := request(t, http.MethodGet, s.url+"/rooms/"+room, "")
		s.post(t, room, bodies("after", test.after)...)

		page := b.Open(s.url + "/rooms/lobby/history")
		defer page.Close()
		page.Run(fmt.Sprintf("document.open(); document.write(%q); document.close()", stale))
		page.Wait("the old page is connected", live)
		expectAll(t, page, "an old page", test.before+test.after)
	}
}

func bodies(prefix string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%s %d", prefix, i))
	}
	return all
}

func (s *site) aPageLoadedAgainDuringTrafficMissesNothing(t *testing.T, b *browsertest.Browser) {
	t.Helper()
	page := s.open(t, b, "garden", "Ann")
	defer page.Close()
	done := make(chan struct{})
	var traffic errgroup.Group
	written := 0
	traffic.Go(func() error {
		pace := time.NewTicker(20 * time.Millisecond)
		defer pace.Stop()
		for {
			select {
			case <-done:
				return nil
			case <-pace.C:
			}
			status, answer := request(t, http.MethodPost, s.url+"/rooms/garden/messages", messageJSON(newKey(), "Ben", fmt.Sprint("message ", written)))
			if status != http.StatusCreated {
				return fmt.Errorf("a message is answered %d %s", status, answer)
			}
			written++
		}
	})
	for range 3 {
		page.Reload()
		page.Wait("the page is connected", live)
		seen := browsertest.Eval[int](page, sequences+".at(-1) ?? 0")
		expectAll(t, page, "after a reload", seen+3)
	}
	close(done)
	if err := traffic.Wait(); err != nil {
		t.Fatal(err)
	}
	expectAll(t, page, "in the end", written)
}

func (s *site) unreadMessagesAreCounted(t *testing.T, b *browsertest.Browser) {
	t.Helper()
	page := s.open(t, b, "lobby", "Ann")
	defer page.Close()
	badge := func(room, text string) string {
		return fmt.Sprintf(`document.querySelector("#rooms a[data-room='%s'] .unread").textContent === %q`, room, text)
	}
	s.post(t, "kitchen", "one", "two")
	page.Wait("two unread messages", badge("kitchen", "2"), badges, "localStorage")
	page.Click(`#rooms a[data-room="kitchen"]`)
	page.Wait("the other room's page", live+" && "+shows("two"))
	s.post(t, "lobby", "three")
	page.Wait("one unread message", badge("lobby", "1")+" && "+badge("kitchen", "0"))
}

// EventSource comes back by itself, at another replica, after the last message that it
// saw: ephemeral frames have moved nothing. The page does nothing but listen.
func (s *site) anEventSourceAloneOutlivesItsReplica(t *testing.T, b *browsertest.Browser) {
	t.Helper()
	page := s.open(t, b, "kitchen", "Ann")
	defer page.Close()
	page.Run(`
		window.seen = [];
		window.source = new EventSource("/window/alone/v1/streams?channel=chat%2Fmessages&scope=kitchen&from=live");
		const take = ({ type, data, lastEventId }) => seen.push({ type, id: lastEventId, body: JSON.parse(data).body });
		source.addEventListener("message", take);
		source.addEventListener("activity", take);
		window.replicas = [];
		source.addEventListener("open", () => replicas.push(/chat_replica_alone=(\w+)/.exec(document.cookie)[1]));
		new Promise((resolve) => source.addEventListener("fanfare.caught_up", resolve, { once: true }))`)
	s.post(t, "kitchen", "first")
	page.Wait("the first message", `seen.some(({ body }) => body === "first")`)
	page.Run(`window.before = seen.length`)
	if status, _ := request(t, http.MethodPost, s.url+"/rooms/kitchen/activity", `{"kind":"typing","name":"Ben"}`); status != http.StatusNoContent {
		t.Fatalf("typing is answered %d", status)
	}
	page.Wait("somebody types", `seen.slice(before).some(({ type }) => type === "activity")`)
	page.Wait("the id is still that of the message", `seen.at(-1).id === seen.findLast(({ body }) => body === "first").id`, "seen")

	serving := browsertest.Eval[string](page, "replicas[0]")
	if status, answer := request(t, http.MethodPost, s.url+"/demo/replicas/"+serving+"/kill", ""); status != http.StatusNoContent {
		t.Fatalf("killing replica %s is answered %d %s", serving, status, answer)
	}
	want := []string{"first", "while nobody serves it 0", "while nobody serves it 1", "while nobody serves it 2"}
	s.post(t, "kitchen", want[1:]...)
	page.Wait("the messages after the kill", `seen.some(({ body }) => body === "while nobody serves it 2")`, "seen", "replicas")
	got := browsertest.Eval[[]string](page, `seen.filter(({ type }) => type === "message").map(({ body }) => body)`)
	if !slices.Equal(got, want) {
		t.Errorf("the messages are %q, want %q", got, want)
	}
	served := browsertest.Eval[[]string](page, "replicas")
	if len(served) != 2 || served[1] == serving || served[1] == "" {
		t.Errorf("it was connected to the replicas %q", served)
	}
	page.Wait("the page has them, too", shows(want[3])+" && "+live)
}

// The replica that serves the page dies while nobody looks at it.
func (s *site) aHiddenPageCatchesUp(t *testing.T, b *browsertest.Browser) {
	t.Helper()
	page := s.open(t, b, "lobby", "Ann")
	defer page.Close()
	last := browsertest.Eval[int](page, sequences+".at(-1)")
	page.Hide()
	serving := replicaOf(page)
	if status, answer := request(t, http.MethodPost, s.url+"/demo/replicas/"+serving+"/kill", ""); status != http.StatusNoContent {
		t.Fatalf("killing replica %q is answered %d %s", serving, status, answer)
	}
	s.post(t, "lobby", bodies("while hidden", 5)...)
	page.Show()
	expectAll(t, page, "the shown page", last+5)
	page.Wait("it says that it went on elsewhere", notes+`.some((n) => n.includes("is gone. This page goes on at replica"))`, notes)
	if now := replicaOf(page); now == serving || now == "" {
		t.Errorf("the page says that replica %q serves it", now)
	}
}

// Symptom: with all replicas killed a page wrote, time and again, that it went on and missed
// nothing. Cause: it took an open connection for that, and nginx opens one in order to say
// when to come again.
func (s *site) aPageWaitsForAReplica(t *testing.T, b *browsertest.Browser) {
	t.Helper()
	page := s.open(t, b, "lobby", "Ann")
	defer page.Close()
	// EventSource tells of each connection that it opens; so does the page's own.
	page.Run(`
		window.opened = 0;
		new EventSource("/window/alone/v1/streams?channel=chat%2Fmessages&scope=lobby&from=live").addEventListener("open", () => opened++)`)
	page.Wait("another EventSource is connected", "opened === 1")
	for name := range s.replicas(t) {
		if status, answer := request(t, http.MethodPost, s.url+"/demo/replicas/"+name+"/kill", ""); status != http.StatusNoContent {
			t.Fatalf("killing replica %s is answered %d %s", name, status, answer)
		}
	}
	page.Wait("nginx has opened connections for nothing", "opened >= 4", "opened")
	if got := browsertest.Eval[[]string](page, notes); len(got) != 0 {
		t.Errorf("while no replica runs the page says %q", got)
	}
	if browsertest.Eval[bool](page, live) {
		t.Errorf("while no replica runs the page says %q", page.Text("#status"))
	}
}

// For longer than nginx waits by default for a server that says nothing, nothing is
// written. In the short form it is for a moment only.
func (s *site) aQuietPageStays(t *testing.T, b *browsertest.Browser) {
	t.Helper()
	page := s.open(t, b, "engine-room", "Ann")
	defer page.Close()
	if os.Getenv("FANFARE_LONG") != "" {
		<-time.After(70 * time.Second)
	}
	last := browsertest.Eval[int](page, sequences+".at(-1)")
	s.post(t, "engine-room", "at last")
	expectAll(t, page, "after the silence", last+1)
	if got := browsertest.Eval[[]string](page, notes); len(got) != 0 {
		t.Errorf("the page says %q", got)
	}
}
