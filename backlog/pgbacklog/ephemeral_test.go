package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/listener"
)

func ephemeral(p backlog.Publication) backlog.Publication {
	p.Ephemeral = true
	return p
}

// listen returns a session that is notified of what a store announces.
func listen(t *testing.T, s *Store, url string) *pgx.Conn {
	t.Helper()
	conn := pgtest.Dial(t, url)
	pgtest.Exec(t, conn, "listen "+s.NotifyChannel())
	return conn
}

// announced waits for n announcements. All that comes with them must be readable,
// and what is split must be put together as the envelope's format says.
func announced(t *testing.T, conn *pgx.Conn, n int) []backlog.Announcement {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var all []backlog.Announcement
	var split splitEntry
	for len(all) < n || split.next != 0 {
		notification, err := conn.WaitForNotification(ctx)
		if err != nil {
			t.Fatalf("%d of %d announcements came: %v", len(all), n, err)
		}
		if len(notification.Payload) > 7999 {
			t.Errorf("a notification of %d bytes", len(notification.Payload))
		}
		head, entries, _ := strings.Cut(notification.Payload, "\n")
		for _, entry := range strings.Split(entries, "\n") {
			if strings.HasPrefix(entry, "S\t") && entry != entries {
				t.Errorf("a part shares an envelope: %q", entries)
			}
			if entry, err = split.join(head, entry); err != nil {
				t.Fatal(err)
			}
			if entry == "" {
				continue
			}
			e, err := listener.DecodeEnvelope(head + "\n" + entry)
			if err != nil || len(e.Announcements) != 1 {
				t.Fatalf("%.300q is read as %+v, %v", entry, e, err)
			}
			all = append(all, e.Announcements...)
		}
	}
	if len(all) > n {
		t.Errorf("%d announcements came, want %d", len(all), n)
	}
	return all
}

// splitEntry puts one entry together.
type splitEntry struct {
	transaction     string // with the process
	id, next, parts int
	text            string
}

// join returns an entry that is whole, or completed by this part.
func (s *splitEntry) join(head, entry string) (string, error) {
	fields := strings.SplitN(entry, "\t", 5)
	if fields[0] != "S" {
		if s.next != 0 {
			return "", fmt.Errorf("%.100q stands where part %d of %d is due", entry, s.next, s.parts)
		}
		return entry, nil
	}
	header := strings.Split(head, "\t")
	transaction := strings.Join(header[4:6], " ")
	var numbers []int
	for _, f := range append(slices.Clone(fields[1:4]), header[6]) {
		n, err := strconv.Atoi(f)
		if err != nil {
			return "", err
		}
		numbers = append(numbers, n)
	}
	id, part, parts, index := numbers[0], numbers[1], numbers[2], numbers[3]
	if s.next == 0 {
		*s = splitEntry{transaction: transaction, id: index, next: 1, parts: parts}
	}
	if transaction != s.transaction || id != s.id || part != s.next || parts != s.parts || parts < 2 || index != id+part-1 || len(fields[4]) > 7500 {
		return "", fmt.Errorf("a part of %d bytes, %.100q, in envelope %d, follows in %+v", len(fields[4]), entry, index, *s)
	}
	s.text += fields[4]
	s.next++
	if part < parts {
		return "", nil
	}
	text := s.text
	*s = splitEntry{}
	return text, nil
}

// origin is that of the server.
func origin(t *testing.T, url string) uint64 {
	t.Helper()
	return query[uint64](t, url, "select fanfare._origin()")
}

// An ephemeral frame is announced whole, whatever its size, after the frame that it
// follows, and with its numbering.
func TestEphemeralFrame(t *testing.T) {
	t.Parallel()
	url := newSchema(t)
	s := startPublisher(t, url)
	conn := listen(t, s, url)
	full := ephemeral(backlog.Publication{
		Stream: backlog.StreamName{Channel: "ü", Scope: "s\"'\\"}, ContentType: "a/b", EventType: "t", Headers: map[string]string{"k": "tab\t, line\n", "é": ""},
	})
	first, reopened := full, full
	reopened.Payload = []byte{0, 255, '\n', '\t'}
	if o := mustPublish(t, s, first); o != (backlog.Outcome{}) {
		t.Errorf("the outcome is %+v", o)
	}
	durable := full
	durable.Ephemeral = false
	position := mustPublish(t, s, durable).Position
	mustPublish(t, s, first)
	if _, err := s.CloseStream(t.Context(), full.Stream, nil); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, s, reopened)
	all := announced(t, conn, 5)
	own, again := all[0].OwnEpoch, all[4].OwnEpoch
	if own == again || again != query[uint64](t, url, "select epoch from fanfare.streams") {
		t.Errorf("the own epoch was %d, is %d", own, again)
	}
	o := origin(t, url)
	for i, want := range []backlog.Announcement{
		{OwnEpoch: own, Frame: backlog.Frame{Position: backlog.Position{Epoch: own ^ o}, Payload: first.Payload}},
		{},
		{OwnEpoch: own, Frame: backlog.Frame{Position: position, Payload: first.Payload}},
		{},
		{OwnEpoch: again, Frame: backlog.Frame{Position: backlog.Position{Epoch: again ^ o}, Payload: reopened.Payload}},
	} {
		got, f := all[i], all[i].Frame
		if i%2 == 1 {
			if f.Ephemeral {
				t.Errorf("announcement %d is %+v", i, got)
			}
			continue
		}
		if got.Kind != backlog.AnnounceEphemeral || !f.Ephemeral || got.Origin != o || got.OwnEpoch != want.OwnEpoch || got.Stream != full.Stream ||
			f.Position != want.Frame.Position || string(f.Payload) != string(want.Frame.Payload) ||
			f.ContentType != "a/b" || f.EventType != "t" || len(f.Headers) != 2 || f.Headers["k"] != full.Headers["k"] ||
			time.Since(f.Created).Abs() > time.Minute {
			t.Errorf("announcement %d is %+v, want %+v", i, got, want)
		}
	}
}

// What follows the durable frames of a server that was replaced stands under the
// origin of those: it is their position that subscribers have.
func TestEphemeralFrameOnAnotherServer(t *testing.T) {
	t.Parallel()
	url := newSchema(t)
	s := startPublisher(t, url)
	conn := listen(t, s, url)
	mustPublish(t, s, publication("s", "1"))
	execute(t, url, `update fanfare.streams set head_origin = 5`)
	if _, err := s.PublishBatch(t.Context(), []backlog.Publication{ephemeral(publication("s", "x")), publication("s", "2"), ephemeral(publication("s", "y"))}); err != nil {
		t.Fatal(err)
	}
	execute(t, url, `update fanfare.streams set head_origin = 5`)
	mustPublish(t, s, ephemeral(publication("s", "z")))
	all, o := announced(t, conn, 5), origin(t, url)
	for i, want := range []backlog.Position{{Epoch: o, Sequence: 1}, {Epoch: 5, Sequence: 1}, {Epoch: o, Sequence: 2}, {Epoch: o, Sequence: 2}, {Epoch: 5, Sequence: 2}} {
		want.Epoch ^= all[i].OwnEpoch
		if all[i].Frame.Position != want || all[i].Origin != o {
			t.Errorf("announcement %d is %+v, want position %s", i, all[i], want)
		}
	}
}

// S116, symptom: a large frame with text beyond ASCII failed its transaction.
// Cause: parts were cut by bytes, so that a notification ended within a character,
// which PostgreSQL refuses as text; or by characters, so that it was too long. Here
// every cut point lies within a character for some of the lengths.
func TestSplitEphemeralFrames(t *testing.T) {
	t.Parallel()
	url := newSchema(t)
	s := startPublisher(t, url)
	conn := listen(t, s, url)
	var batch []backlog.Publication
	add := func(p backlog.Publication, size int) {
		p.Payload = make([]byte, size)
		for i := range p.Payload {
			p.Payload[i] = byte(i * (len(batch) + 1) / 3)
		}
		batch = append(batch, p)
	}
	long := strings.Repeat("é|", 85) // 255 bytes
	for n := range 9 {
		add(ephemeral(publication(strings.Repeat("x", n), "")), n*1000)
		for _, character := range []string{"é", "€", "𝄞"} {
			p := ephemeral(publication(strings.Repeat("x", n), ""))
			p.ContentType, p.EventType = long, long
			p.Headers = map[string]string{"h": strings.Repeat(character, 8000/len(character))}
			add(p, n*1000)
		}
		add(publication("", ""), n*1000)
	}
	for n := range 60 { // around where an entry no longer fits
		add(ephemeral(publication("edge", "")), 5840+n)
	}
	if _, err := s.PublishBatch(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	add(ephemeral(publication("largest", "")), s.MaxFrameBytes())
	mustPublish(t, s, batch[len(batch)-1])
	for i, a := range announced(t, conn, len(batch)) {
		want := batch[i]
		if a.Stream != want.Stream || a.Frame.Ephemeral != want.Ephemeral {
			t.Fatalf("announcement %d is of %v, ephemeral %v", i, a.Stream, a.Frame.Ephemeral)
		}
		if a.Kind == backlog.AnnouncePointer {
			continue
		}
		if string(a.Frame.Payload) != string(want.Payload) || a.Frame.ContentType != want.ContentType || a.Frame.Headers["h"] != want.Headers["h"] {
			t.Errorf("frame %d, of %d bytes, has changed", i, len(want.Payload))
		}
	}
}

// One stream, many publishers of both kinds of frames, through two stores and by
// SQL, in lanes and batches: each ephemeral frame is announced after the durable
// frame that was the newest at its commit, and every publisher's order is kept.
func TestOrderOfBothKinds(t *testing.T) {
	t.Parallel()
	const publishers, rounds = 12, 30
	url := newSchema(t)
	stores := []*Store{startPublisher(t, url), startPublisher(t, url)}
	conn := listen(t, stores[0], url)
	applications := []*sqlPublisher{newSQLPublisher(t, url), newSQLPublisher(t, url)}
	frame := func(caller, i int) backlog.Publication {
		p := publication("s", fmt.Sprintf("%d %d", caller, i))
		p.Ephemeral = (caller+i)%2 == 0
		return p
	}
	err := publishAll(t.Context(), publishers, rounds, func(ctx context.Context, caller, i int) error {
		s := stores[caller%2]
		switch {
		case caller < len(applications):
			return applications[caller].publishBoth(ctx, time.Duration(i%4)*time.Millisecond, frame(caller, 2*i), frame(caller, 2*i+1))
		case caller < 5:
			_, err := s.PublishBatch(ctx, []backlog.Publication{frame(caller, 2*i), frame(caller, 2*i+1)})
			return err
		}
		first, second := submit(ctx, s, frame(caller, 2*i)), submit(ctx, s, frame(caller, 2*i+1))
		_, err := first.wait(t)
		_, err2 := second.wait(t)
		return errors.Join(err, err2)
	})
	if err != nil {
		t.Fatal(err)
	}
	next := make(map[string]int)
	var head uint64
	for i, a := range announced(t, conn, publishers*rounds*2) {
		if !a.Frame.Ephemeral {
			head++
		}
		if a.Frame.Position != (backlog.Position{Epoch: a.OwnEpoch ^ a.Origin, Sequence: head}) {
			t.Fatalf("announcement %d is %+v, after %d durable ones", i, a, head)
		}
		caller, number, _ := strings.Cut(string(a.Frame.Payload), " ")
		if number != strconv.Itoa(next[caller]) {
			t.Errorf("frame %s of publisher %s comes where %d is due", number, caller, next[caller])
		}
		next[caller]++
	}
	if want := publishers * rounds; int(head) != want || len(stored(t, conn, "s")) != want {
		t.Errorf("%d durable frames were announced, want %d", head, want)
	}
}

// publishBoth keeps the transaction open for a while after publishing.
func (p *sqlPublisher) publishBoth(ctx context.Context, open time.Duration, frames ...backlog.Publication) error {
	err := p.exec(ctx, "begin")
	for _, f := range frames {
		function := "publish"
		if f.Ephemeral {
			function = "publish_ephemeral"
		}
		err = errors.Join(err, p.exec(ctx, `select fanfare.`+function+`('c', $1, $2)`, f.Stream.Scope, f.Payload))
	}
	return errors.Join(err, p.exec(ctx, `select pg_sleep($1)`, open.Seconds()), p.exec(ctx, "commit"))
}

// The answer is lost. An ephemeral frame cannot be told from another one by a key,
// so its outcome is unknown, and it is not announced twice. A batch is known by
// its durable frames: if these have keys it is retried, and nothing of it is
// announced again.
func TestEphemeralAnswerLost(t *testing.T) {
	t.Parallel()
	s, proxy, url := startBehindProxy(t, func(c *committerConfig) { c.CallTimeout = 5 * time.Second })
	admin, conn := pgtest.Dial(t, url), listen(t, s, url)
	lose := func(scope, key string, batch ...backlog.Publication) (ended chan error) {
		t.Helper()
		ended = make(chan error, 1)
		for i := range batch {
			batch[i].Stream.Scope = scope
		}
		durable := publication(scope, "durable in "+scope)
		batch = append(batch, keyed(durable, key))
		holdAnswer(t, proxy, admin, string(durable.Payload), func() {
			go func() {
				outcomes, err := s.PublishBatch(t.Context(), batch)
				if err == nil && (outcomes[0] != backlog.Outcome{} || outcomes[1].Position.Sequence != 1) {
					err = fmt.Errorf("the outcomes are %+v", outcomes)
				}
				ended <- err
			}()
		})
		proxy.Cut()
		proxy.Restore()
		return ended
	}
	passing := ephemeral(publication("", "passing"))
	if err := <-lose("keyed", "k", passing); err != nil {
		t.Errorf("the batch with a key ended with %v", err)
	}
	if err := <-lose("keyless", "", passing); !errors.Is(err, backlog.ErrOutcomeUnknown) {
		t.Errorf("the batch without a key ended with %v", err)
	}
	mustPublishSoon(t, s, publication("", "marker"))
	count := make(map[string]int)
	for _, a := range announced(t, conn, 5) {
		count[string(a.Frame.Payload)+" "+a.Stream.Scope]++
	}
	for _, what := range []string{"passing keyed", "durable in keyed keyed", "passing keyless", "durable in keyless keyless", "marker "} {
		if count[what] != 1 {
			t.Errorf("%s was announced %d times", what, count[what])
		}
	}
}
