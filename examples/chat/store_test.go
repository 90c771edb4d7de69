package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/browser/browsertest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// patience bounds every wait for something that must happen.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	code := browsertest.Run(run(func() int { return pgtest.Run(m) }))
	servicetest.RemoveProgram()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// run is what browsertest wants of a testing.M.
type run func() int

func (r run) Run() int { return r() }

// newChat sets up the chat where a replica has created Fanfare's schema.
func newChat(t *testing.T) (*pgxpool.Pool, *servicetest.Replica) {
	t.Helper()
	database := pgtest.NewDatabase(t)
	replica := servicetest.Start(t, database)
	// Servers start together, and each sets up.
	var group errgroup.Group
	for range 3 {
		group.Go(func() error { return setUp(t.Context(), database) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	pool, err := connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool, replica
}

func newClient(t *testing.T, replica *servicetest.Replica) *clientlib.Client {
	t.Helper()
	client := clientlib.New(replica.Conn)
	t.Cleanup(func() { client.Close() })
	return client
}

func newMessage(author, body string) message {
	return message{Key: newKey(), Author: author, Body: body, Sent: time.Now().UTC().Truncate(time.Millisecond), Server: "chat-1"}
}

func newKey() string {
	var b [16]byte
	rand.Read(b[:])
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// A page shows the history, and later subscribes after the position where it ends.
// Whatever is written before, while and after the history is read, by how many servers:
// each message is in one of the two, and only in one.
//
// A history in the order of ids that are given before the stream is held, or a position
// that is read apart from the messages, fails here within a few rounds.
func TestHistoryAndStreamFitTogether(t *testing.T) {
	pool, replica := newChat(t)
	client, ctx := newClient(t, replica), bounded(t)
	const writers, each = 4, 15
	var pages, writing errgroup.Group
	openPage := func() error {
		shown, err := history(ctx, pool, "lobby")
		if err == nil {
			pages.Go(func() error { return follow(ctx, client, shown, writers*each) })
		}
		return err
	}
	if err := openPage(); err != nil { // before there is anything
		t.Fatal(err)
	}
	for w := range writers {
		writing.Go(func() error {
			for n := range each {
				_, err := post(ctx, pool, "lobby", newMessage("Ann", fmt.Sprintf("%d/%d", w, n)))
				if err == nil && n%5 == w {
					err = openPage()
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := errors.Join(writing.Wait(), pages.Wait()); err != nil {
		t.Fatal(err)
	}
}

// follow subscribes as a page does, and checks that it has seen the messages 1 to last.
func follow(ctx context.Context, client *clientlib.Client, shown []storedMessage, last uint64) error {
	var seen []uint64
	for _, m := range shown {
		seen = append(seen, m.Sequence)
	}
	start := clientlib.Oldest()
	if position := positionAfter(shown); position != "" {
		p, err := clientlib.ParsePosition(position)
		if err != nil {
			return err
		}
		start = clientlib.After(p)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for event, err := range client.Subscribe(ctx, clientlib.Stream{Channel: channel, Scope: "lobby"}, start).All(ctx) {
		if err != nil {
			return err
		}
		switch e := event.(type) {
		case *clientlib.Gap:
			return fmt.Errorf("a gap: %v", e.Reason)
		case *clientlib.Frame:
			seen = append(seen, e.Position.Sequence)
		}
		if n := len(seen); n > 0 && seen[n-1] >= last {
			break
		}
	}
	// The history is bounded, and may begin later.
	for i, sequence := range seen {
		if sequence != seen[0]+uint64(i) {
			return fmt.Errorf("after %d messages of the history: %v", len(shown), seen)
		}
	}
	return nil
}

// A page that got no answer sends its message again, perhaps to another server.
func TestMessageSentTwiceIsStoredOnce(t *testing.T) {
	pool, replica := newChat(t)
	client, ctx := newClient(t, replica), bounded(t)
	m := newMessage("Ann", "once")
	var mu sync.Mutex
	var positions []string
	var sending errgroup.Group
	for i := range 5 {
		sending.Go(func() error {
			again := m
			again.Server, again.Sent = fmt.Sprintf("chat-%d", i), m.Sent.Add(time.Duration(i)*time.Second)
			stored, err := post(ctx, pool, "lobby", again)
			mu.Lock()
			defer mu.Unlock()
			positions = append(positions, stored.position())
			return err
		})
	}
	if err := sending.Wait(); err != nil {
		t.Fatal(err)
	}
	if slices.Sort(positions); positions[0] != positions[4] {
		t.Errorf("the answers are %v", positions)
	}
	marker, err := post(ctx, pool, "lobby", newMessage("Ann", "marker"))
	if err != nil || marker.Sequence != 2 {
		t.Fatalf("the next message has the sequence %d, %v", marker.Sequence, err)
	}
	shown, err := history(ctx, pool, "lobby")
	if err != nil || len(shown) != 2 {
		t.Fatalf("the history is %v, %v", shown, err)
	}
	if err := follow(ctx, client, nil, 2); err != nil {
		t.Error(err)
	}
	other := newMessage("Ann", "something else")
	other.Key = m.Key
	if _, err := post(ctx, pool, "lobby", other); !errors.Is(err, errKeyUsed) {
		t.Errorf("another message under its key: %v", err)
	}
}

func TestNothingIsPublishedInARoomThatIsNotThere(t *testing.T) {
	pool, replica := newChat(t)
	ctx := bounded(t)
	if _, err := post(ctx, pool, "nowhere", newMessage("Ann", "hello?")); !errors.Is(err, errNoRoom) {
		t.Errorf("a message: %v", err)
	}
	if err := show(ctx, pool, "nowhere", activity{Kind: "typing", Name: "Ann"}); !errors.Is(err, errNoRoom) {
		t.Errorf("typing: %v", err)
	}
	info, err := replica.Client.GetStream(ctx, &fanfarev1.GetStreamRequest{Channel: channel, Scope: "nowhere"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("its stream is %v, %v", info, err)
	}
}

// Who writes may do nothing else.
func TestRightsOfTheApplication(t *testing.T) {
	pool, _ := newChat(t)
	for _, statement := range []string{
		"select from fanfare.channel_frames", "select fanfare.close_stream('chat/messages', 'lobby')",
		"update chat.messages set body = ''", "delete from chat.messages", "delete from chat.rooms",
	} {
		if _, err := pool.Exec(t.Context(), statement); codeOf(err) != "42501" { // insufficient_privilege
			t.Errorf("%s: %v", statement, err)
		}
	}
}

func TestRoomsTellWhereTheyAre(t *testing.T) {
	pool, _ := newChat(t)
	ctx := bounded(t)
	var last storedMessage
	for range 3 {
		var err error
		if last, err = post(ctx, pool, "garden", newMessage("Ann", "hello")); err != nil {
			t.Fatal(err)
		}
	}
	all, err := rooms(ctx, pool)
	if err != nil {
		t.Fatal(err)
	}
	want := []room{{"engine-room", "Engine room", "", 0}, {"garden", "Garden", last.position(), 3}, {"kitchen", "Kitchen", "", 0}, {"lobby", "Lobby", "", 0}}
	if !slices.Equal(all, want) {
		t.Errorf("the rooms are %v, want %v", all, want)
	}
}

// Without Fanfare's schema the error says what is missing.
func TestSetUpNeedsFanfare(t *testing.T) {
	err := setUp(t.Context(), pgtest.NewDatabase(t))
	if err == nil || !strings.Contains(err.Error(), "fanfare serve") {
		t.Errorf("the error is %v", err)
	}
}
