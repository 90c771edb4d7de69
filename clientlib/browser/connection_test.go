package browser_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/browser/browsertest"
	"github.com/fanfare-io/fanfare/clientlib/sse"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// cutOff is what Chromium says of a connection that is lost.
const cutOff = "ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RE(FUSED|SET)|ERR_EMPTY_RESPONSE|ERR_SOCKET_NOT_CONNECTED"

// replicaProcess is a replica with HTTP, in a process of its own.
type replicaProcess struct {
	*servicetest.Process
	client *clientlib.Client
	// http is its HOST:PORT for browsers.
	http string
}

var console = regexp.MustCompile(`console on http://([^/]+)/`)

func startReplica(t testing.TB, database string, flags ...string) *replicaProcess {
	t.Helper()
	command := exec.Command(servicetest.Program(t), append([]string{"serve", "--store", database,
		"--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--drain-delay", "0"}, flags...)...)
	command.Env = append(os.Environ(), "FANFARE_LOG_LEVEL=warn")
	process, err := servicetest.StartProcess(command)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	ctx, cancel := context.WithTimeout(context.Background(), browsertest.Patience)
	defer cancel()
	address, err := process.AwaitReady(ctx)
	if err != nil {
		t.Fatal(err)
	}
	at := console.FindStringSubmatch(process.Log())
	if at == nil {
		t.Fatalf("the replica did not say where it serves HTTP: %s", process.Log())
	}
	return &replicaProcess{Process: process, client: newClient(t, address), http: at[1]}
}

// Two replicas stand behind one address. The one that a page is connected to is killed
// while frames come; the page must get the rest from the other one, everything once.
func TestAReplicaKilledMidStreamIsResumedOnAnother(t *testing.T) {
	w := newWorld(t, nil) // for the page alone, which is of another origin
	database := pgtest.NewDatabase(t)
	allowed := []string{"--http-allowed-origin", w.url}
	first, second := startReplica(t, database, allowed...), startReplica(t, database, allowed...)
	front := pgtest.Proxy(t, first.http)
	server := "http://" + front.Addr()

	chromium := browsertest.Start(t)
	pages := map[string]*browsertest.Page{}
	for name, follow := range map[string]string{
		"the module":  fmt.Sprintf("follow(%s, {server: %q})", source, server),
		"over fetch":  fmt.Sprintf("follow(%s, {server: %q, transport: 'fetch'})", source, server),
		"EventSource": fmt.Sprintf("listen(%q)", server+address),
	} {
		page := chromium.Open(w.url)
		page.Allow(cutOff)
		page.Wait("the module", "window.ready")
		page.Run(follow)
		pages[name] = page
	}
	publish(t, first.client, numbers(1, 50)...)
	for _, page := range pages {
		awaitLast(page, "50")
	}
	front.SetTarget(t, second.http)
	publish(t, second.client, numbers(51, 60)...)
	first.Kill()
	publish(t, second.client, numbers(61, 100)...)
	for name, page := range pages {
		expect(t, name+" got", awaitLast(page, "100"), numbers(1, 100))
	}
}

// hide opens a page that follows the stream, and hides it after a frame.
func hide(w *world, options string) *browsertest.Page {
	w.t.Helper()
	page := open(w.t, w.url)
	page.Run("follow(" + source + ", " + options + ")")
	w.publish("seen")
	awaitLast(page, "seen")
	page.Hide()
	return page
}

func TestAHiddenPageCatchesUp(t *testing.T) {
	w := newWorld(t, nil)
	page := hide(w, "{pauseWhenHidden: 100}")
	page.Wait("the pause", `subscription.status.state === "paused"`, "told")
	w.awaitConnections(0)
	w.publish("unseen 1", "unseen 2")
	page.Show()
	awaitLast(page, "unseen 2")
	w.publish("seen again")
	expect(t, "the page got", awaitLast(page, "seen again"), []string{"seen", "unseen 1", "unseen 2", "seen again"})
}

func TestAHiddenPageKeepsItsConnectionUnlessItWasAskedTo(t *testing.T) {
	w := newWorld(t, nil)
	page := hide(w, "{}")
	w.publish("unseen")
	awaitLast(page, "unseen")
	if states := browsertest.Eval[string](page, `told.filter((line) => !line.includes(" ")).join()`); states != "connecting,open" {
		t.Errorf("the states were %s", states)
	}
}

// A page that is left and kept by the browser holds no connection. When its user comes
// back to it, it goes on where it was.
func TestAPageThatIsLeftAndComeBackToCatchesUp(t *testing.T) {
	w := newWorld(t, nil)
	w.pages.HandleFunc("/elsewhere", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/html")
		fmt.Fprint(rw, `<!doctype html><link rel="icon" href="data:,">`)
	})
	page := open(t, w.url)
	page.Run("kept = true; follow(" + source + ")")
	w.publish("before")
	awaitLast(page, "before")
	page.Navigate(w.url + "/elsewhere")
	w.awaitConnections(0)
	w.publish("meanwhile")
	page.Back()
	page.Wait("the page as it was left", "window.kept")
	expect(t, "the page got", awaitLast(page, "meanwhile"), []string{"before", "meanwhile"})
	expect(t, "its states were", browsertest.Eval[[]string](page, `told.filter((line) => !/ /.test(line))`),
		[]string{"connecting", "open", "paused", "connecting", "open"})
}

// A page that nobody has seen for long is frozen by its browser. It holds no connection then,
// which would fill up, and catches up when it is thawed, although still nobody sees it.
func TestAFrozenPageHoldsNoConnectionAndCatchesUp(t *testing.T) {
	w := newWorld(t, nil)
	page := open(t, w.url)
	page.Run("follow(" + source + ")")
	w.publish("before")
	awaitLast(page, "before")
	page.Freeze()
	w.awaitConnections(0)
	w.publish("meanwhile")
	page.Thaw()
	expect(t, "the page got", awaitLast(page, "meanwhile"), []string{"before", "meanwhile"})
	expect(t, "its states were", browsertest.Eval[[]string](page, `told.filter((line) => !/ /.test(line))`),
		[]string{"connecting", "open", "paused", "connecting", "open"})
}

// The connection of a page is lost with its network. A minute would pass until the next
// attempt, but the browser tells when the network is back.
func TestAPageComesBackWithTheNetwork(t *testing.T) {
	w := newWorld(t, func(o *options) { o.events.Retry = time.Minute })
	page := open(t, w.url)
	page.Allow("ERR_INTERNET_DISCONNECTED|" + cutOff)
	for _, transport := range []string{"undefined", `"fetch"`} {
		page.Run("follow(" + source + ", {from: 'live', transport: " + transport + "})")
		page.Wait("the beginning", `told.at(-1).startsWith("caughtup")`)
		page.Offline(true)
		w.server.CloseClientConnections()
		page.Wait("the loss", `told.at(-1) === "waiting"`, "told")
		w.publish("meanwhile")
		page.Offline(false)
		expect(t, "the page got", awaitLast(page, "meanwhile"), []string{"meanwhile"})
		page.Run("subscription.close()")
	}
}

// Symptom: where a network had forgotten a connection, as after a sleep, the page hung for
// ever without an error. Cause: nothing ends such a connection, and EventSource shows its
// page no comment, so that it could not be told from a quiet one.
func TestAPageLeavesAConnectionOverWhichNotEvenHeartbeatsCome(t *testing.T) {
	w := newWorld(t, func(o *options) { o.events.Heartbeat = 200 * time.Millisecond })
	chromium := browsertest.Start(t)
	for _, transport := range []string{"undefined", `"fetch"`} {
		front := pgtest.Proxy(t, w.server.Listener.Addr().String())
		page := chromium.Open("http://" + front.Addr())
		page.Wait("the module", "window.ready")
		page.Allow(cutOff)
		page.Run("follow(" + source + `, {from: "live", transport: ` + transport + `, maxSilence: 4000})`)
		page.Wait("the beginning", `told.at(-1).startsWith("caughtup")`, "told")
		// For six seconds, longer than it waits and looks again, nothing comes but heartbeats.
		page.Run(`beats = 0; other = new EventSource("` + address + `&heartbeat=event"); other.addEventListener("fanfare.heartbeat", () => beats++); 0`)
		page.Wait("heartbeats", "beats > 30", "beats")
		page.Run("other.close()")
		expect(t, "of a connection that is quiet it was told", browsertest.Eval[[]string](page, "messages"), []string{})

		front.Blackhole(pgtest.BothWays)
		w.publish("unheard")
		page.Wait("the silence to be noticed", `messages.at(-1)?.startsWith("nothing came for ")`, "messages")
		// A page that hears no heartbeat and so knows of no interval waits for thirty seconds.
		if silence := browsertest.Eval[int](page, `parseInt(messages.at(-1).replace("nothing came for ", ""))`); silence >= 30_000 {
			t.Errorf("it was borne for %d ms", silence)
		}
		// What has hung till now stays hung: only another connection passes.
		front.Cut()
		front.Restore()
		expect(t, "the page got", awaitLast(page, "unheard"), []string{"unheard"})
		page.Close()
	}
}

// A server that is told to go tells its pages, which go on elsewhere by themselves.
func TestADrainedServerIsResumedOnAnother(t *testing.T) {
	w := newWorld(t, nil)
	second := sse.New(w.client, sse.Config{})
	t.Cleanup(second.Close)
	w.publish("from the first")
	page := open(t, w.url)
	page.Run("follow(" + source + `, {transport: "fetch"})`)
	awaitLast(page, "from the first")
	w.serving.Store(second)
	ctx, cancel := context.WithTimeout(t.Context(), browsertest.Patience)
	defer cancel()
	w.events.Drain(ctx)
	w.publish("from the second")
	expect(t, "the page got", awaitLast(page, "from the second"), []string{"from the first", "from the second"})
	expect(t, "it had waited because of", browsertest.Eval[[]string](page, "reasons"), []string{"DRAINING"})
}

// A page publishes to a server of another origin and follows it there.
func TestAPagePublishes(t *testing.T) {
	w := newWorld(t, nil) // for the page alone
	replica := startReplica(t, "sqlite::memory:", "--http-allowed-origin", w.url)
	page := open(t, w.url)
	page.Run(fmt.Sprintf("server = 'http://%s'; follow(%s, {server})", replica.http, source))
	page.Wait("the beginning", `told.at(-1)?.startsWith("caughtup")`, "told")
	page.Run(`published = []; (async () => {
		const frame = (more) => fanfare.publish({...` + source + `, ...more}, {server, token: () => 'any'});
		published.push(await frame({payload: 'text', eventType: 'said', headers: {by: 'ann'}, idempotencyKey: 'k'}));
		published.push(await frame({payload: 'text', eventType: 'said', headers: {by: 'ann'}, idempotencyKey: 'k'}));
		published.push(await frame({payload: Uint8Array.of(0xff, 0), ephemeral: true}));
		published.push(await frame({json: {n: 1}, expected: fanfare.Position.parse(published[0].position)}));
		published.push(await frame({json: {n: 2}, expected: {sequence: 1}}).catch((error) => error.code + ' ' + error.reason + ' ' + error.final));
		published.push(await frame({channel: ''}).catch((error) => error.field));
	})()`)
	expect(t, "the page got", awaitLast(page, `{"n":1}`), []string{"text", "\uFFFD\x00", `{"n":1}`})
	page.Wait("all answers", "published.length === 6", "published")
	page.Allow("the server responded with a status of 4")
	got := browsertest.Eval[string](page, `JSON.stringify([published[1].duplicate, published[1].position === published[0].position, published[2].position ?? null,
		published[0].position === positions[0], published[3].position === positions[2], published[4], published[5]])`)
	if want := `[true,true,null,true,true,"ABORTED EXPECTATION_FAILED true","frame.channel"]`; got != want {
		t.Errorf("publishing came to\n%s\nwant\n%s", got, want)
	}
}
