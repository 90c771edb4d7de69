package sse_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/sse"
)

// modelBrowser reads one stream over many connections and checks each event against what
// a browser may be sent.
type modelBrowser struct {
	t        *testing.T
	name     string
	edge     *edge
	upstream *upstream
	query    string

	mu sync.Mutex // guards what follows
	// position is where it stands; lastEventID is its text, empty before the first.
	position    clientlib.Position
	lastEventID string
	seen        []string
	// ephemeral is the number of the ephemeral frame that the next follows, while excused
	// is false: after a gap any may be missing.
	ephemeral int
	excused   bool
	leave     context.CancelFunc
}

// run reads until ctx ends.
func (b *modelBrowser) run(ctx context.Context) {
	for ctx.Err() == nil {
		b.connection(ctx)
	}
}

func (b *modelBrowser) note(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen = append(b.seen, fmt.Sprintf(format, args...))
}

func (b *modelBrowser) wrong(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.t.Errorf("%s: %s; it had seen %q", b.name, fmt.Sprintf(format, args...), b.seen[max(0, len(b.seen)-15):])
}

func (b *modelBrowser) connection(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.mu.Lock()
	b.leave = cancel
	id := b.lastEventID
	b.mu.Unlock()
	before := b.upstream.published()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.edge.url+one+b.query, nil)
	if err != nil {
		b.t.Error(err)
		return
	}
	if id != "" {
		request.Header.Set("Last-Event-ID", id)
	}
	response, err := b.edge.server.Client().Do(request)
	if err != nil {
		return
	}
	defer response.Body.Close() //nolint:errcheck // of a test
	b.note("%s from %q with %d", response.Status, id, before)
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNoContent: // a browser would stay away; this one looks again
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
		}
		return
	default:
		b.wrong("it was answered %s", response.Status)
		return
	}
	b.read(newParser(response.Body), id)
}

func (b *modelBrowser) read(p *parser, id string) {
	e, dispatched, err := p.block()
	switch {
	case err != nil:
		return
	case dispatched:
		if e.kind != "fanfare.reconnect" {
			b.wrong("the stream began with %s", e)
		}
		if e.id != id {
			b.wrong("what was postponed had the id %q, and the request %q", e.id, id)
		}
		return
	case id != "" && p.lastEventID != id:
		b.wrong("the stream began with the id %q, and the request had %q", p.lastEventID, id)
	}
	at, err := clientlib.ParsePosition(p.lastEventID)
	if err != nil {
		b.wrong("%v", err)
	}
	b.mu.Lock()
	b.position, b.lastEventID = at, p.lastEventID
	// What is published from now on is for this connection. What was before may be.
	b.ephemeral, b.excused = b.upstream.published(), false
	b.mu.Unlock()
	acked, first := b.ephemeral, true
	for {
		e, dispatched, err := p.block()
		if err != nil {
			if strings.Contains(err.Error(), "the line") {
				b.wrong("%v", err)
			}
			return
		}
		if dispatched {
			b.note("%s", e)
			b.take(e, acked, &first)
		} else {
			b.note("id %s", p.lastEventID)
		}
		b.mu.Lock()
		b.lastEventID = p.lastEventID
		b.mu.Unlock()
		if got := p.lastEventID; got != b.position.String() && !(e.kind == "fanfare.gap") {
			b.wrong("the id is %s, and the position %s", got, b.position)
		}
	}
}

// take checks an event.
func (b *modelBrowser) take(e event, acked int, first *bool) {
	switch {
	case e.kind == "fanfare.gap":
		_, text, _ := strings.Cut(e.data, `"resume_after":"`)
		text, _, _ = strings.Cut(text, `"`)
		p, err := clientlib.ParsePosition(text)
		if err != nil {
			b.wrong("%v", err)
		}
		if strings.Contains(e.data, "EPHEMERAL") && p != b.position {
			b.wrong("a gap of ephemeral frames moved the position from %s to %s", b.position, p)
		}
		b.position, b.excused = p, true
	case e.kind == "fanfare.closed", e.kind == "fanfare.caught_up", e.kind == "fanfare.status", e.kind == "fanfare.reconnect":
	case strings.Contains(e.data, " after "):
		b.takeEphemeral(e, acked, first)
	default:
		p, err := clientlib.ParsePosition(e.data)
		if err != nil || e.id != e.data {
			b.wrong("frame %q has the id %q: %v", e.data, e.id, err)
		}
		if p.Sequence != b.position.Sequence+1 {
			b.wrong("frame %s came after %s", p, b.position)
		}
		b.position = p
	}
}

func (b *modelBrowser) takeEphemeral(e event, acked int, first *bool) {
	var number int
	var after string
	if _, err := fmt.Sscanf(e.data, "%d after %s", &number, &after); err != nil {
		b.wrong("%q: %v", e.data, err)
		return
	}
	follows, err := clientlib.ParsePosition(after)
	if err != nil {
		b.wrong("%v", err)
	}
	switch {
	case follows.Epoch == b.position.Epoch && b.position.Sequence < follows.Sequence:
		b.wrong("ephemeral frame %q came at %s already", e.data, b.position)
	case *first && number > acked+1 && !b.excused:
		b.wrong("ephemeral frame %d came first, and %d had been published before the connection was in force", number, acked)
	case !*first && number <= b.ephemeral:
		b.wrong("ephemeral frame %d came after %d", number, b.ephemeral)
	case !*first && number > b.ephemeral+1 && !b.excused:
		b.wrong("ephemeral frame %d came after %d without a gap", number, b.ephemeral)
	}
	b.ephemeral, b.excused, *first = number, false, false
}

func (b *modelBrowser) stands() clientlib.Position {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, _ := clientlib.ParsePosition(b.lastEventID)
	return p
}

func (b *modelBrowser) reload() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.leave != nil {
		b.leave()
	}
}

// Random operations at random moments: each browser gets each durable frame once, in
// order, or a gap; an ephemeral one never before what it follows, never twice, and not at
// all only after a gap; and at the end all stand at the end. The ring holds few frames, so
// that replays, the seam and being overtaken are everyday. The long form runs for longer.
func TestModel(t *testing.T) {
	rounds, operations := 6, 150
	if inLongForm() {
		rounds, operations = 200, 400
	}
	var total sse.Stats
	for range rounds {
		seed := rand.Uint64()
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := runModel(t, rand.New(rand.NewPCG(seed, 0)), operations)
			total.Overtaken, total.Pages, total.Gaps, total.Frames = total.Overtaken+s.Overtaken, total.Pages+s.Pages, total.Gaps+s.Gaps, total.Frames+s.Frames
		}) {
			return
		}
	}
	if total.Overtaken == 0 || total.Pages == 0 || total.Gaps == 0 {
		t.Errorf("the model has tested little: %+v", total)
	}
	t.Logf("%+v", total)
}

func runModel(t *testing.T, random *rand.Rand, operations int) sse.Stats {
	u, address := startUpstream(t)
	options := []clientlib.Option{clientlib.WithBackoff(time.Millisecond, 5*time.Millisecond)}
	e := newEdge(t, newClient(t, []string{address}, options...), func(c *sse.Config, _ *http.Server) {
		c.RelayBytes, c.Linger, c.Retry, c.MaxReplays = 256*(2+random.IntN(20)), time.Duration(random.IntN(20))*time.Millisecond+1, time.Millisecond, 2
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var browsers []*modelBrowser
	add := func() {
		b := &modelBrowser{t: t, name: fmt.Sprint("browser ", len(browsers)), edge: e, upstream: u, query: []string{"", "?from=live", "?last=3"}[random.IntN(3)]}
		browsers = append(browsers, b)
		running.Go(func() { b.run(ctx) })
	}
	add()
	for range operations {
		switch n := random.IntN(100); {
		case n < 30:
			u.publish(1)
		case n < 40:
			u.publish(1 + random.IntN(30))
		case n < 60:
			u.pass()
		case n < 80:
			browsers[random.IntN(len(browsers))].reload()
		case n < 84 && len(browsers) < 8:
			add()
		case n < 87:
			u.moveOrigin()
		case n < 90:
			u.trim(uint64(random.IntN(40)))
		case n < 92:
			u.interrupt()
		case n < 94:
			u.closeStream()
		case n < 96:
			u.loseCommits(1 + random.IntN(3))
		case n < 98:
			u.listen(false)
			u.listen(true)
		default:
			stand := browsers[random.IntN(len(browsers))].stands()
			eventually(t, "a browser gets on", func() bool { // lets others catch up
				u.publish(1)
				return browsers[0].stands() != stand || t.Failed()
			})
		}
	}
	u.publish(1)
	u.mu.Lock()
	head := u.frames[len(u.frames)-1].GetPosition()
	u.mu.Unlock()
	last := clientlib.Position{Epoch: head.GetEpoch(), Sequence: head.GetSequence()}
	eventually(t, "all browsers stand at the end", func() bool {
		return t.Failed() || !slices.ContainsFunc(browsers, func(b *modelBrowser) bool { return b.stands() != last })
	})
	return e.Stats()
}
