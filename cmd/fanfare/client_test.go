package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// objects decodes one JSON object a line.
func objects(t *testing.T, text string) []map[string]any {
	t.Helper()
	var out []map[string]any
	decoder := json.NewDecoder(strings.NewReader(text))
	for {
		var object map[string]any
		err := decoder.Decode(&object)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%v in %q", err, text)
		}
		out = append(out, object)
	}
	if lines := strings.Count(text, "\n"); lines != len(out) {
		t.Fatalf("%d objects on %d lines: %q", len(out), lines, text)
	}
	return out
}

func TestPublishAndSubscribe(t *testing.T) {
	s := startEmbedded(t)
	at := []string{"--server", s.address}

	file := filepath.Join(t.TempDir(), "payload")
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	if err := os.WriteFile(file, every, 0o600); err != nil {
		t.Fatal(err)
	}
	positions := []string{
		mustRun(t, "", append(at, "publish", "chat", "", "--data", "hello")...),
		mustRun(t, "", append([]string{"publish", "chat", "", "--file", file}, at...)...),
		mustRun(t, "a\nb\n", append([]string{"publish", "chat"}, append(at, "")...)...), // flags in the middle
		mustRun(t, "", append(at, "publish", "chat", "")...),
		mustRun(t, "ignored", append(at, "publish", "chat", "", "--data", "")...),
	}
	for i, position := range positions {
		if !regexp.MustCompile(fmt.Sprintf(`^\d+-%d\n$`, i+1)).MatchString(position) {
			t.Errorf("publish %d printed %q", i+1, position)
		}
	}
	want := "hello\n" + string(every) + "\na\nb\n\n\n\n"
	r := command(t, "", append(at, "subscribe", "chat", "", "--count", "5")...)
	if r.code != exitOK || r.stdout != want || !strings.Contains(r.stderr, "subscribed after ") {
		t.Errorf("subscribe: %+v, want %q", r, want)
	}

	// What follows a position, and the newest frames.
	after := strings.TrimSpace(positions[2])
	if out := mustRun(t, "", append(at, "subscribe", "chat", "", "--from", after, "--count", "2")...); out != "\n\n" {
		t.Errorf("after %s: %q", after, out)
	}
	if out := mustRun(t, "", append(at, "subscribe", "chat", "", "--last", "3", "--count", "1")...); out != "a\nb\n\n" {
		t.Errorf("the last 3: %q", out)
	}
}

func TestPublishOptions(t *testing.T) {
	s := startEmbedded(t)
	publish := func(args ...string) result {
		return command(t, "", append([]string{"publish", "orders", "4711", "--server", s.address}, args...)...)
	}
	first := publish("--data", "x", "--key", "k", "--event-type", "paid", "--content-type", "text/plain", "--header", "a=1=2", "--header", "b=")
	if first.code != exitOK {
		t.Fatalf("%+v", first)
	}
	again := publish("--data", "x", "--key", "k", "--event-type", "paid", "--content-type", "text/plain", "--header", "b=", "--header", "a=1=2")
	if again.code != exitOK || again.stdout != first.stdout || !strings.Contains(again.stderr, "nothing was stored") {
		t.Errorf("the same key again: %+v", again)
	}
	asJSON := objects(t, publish("--data", "x", "--key", "k", "--json", "--event-type", "paid", "--content-type", "text/plain", "--header", "a=1=2", "--header", "b=").stdout)
	if asJSON[0]["duplicate"] != true || asJSON[0]["position"] != strings.TrimSpace(first.stdout) || asJSON[0]["type"] != "published" {
		t.Errorf("as JSON: %v", asJSON)
	}
	if r := publish("--data", "y", "--key", "k"); r.code != exitFailed || !strings.Contains(r.stderr, "KEY_CONFLICT") {
		t.Errorf("another content under the key: %+v", r)
	}
	if r := publish("--data", "y", "--expected", "7"); r.code != exitFailed || !strings.Contains(r.stderr, "EXPECTATION_FAILED") {
		t.Errorf("a wrong expectation: %+v", r)
	}
	if r := publish("--data", "y", "--expected", "0"); r.code != exitFailed {
		t.Errorf("expecting an empty stream: %+v", r)
	}
	if r := publish("--data", "y", "--expected", "1"); r.code != exitOK {
		t.Errorf("a right expectation: %+v", r)
	}
	if r := publish("--file", filepath.Join(t.TempDir(), "none")); r.code != exitFailed || !strings.Contains(r.stderr, "no such file") {
		t.Errorf("a missing file: %+v", r)
	}

	out := objects(t, mustRun(t, "", "subscribe", "orders", "4711", "--json", "--count", "2", "--server", s.address))
	frame := out[1]
	if frame["type"] != "frame" || frame["data"] != "x" || frame["event_type"] != "paid" || frame["content_type"] != "text/plain" ||
		fmt.Sprint(frame["headers"]) != "map[a:1=2 b:]" || frame["created"] == nil {
		t.Errorf("the frame as JSON: %v", frame)
	}
}

// Every byte that goes in comes out: CR, empty lines, a missing last line feed,
// bytes that are no text, and more lines than may be in flight.
func TestLinesAreExact(t *testing.T) {
	s := startEmbedded(t, "--backlog", "20000")
	binary := make([]byte, 64<<10)
	random := rand.NewChaCha8([32]byte{1})
	if _, err := random.Read(binary); err != nil {
		t.Fatal(err)
	}
	var many strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&many, "line %d\n", i)
	}
	for name, input := range map[string]string{
		"empty":           "",
		"empty line":      "\n",
		"carriage return": "a\r\n\r\n\n b \r",
		"no line feed":    "a\nb",
		"binary":          string(binary),
		"many":            many.String(),
		"long line":       strings.Repeat("x", 1<<20) + "\ny",
	} {
		t.Run(name, func(t *testing.T) {
			positions := strings.Fields(mustRun(t, input, "publish", "--lines", "lines", name, "--server", s.address))
			lines := strings.Count(input, "\n")
			if input != "" && !strings.HasSuffix(input, "\n") {
				lines++
			}
			if len(positions) != lines {
				t.Fatalf("%d positions for %d lines", len(positions), lines)
			}
			for i, position := range positions {
				if !strings.HasSuffix(position, fmt.Sprintf("-%d", i+1)) {
					t.Fatalf("position %d is %s", i+1, position)
				}
			}
			if lines == 0 {
				return
			}
			out := mustRun(t, "", "subscribe", "lines", name, "--count", fmt.Sprint(lines), "--server", s.address)
			if strings.TrimSuffix(out, "\n") != strings.TrimSuffix(input, "\n") {
				t.Errorf("%d bytes came out of %d", len(out), len(input))
			}
		})
	}
}

func TestLinesAsJSON(t *testing.T) {
	s := startEmbedded(t)
	for i, object := range objects(t, mustRun(t, "a\nb\n", "publish", "c", "s", "--lines", "--json", "--server", s.address)) {
		if object["line"] != float64(i+1) || object["type"] != "published" || object["duplicate"] != false {
			t.Errorf("line %d: %v", i+1, object)
		}
	}
}

// A position is printed as soon as its line is published, while the input stays
// open; a refused line ends the run although more input may come.
func TestLinesOfAnOpenInput(t *testing.T) {
	s := startEmbedded(t, "--max-frame-bytes", "10")
	input, writer := io.Pipe()
	t.Cleanup(func() { writer.Close() })
	r := start(t, input, "publish", "c", "s", "--lines", "--server", s.address)
	for i := range 3 {
		fmt.Fprintf(writer, "%d\n", i)
		r.stdout.await(t, fmt.Sprintf(`-%d\n$`, i+1))
	}
	fmt.Fprintln(writer, "more than ten bytes")
	if code := r.end(); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	r.stderr.await(t, `line 4 was not stored: \S*payload has 19 bytes, the limit is 10 \(InvalidArgument, INVALID_FIELD\); lines 1-3 were stored; what follows line 4 was not sent; to go on: tail -n \+4 FILE \| fanfare publish …\n`)
}

func TestLinesInterrupted(t *testing.T) {
	s := startEmbedded(t)
	input, writer := io.Pipe()
	t.Cleanup(func() { writer.Close() })
	r := start(t, input, "publish", "c", "s", "--lines", "--server", s.address)
	fmt.Fprintln(writer, "a")
	r.stdout.await(t, `-1\n`)
	r.interrupt()
	if code := r.end(); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	r.stderr.await(t, `interrupted; line 1 was stored; what follows line 1 was not sent; to go on: tail -n \+2 FILE \| fanfare publish …\n`)
}

func TestPublishInterrupted(t *testing.T) {
	input, writer := io.Pipe()
	t.Cleanup(func() { writer.Close() })
	r := start(t, input, "publish", "c", "s", "--server", deadServer)
	r.interrupt()
	if code := r.end(); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	r.stderr.await(t, "interrupted while reading standard input")
}

func TestSubscribeAsJSON(t *testing.T) {
	s := startEmbedded(t)
	payloads := []string{"text", "\xff\x00", "", `<a href="x">&`, "line\nbreak\u2028"}
	for _, payload := range payloads {
		mustRun(t, payload, "publish", "c", "s", "--server", s.address)
	}
	r := start(t, nil, "subscribe", "c", "s", "--json", "--server", s.address)
	r.stdout.await(t, `"type":"caught_up"`)
	mustRun(t, "", "close", "c", "s", "--server", s.address)
	if code := r.end(); code != exitOK {
		t.Errorf("exit code %d after the close", code)
	}
	out := objects(t, r.stdout.String())
	var types []string
	var data []any
	for _, object := range out {
		types = append(types, object["type"].(string))
		if !regexp.MustCompile(`^\d+-\d+$`).MatchString(object["position"].(string)) {
			t.Errorf("position of %v", object)
		}
		if object["type"] == "frame" {
			if encoded, ok := object["data_base64"]; ok {
				data = append(data, "base64:"+encoded.(string))
			} else {
				data = append(data, object["data"])
			}
		}
	}
	if got := strings.Join(types, " "); got != "subscribed frame frame frame frame frame caught_up closed" {
		t.Errorf("types %s", got)
	}
	if got, want := fmt.Sprint(data), fmt.Sprint([]any{"text", "base64:/wA=", "", `<a href="x">&`, "line\nbreak\u2028"}); got != want {
		t.Errorf("data %s, want %s", got, want)
	}
	if !strings.Contains(r.stdout.String(), `<a href=\"x\">&`) {
		t.Error("payloads are escaped for HTML")
	}
	if r.stderr.String() != "" {
		t.Errorf("notices went to standard error too: %q", r.stderr)
	}
}

// A gap says from where it goes on, and a position of a closed numbering is one.
func TestSubscribeAcrossAGap(t *testing.T) {
	s := startEmbedded(t)
	publish := func() string { return strings.TrimSpace(mustRun(t, "x", "publish", "c", "s", "--server", s.address)) }
	old := publish()
	mustRun(t, "", "close", "c", "s", "--server", s.address)
	publish()
	out := objects(t, mustRun(t, "", "subscribe", "c", "s", "--from", old, "--json", "--count", "1", "--server", s.address))
	if len(out) != 3 || out[1]["type"] != "gap" || out[1]["reason"] != "EPOCH_CHANGED" || out[1]["requested"] != old || out[1]["oldest"] != float64(1) {
		t.Errorf("got %v", out)
	}
	text := command(t, "", "subscribe", "c", "s", "--from", old, "--count", "1", "--server", s.address)
	if text.stdout != "x\n" || !strings.Contains(text.stderr, "gap: frames after "+old+" are not available (EPOCH_CHANGED)") {
		t.Errorf("for people: %+v", text)
	}
}

// Frames appear at once although output is buffered; Ctrl-C is a good end.
func TestSubscribeLiveUntilInterrupted(t *testing.T) {
	s := startEmbedded(t)
	mustRun(t, "before", "publish", "c", "s", "--server", s.address)
	r := start(t, nil, "subscribe", "c", "s", "--from", "live", "--server", s.address)
	r.stderr.await(t, "caught up")
	mustRun(t, "after", "publish", "c", "s", "--server", s.address)
	r.stdout.await(t, `^after\n$`)
	r.interrupt()
	if code := r.end(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestStreamsAndClose(t *testing.T) {
	s := startEmbedded(t)
	at := []string{"--server", s.address}
	if out := mustRun(t, "", append(at, "streams", "--json")...); out != "" {
		t.Errorf("streams of an empty store: %q", out)
	}
	never := command(t, "", append(at, "close", "c", "never")...)
	if never.code != exitOK || never.stdout != "0-0\n" || !strings.Contains(never.stderr, "does not exist") {
		t.Errorf("closing a stream that does not exist: %+v", never)
	}
	for _, stream := range [][2]string{{"b", "2"}, {"b", "10"}, {"a", ""}} {
		mustRun(t, "x", append(at, "publish", stream[0], stream[1])...)
	}
	last := mustRun(t, "", append(at, "close", "b", "2")...)
	if !strings.HasSuffix(last, "-1\n") {
		t.Errorf("close printed %q", last)
	}
	if again := command(t, "", append(at, "close", "b", "2")...); again.code != exitOK || again.stdout != last || again.stderr == "" {
		t.Errorf("closing again: %+v", again)
	}
	table := mustRun(t, "", append(at, "streams")...)
	rows := regexp.MustCompile(`(?m)^(\S+) .*? (open|closed) `).FindAllStringSubmatch(table, -1)
	if fmt.Sprint(len(rows)) != "3" || !strings.HasPrefix(table, "CHANNEL") || rows[0][1] != "a" || rows[2][2] != "closed" {
		t.Errorf("table:\n%s", table)
	}
	list := objects(t, mustRun(t, "", append(at, "streams", "--json", "--channel", "b")...))
	if len(list) != 2 || list[0]["scope"] != "10" || list[1]["closed"] != true || list[1]["head"] != strings.TrimSpace(last) {
		t.Errorf("streams of a channel: %v", list)
	}
}

// One long name leaves the other rows as narrow as they are; times have a zone.
func TestStreamsOfLongNames(t *testing.T) {
	s := startEmbedded(t)
	long := strings.Repeat("ä", 120)
	for _, scope := range []string{long, "short"} {
		mustRun(t, "x", "publish", "c", scope, "--server", s.address)
	}
	table := mustRun(t, "", "streams", "--server", s.address)
	for row := range strings.Lines(table) {
		if len([]rune(row)) > 160 {
			t.Errorf("a row of %d characters: %s", len([]rune(row)), row)
		}
	}
	if !strings.Contains(table, "c        "+strings.Repeat("ä", maxColumnRunes-1)+"…  ") {
		t.Errorf("no name that is cut short in\n%s", table)
	}
	if !regexp.MustCompile(`(?m)^c +short .* \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$`).MatchString(table) {
		t.Errorf("no time in UTC in\n%s", table)
	}
	if list := objects(t, mustRun(t, "", "streams", "--json", "--server", s.address)); list[1]["scope"] != long {
		t.Errorf("as JSON: %v", list)
	}
}

// More streams than a page holds are all listed, once.
func TestStreamsOfManyPages(t *testing.T) {
	url := pgtest.NewDatabase(t)
	s := startServer(t, url)
	execute(t, url, `select fanfare.publish('many', n::text, '') from generate_series(1, $1) n`, streamsPageSize+17)
	seen := map[any]bool{}
	for _, object := range objects(t, mustRun(t, "", "streams", "--json", "--server", s.address)) {
		seen[object["scope"]] = true
	}
	if len(seen) != streamsPageSize+17 {
		t.Errorf("%d streams are listed", len(seen))
	}
}
