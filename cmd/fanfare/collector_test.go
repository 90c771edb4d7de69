package main

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

func TestGCPercent(t *testing.T) {
	const mib = 1 << 20
	for _, test := range []struct {
		what  string
		bytes uint64
		want  int
	}{
		{"nothing", 0, 800},
		{"a heap so small that its growth is bounded", 2 * mib, 800},
		{"a small heap", 16 * mib, 400},
		{"a heap of which the least is as much again", 64 * mib, 100},
		{"a large heap", 1000 * mib, 100},
	} {
		if got := gcPercent(test.bytes); got != test.want {
			t.Errorf("%s: %d %%, want %d", test.what, got, test.want)
		}
	}
}

// Symptom: a quarter of the processor time of a server that is published to went
// into collecting a heap of a few MiB, again and again. The same publishes cause a
// fraction of the collections, unless GOGC asks for them.
func TestFewCollections(t *testing.T) {
	t.Parallel()
	few, many := collections(t), collections(t, "GOGC=100")
	t.Logf("%d collections, with GOGC=100 %d", few, many)
	if few > many/3 {
		t.Errorf("%d collections, and no more than %d with GOGC=100", few, many)
	}
}

// collections returns how often a server with these variables in its environment
// collects while 60 MiB are published to it.
func collections(t *testing.T, env ...string) int {
	t.Helper()
	command := binaryCommand(t, "serve", "--grpc", "127.0.0.1:0", "--http", "off", "--data-dir", t.TempDir())
	command.Env = slices.Concat(os.Environ(), []string{"GOGC=", "GODEBUG=gctrace=1"}, env)
	p := launch(t, command)
	p.awaitReady()
	traced := func() int { return strings.Count(p.stderr.String(), "gc ") }
	client := dialQuickly(t, p.address)
	batch := &fanfarev1.PublishBatchRequest{}
	for i := range 100 {
		batch.Frames = append(batch.Frames, &fanfarev1.NewFrame{Channel: "c", Scope: strconv.Itoa(i), Payload: make([]byte, 10<<10)})
	}
	before := traced()
	for range 60 << 20 / proto.Size(batch) {
		if _, err := client.PublishBatch(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	return traced() - before
}
