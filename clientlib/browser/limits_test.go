package browser_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/browser/browsertest"
)

// Thirty tabs with a stream each are no trouble over HTTP/2: all are served over one
// connection, and so is what the page asks for besides.
func TestThirtyStreamsOverHTTP2(t *testing.T) {
	w := newWorld(t, func(o *options) { o.tls = true })
	page := open(t, w.url, browsertest.TrustEverybody)
	page.Run(listenTo(30))
	page.Wait("all streams", `sources.every((source) => source.readyState === EventSource.OPEN)`, "sources.map((source) => source.readyState)")
	if protocol := browsertest.Eval[string](page, `fetch("/").then(() => performance.getEntriesByType("navigation")[0].nextHopProtocol)`); protocol != "h2" {
		t.Errorf("the protocol is %s", protocol)
	}
	for n := range 30 {
		publishFrame(t, w.client, clientlib.NewFrame{Stream: tab(n), Payload: fmt.Append(nil, n)})
	}
	page.Wait("a frame for each", `received.every((n, i) => n === String(i))`, "received")
}

// Over HTTP/1.1 browsers open six connections to a server. The seventh stream waits,
// and so does everything else, until one is closed. One subscription to many streams
// needs one.
func TestSixStreamsOverHTTP1(t *testing.T) {
	w := newWorld(t, nil)
	page := open(t, w.url)
	page.Run(listenTo(7))
	page.Wait("six streams", `sources.filter((source) => source.readyState === EventSource.OPEN).length === 6`)
	w.awaitConnections(6)
	page.Run(`answered = false; fetch("/").then(() => answered = true); 0`)
	// What is published to the six arrives; the seventh and the request still wait.
	for n := range 6 {
		publishFrame(t, w.client, clientlib.NewFrame{Stream: tab(n), Payload: fmt.Append(nil, n)})
	}
	page.Wait("a frame for each of six", `received.filter(Boolean).length === 6`, "received")
	if browsertest.Eval[bool](page, "answered || received[6] !== undefined") {
		t.Error("a seventh connection was made: the documents say that there are six")
	}
	page.Run(`sources[0].close(); sources[1].close()`)
	page.Wait("the others to have their turn", `answered && sources[6].readyState === EventSource.OPEN`, "answered")
	page.Run(`sources.forEach((source) => source.close())`)

	var streams []string
	for n := range 30 {
		streams = append(streams, fmt.Sprintf("{channel: 'tabs', scope: '%d'}", n))
	}
	page.Run("follow({streams: [" + strings.Join(streams, ",") + "]}, {from: 'live'})")
	page.Wait("all streams", `told.filter((line) => line.startsWith("caughtup")).length === 30`, "told")
	for n := range 30 {
		publishFrame(t, w.client, clientlib.NewFrame{Stream: tab(n), Payload: fmt.Append(nil, n)})
	}
	page.Wait("a frame of each", `new Set(got).size === 30`, "got")
	w.awaitConnections(1)
	if position := browsertest.Eval[string](page, "subscription.position"); strings.Count(position, ",") != 29 {
		t.Errorf("the position is %s", position)
	}
}

func tab(n int) clientlib.Stream { return clientlib.Stream{Channel: "tabs", Scope: fmt.Sprint(n)} }

// listenTo opens an EventSource for each of n streams.
func listenTo(n int) string {
	return fmt.Sprintf(`received = []; sources = Array.from({length: %d}, (_, i) => {
		const source = new EventSource("/v1/streams/tabs/" + i);
		source.onmessage = ({data}) => received[i] = data;
		return source;
	})`, n)
}
