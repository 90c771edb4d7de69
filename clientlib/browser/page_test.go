package browser_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/browser/browsertest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// A page that is rendered with what is stored and the position after it is stale when
// it has arrived. What was published meanwhile must reach it, and nothing twice.
func TestAPageBornStaleMissesNothing(t *testing.T) {
	w := newWorld(t, nil)
	w.pages.HandleFunc("/rendered", func(rw http.ResponseWriter, r *http.Request) {
		position := w.publish("rendered 1", "rendered 2")
		servePage(rw, r)
		fmt.Fprintf(rw, "<script>rendered = %q</script>", position)
		// Before the page has read a byte.
		w.publish("meanwhile 1", "meanwhile 2")
	})
	want := []string{"meanwhile 1", "meanwhile 2", "then 1", "then 2"}
	chromium := browsertest.Start(t)
	for name, follow := range map[string]string{
		"the module":  "follow(" + source + ", {after: rendered})",
		"over fetch":  "follow(" + source + `, {after: rendered, transport: "fetch"})`,
		"EventSource": `listen("` + address + `&after=" + rendered)`,
	} {
		page := chromium.Open(w.url + "/rendered")
		page.Wait("the module", "window.ready")
		w.publish("then 1")
		page.Run(follow)
		page.Wait("what is stored", `told.some((line) => line.startsWith("caughtup"))`)
		w.publish("then 2")
		expect(t, name+" got", awaitLast(page, "then 2"), want)
		page.Close()
	}
}

// A page keeps in the session what it has shown and the position after it, and goes on
// from there when it is loaded again, while frames are published all the time.
func TestAPageReloadedDuringTrafficMissesNothing(t *testing.T) {
	w := newWorld(t, nil)
	w.pages.HandleFunc("/kept", func(rw http.ResponseWriter, r *http.Request) {
		servePage(rw, r)
		fmt.Fprintf(rw, `<script type=module>
			window.kept = JSON.parse(sessionStorage.getItem("kept") ?? '{"shown": []}');
			follow(%s, {after: kept.position, onframe(frame) {
				kept.shown.push(frame.text);
				kept.position = frame.position;
				sessionStorage.setItem("kept", JSON.stringify(kept));
			}});
		</script>`, source)
	})
	page := browsertest.Start(t).Open(w.url + "/kept")

	stop := make(chan struct{})
	published := 0
	var traffic errgroup.Group
	traffic.Go(func() error {
		for {
			select {
			case <-stop:
				return nil
			default:
			}
			_, err := w.client.Publish(t.Context(), clientlib.NewFrame{Stream: lobby, Payload: []byte(strconv.Itoa(published + 1))})
			if err != nil {
				return err
			}
			published++
		}
	})
	for range 6 {
		shown := browsertest.Eval[int](page, "kept.shown.length")
		page.Wait("frames", fmt.Sprintf("kept.shown.length > %d", shown+5))
		page.Reload()
	}
	close(stop)
	if err := traffic.Wait(); err != nil {
		t.Fatal(err)
	}
	page.Wait("the last frame", fmt.Sprintf("kept.shown.at(-1) === %q", strconv.Itoa(published)), "kept.shown.length")
	expect(t, "over all its lives the page got", browsertest.Eval[[]string](page, "kept.shown"), numbers(1, published))
}

func TestEphemeralFramesDoNotMoveThePosition(t *testing.T) {
	chromium := browsertest.Start(t)
	for name, follow := range map[string]string{
		"the module":  "follow(" + source + ")",
		"EventSource": `listen("` + address + `")`,
	} {
		w := newWorld(t, nil)
		page := chromium.Open(w.url)
		page.Wait("the module", "window.ready")
		page.Allow(cutOff)
		page.Run(follow)
		first := w.publish("one").String()
		awaitLast(page, "one")
		publishFrame(t, w.client, clientlib.NewFrame{Stream: lobby, Payload: []byte("typing"), Ephemeral: true})
		awaitLast(page, "typing")
		want := []string{first, first}
		if name == "the module" {
			want[1] = "ephemeral"
			if got := browsertest.Eval[string](page, "subscription.position"); got != first {
				t.Errorf("after the ephemeral frame the position is %s, want %s", got, first)
			}
		}
		expect(t, name+" was told the positions", browsertest.Eval[[]string](page, "positions"), want)

		// The page comes back after the durable frame: not before, which would repeat it,
		// and not behind what follows.
		w.server.CloseClientConnections()
		page.Wait("the end of the connection", `told.includes("waiting")`)
		w.publish("two")
		expect(t, name+" got", awaitLast(page, "two"), []string{"one", "typing", "two"})
		page.Close()
	}
}

func TestPayloadsArriveByteByByte(t *testing.T) {
	w := newWorld(t, nil)
	page := open(t, w.url)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	payloads := [][]byte{
		every, nil, []byte("\uFEFFmarked"), []byte("a\rb\r\nc\n\nd\n"), []byte("nul\x00"), []byte("\u2028\u0085 𝄞"),
		[]byte("x\ndata: forged\n\nid: 1-1"), []byte("cut \xe2\x82"),
	}
	for _, transport := range []string{"undefined", `"fetch"`} {
		page.Run("bytes = []; follow(" + source + ", {from: 'live', transport: " + transport + ", onframe: (frame) => bytes.push([frame.eventType, frame.headers, ...frame.payload])})")
		page.Wait("the beginning", `told.some((line) => line.startsWith("caughtup"))`)
		var want []any
		for i, payload := range payloads {
			eventType, header := "fanfarer", strconv.Itoa(i)+"\r\ndata: forged\n\n"
			publishFrame(t, w.client, clientlib.NewFrame{Stream: lobby, Payload: payload, EventType: eventType, Headers: map[string]string{"n": header}})
			line := []any{eventType, map[string]string{"n": header}}
			for _, b := range payload {
				line = append(line, b)
			}
			want = append(want, line)
		}
		page.Wait("all frames", fmt.Sprintf("bytes.length === %d", len(payloads)), "bytes.length")
		wanted, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if got := browsertest.Eval[string](page, "JSON.stringify(bytes)"); got != string(wanted) {
			t.Errorf("over transport %s the page got\n%s\nwant\n%s", transport, got, wanted)
		}
		page.Run("subscription.close()")
	}
}

// Payloads of the largest size, text and bytes, are the same ones in a page, also when many
// follow each other.
func TestTheLargestPayloadsArrive(t *testing.T) {
	w := newWorld(t, nil)
	text := bytes.Repeat([]byte("a line, and “quotes”\n"), backlog.DefaultMaxFrameBytes/25)
	noise := make([]byte, backlog.DefaultMaxFrameBytes)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	var want []string
	for range 2 {
		for _, payload := range [][]byte{text, noise} {
			want = append(want, fmt.Sprintf("%x", sha256.Sum256(payload)))
			publishFrame(t, w.client, clientlib.NewFrame{Stream: lobby, Payload: payload})
		}
	}
	page := open(t, w.url)
	for _, transport := range []string{"undefined", `"fetch"`} {
		page.Run("payloads = []; follow(" + source + ", {transport: " + transport + ", onframe: ({payload}) => payloads.push(payload)})")
		page.Wait("all frames", fmt.Sprintf("payloads.length === %d", len(want)), "payloads.length", "told")
		expect(t, "over transport "+transport+" the digests are", browsertest.Eval[[]string](page, `Promise.all(payloads.map(async (payload) =>
			Array.from(new Uint8Array(await crypto.subtle.digest("SHA-256", payload)), (byte) => byte.toString(16).padStart(2, "0")).join("")))`), want)
		page.Run("subscription.close()")
	}
}

// A site may move its streams: where the browser is led to is where the page goes, also when
// it comes back.
func TestAnAddressThatLeadsElsewhereIsFollowed(t *testing.T) {
	w := newWorld(t, nil)
	w.pages.HandleFunc("/old/v1/streams", func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, "/v1/streams?"+r.URL.RawQuery, http.StatusTemporaryRedirect)
	})
	chromium := browsertest.Start(t)
	for _, transport := range []string{"undefined", `"fetch"`} {
		page := chromium.Open(w.url)
		page.Wait("the module", "window.ready")
		page.Allow(cutOff)
		page.Run("follow(" + source + ", {from: 'live', server: '/old/', transport: " + transport + "})")
		page.Wait("the beginning", `told.at(-1)?.startsWith("caughtup")`, "told")
		w.publish("one")
		awaitLast(page, "one")
		w.server.CloseClientConnections()
		page.Wait("the end of the connection", `told.includes("waiting")`, "told")
		w.publish("two")
		expect(t, "over transport "+transport+" the page got", awaitLast(page, "two"), []string{"one", "two"})
		page.Close()
	}
}

func TestAPageIsToldOfAGapAndOfTheEnd(t *testing.T) {
	w := newWorld(t, nil)
	first := w.publish("one")
	w.publish("two")
	closeStream(t, w)
	reopened := w.publish("again")
	begun := clientlib.Position{Epoch: reopened.Epoch}
	page := open(t, w.url)
	page.Run(fmt.Sprintf("follow(%s, {after: %q})", source, first))
	expect(t, "the page got", awaitLast(page, "again"), []string{"again"})
	page.Wait("what is stored", `told.at(-1).startsWith("caughtup")`, "told")
	expect(t, "and was told", browsertest.Eval[[]string](page, "told"),
		[]string{"connecting", "open", "gap EPOCH_CHANGED " + begun.String(), "frame again", "caughtup " + reopened.String()})

	closeStream(t, w)
	page.Wait("the end", `subscription.status.state === "ended"`, "told")
	expect(t, "at the end it was told", browsertest.Eval[[]string](page, "told.slice(-2)"), []string{"closed " + reopened.String(), "ended"})

	for _, transport := range []string{"undefined", `"fetch"`} {
		page.Run(fmt.Sprintf("follow(%s, {after: %q, transport: %s})", source, reopened, transport))
		page.Wait("the end", `subscription.status.state === "ended"`, "told")
		expect(t, "of a stream that is closed it is told", browsertest.Eval[[]string](page, "told.slice(-2)"), []string{"closed " + reopened.String(), "ended"})
	}
}

func closeStream(t testing.TB, w *world) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), browsertest.Patience)
	defer cancel()
	if _, err := w.replica.Client.CloseStream(ctx, &fanfarev1.CloseStreamRequest{Channel: lobby.Channel, Scope: lobby.Scope}); err != nil {
		t.Fatal(err)
	}
}

// A page that comes before the first frame stands at 0-0. What begins while it is away
// reaches it.
func TestAPageOfAStreamThatHasNotBegunMissesNothing(t *testing.T) {
	w := newWorld(t, nil)
	chromium := browsertest.Start(t)
	for n, follow := range []string{
		"follow(%s)", "follow(%s, {after: '0-0'})", "follow(%s, {transport: 'fetch'})",
	} {
		stream := clientlib.Stream{Channel: "new", Scope: strconv.Itoa(n)}
		publishNew := func(payload string, ephemeral bool) {
			publishFrame(t, w.client, clientlib.NewFrame{Stream: stream, Payload: []byte(payload), Ephemeral: ephemeral})
		}
		page := chromium.Open(w.url)
		page.Wait("the module", "window.ready")
		page.Allow(cutOff)
		page.Run(fmt.Sprintf(follow, fmt.Sprintf("{channel: 'new', scope: '%d'}", n)))
		page.Wait("the beginning", `told.at(-1)?.startsWith("caughtup")`, "told")
		// As if its user had left it.
		page.Run("dispatchEvent(new Event('pagehide'))")
		w.awaitConnections(0)
		publishNew("typing", true)
		publishNew("one", false)
		page.Run("dispatchEvent(new Event('pageshow'))")
		awaitLast(page, "one")
		publishNew("two", false)
		expect(t, follow+" got", awaitLast(page, "two"), []string{"one", "two"})
		page.Close()
	}
}
