package browser_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/browser/browsertest"
)

var blocks = regexp.MustCompile("(?s)```(html|js)\n(.*?)```")

// Every example of the manual is run in a page as it stands, with what it takes from its
// surroundings defined.
func TestTheExamplesOfTheManual(t *testing.T) {
	manual, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, nil)
	position := w.publish(`{"text": "one"}`, `{"text": "two"}`)
	w.pages.HandleFunc("POST /v1/signed-url", func(rw http.ResponseWriter, r *http.Request) {
		var request struct{ Streams []clientlib.Stream }
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil || len(request.Streams) != 1 || request.Streams[0] != lobby {
			http.Error(rw, "not the lobby", http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(rw).Encode(map[string]string{"url": address})
	})
	w.pages.HandleFunc("POST /v1/publish", func(rw http.ResponseWriter, r *http.Request) {
		var request struct {
			Frame struct {
				Channel, Scope string
				Payload        []byte
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		f := request.Frame
		p := publishFrame(t, w.client, clientlib.NewFrame{Stream: clientlib.Stream{Channel: f.Channel, Scope: f.Scope}, Payload: f.Payload})
		fmt.Fprintf(rw, `{"position": {"epoch": "%d", "sequence": "%d"}}`, p.Epoch, p.Sequence)
	})
	found := blocks.FindAllStringSubmatch(string(manual), -1)
	if len(found) < 6 {
		t.Fatalf("the manual has %d examples", len(found))
	}
	for i, block := range found {
		kind, code := block[1], block[2]
		if kind == "js" {
			code = fmt.Sprintf(surroundings, position, strings.Replace(code, "const { position }", "window.published", 1))
		}
		w.pages.HandleFunc(fmt.Sprintf("/manual/%d", i), func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "text/html; charset=utf-8")
			fmt.Fprint(rw, `<!doctype html><link rel="icon" href="data:,"><script>shown = []; show = ({text}) => shown.push(text)</script><body>`, code)
		})
	}
	chromium := browsertest.Start(t)
	for i, block := range found {
		page := chromium.Open(fmt.Sprintf("%s/manual/%d", w.url, i))
		if strings.Contains(block[2], "publish(") {
			page.Wait(fmt.Sprintf("example %d to publish", i), "window.published")
			got, next := browsertest.Eval[string](page, "published.position"), w.publish("{}")
			if next.Sequence--; got != next.String() {
				t.Errorf("example %d published at %s, and before the next frame is %s", i, got, next)
			}
		} else {
			w.publish(`{"text": "three"}`)
			page.Wait(fmt.Sprintf("example %d to show the last frame", i), `shown.at(-1) === "three"`, "shown")
		}
		page.Close()
	}
}

// surroundings are what the examples take from theirs.
const surroundings = `<script type="module">
	import { subscribe } from '/fanfare.js';
	window.surroundings = {
		subscribe,
		stream: { channel: 'chat/messages', scope: 'lobby' },
		onframe: (frame) => show(frame.json()),
		session: { token: async ({ force }) => 'token ' + force },
		token: () => 'token',
		page: { dataset: { position: %q } },
	};
</script><script type="module">
	const { subscribe, stream, onframe, session, token, page } = surroundings;
	%s
</script>`

// A SharedWorker subscribes for all tabs of its origin.
func TestAWorkerSubscribesForAllTabs(t *testing.T) {
	w := newWorld(t, nil)
	w.pages.HandleFunc("/worker.js", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/javascript")
		fmt.Fprintf(rw, `import { subscribe } from '/fanfare.js';
			const all = [], ports = [];
			onconnect = ({ ports: [port] }) => {
				ports.push(port);
				all.forEach((text) => port.postMessage(text));
			};
			subscribe(%s, { onframe: ({ text }) => {
				all.push(text);
				ports.forEach((port) => port.postMessage(text));
			} });`, source)
	})
	chromium := browsertest.Start(t)
	w.publish("one")
	var tabs []*browsertest.Page
	for range 3 {
		tab := chromium.Open(w.url)
		tab.Run(`got = []; worker = new SharedWorker("/worker.js", {type: "module"});
			worker.onerror = (event) => console.error(event.message);
			worker.port.onmessage = ({data}) => got.push(data)`)
		tab.Wait("the first frame", `got.at(-1) === "one"`)
		tabs = append(tabs, tab)
	}
	w.publish("two")
	for _, tab := range tabs {
		tab.Wait("the second frame", `got.at(-1) === "two"`)
		expect(t, "a tab got", browsertest.Eval[[]string](tab, "got"), []string{"one", "two"})
	}
	w.awaitConnections(1)
}
