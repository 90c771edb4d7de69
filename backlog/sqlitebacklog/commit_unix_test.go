//go:build unix

package sqlitebacklog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

var (
	_ = addRole("failing commits", childRepeatsCommits)
	_ = addRole("remains", childLeavesRemains)
	_ = addRole("remains written over", childWritesOverRemains)
)

// TestCommitMadeAgain: the disk fails a commit and takes the next one. Everybody
// is told a position, and everything is stored once, without a hole, also for who
// opens the file after that, and announced once, ephemeral frames among it.
func TestCommitMadeAgain(t *testing.T) {
	path := filepath.Join(realTempDir(t), "fanfare.db")
	c := child(t, "failing commits", path)
	lines := startChild(t, c)
	var want []string
	for lines.Scan() {
		want = append(want, lines.Text())
	}
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	s := openRunning(t, Config{Path: path})
	if got := everyFrame(t.Context(), s.Store); !slices.Equal(got, want) || len(want) == 0 {
		t.Errorf("a new process finds %q, want %q", got, want)
	}
}

// childRepeatsCommits prints every frame that is stored.
func childRepeatsCommits(path string) error {
	signal.Ignore(syscall.SIGXFSZ) // the write fails instead
	var log recordedLog
	// A transaction asks for the time once, when it begins.
	asked := 0
	var failed error
	limit := func(bytes int64) { failed = errors.Join(failed, limitFiles(bytes)) }
	const armed = -1000 // far from 0, for whoever else asks for the time
	clock := &clock{read: func() (time.Time, time.Duration) {
		switch asked++; asked {
		case armed + 1:
			limit(largestFile(path))
		case armed + 2:
			limit(allRoom)
		}
		return time.Now(), time.Since(processStart)
	}}
	s, err := open(context.Background(), Config{Path: path, Logger: log.logger()}, clock)
	if err != nil {
		return err
	}
	defer runInChild(s)()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	sink := newCollectingSink()
	go func() { _ = s.bus.Run(ctx, sink) }()
	if _, err := s.bus.Ensure(ctx); err != nil {
		return err
	}
	var told []string
	for round := range 5 {
		conn, err := s.writer.Conn(context.Background()) // all wait for one transaction
		if err != nil {
			return err
		}
		answers := submitRound(s, round)
		asked = armed
		if err := conn.Close(); err != nil {
			return err
		}
		var answered []string
		for range cap(answers) {
			answered = append(answered, <-answers...)
		}
		told = append(told, answered...)
		if failed != nil || asked != armed+2 || log.count("made again") != round+1 {
			return fmt.Errorf("round %d: %d transactions, %w, and the log says %s", round, asked-armed, failed, log.text.String())
		}
		announced, err := sink.drain(ctx, s)
		if err != nil {
			return err
		}
		if err := announcedOnce(announced, answered, round); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	slices.Sort(told)
	if got := everyFrame(context.Background(), s); !slices.Equal(got, told) {
		return fmt.Errorf("stored are %q, told was %q", got, told)
	}
	fmt.Println(strings.Join(told, "\n"))
	return nil
}

// announcedOnce checks what a round has announced: the durable frames that callers
// were told of, and the ephemeral ones of submitRound, each of them once.
func announcedOnce(announced []backlog.Announcement, told []string, round int) error {
	var durable, ephemeral, want []string
	for _, a := range announced {
		if a.Frame.Ephemeral {
			ephemeral = append(ephemeral, string(a.Frame.Payload))
		} else {
			durable = append(durable, fmt.Sprintf("%s %v %s", a.Stream.Channel, a.Frame.Position, a.Frame.Payload))
		}
	}
	told = slices.Clone(told)
	slices.Sort(told)
	slices.Sort(durable)
	for i := range passingOfRound {
		want = append(want, passingPayload(i, round))
	}
	if !slices.Equal(durable, told) || !slices.Equal(ephemeral, want) {
		return fmt.Errorf("announced are %q and, ephemeral, %q; want %q and %q", durable, ephemeral, told, want)
	}
	return nil
}

// passingOfRound is how many ephemeral frames submitRound publishes, in the order
// of their payloads.
const passingOfRound = 12

func passingPayload(i, round int) string { return fmt.Sprintf("ephemeral %d of round %d", i, round) }

// submitRound submits publications and an atomic batch. Each of the answers is
// made of lines like those of everyFrame, without a line for ephemeral frames.
func submitRound(s *Store, round int) <-chan []string {
	const singles = 30
	answers := make(chan []string, singles+1+passingOfRound-2)
	line := func(p *backlog.Publication, o backlog.Outcome, err error) string {
		if err != nil || o.Duplicate || p.Ephemeral {
			return fmt.Sprintf("%q: %v, duplicate %v", p.Payload, err, o.Duplicate)
		}
		return fmt.Sprintf("%s %v %s", p.Stream.Channel, o.Position, p.Payload)
	}
	passed := 0
	next := func(stream int) backlog.Publication {
		passed++
		return passing(fmt.Sprint("stream ", stream), passingPayload(passed-1, round))
	}
	for i := range singles {
		p := frame(fmt.Sprint("stream ", i%3), fmt.Sprintf("%d of round %d", i, round))
		if i%2 == 0 {
			p.IdempotencyKey = string(p.Payload)
		}
		s.Submit(context.Background(), p, func(o backlog.Outcome, err error) { answers <- []string{line(&p, o, err)} })
		if i%3 == 0 {
			p := next(i / 3 % 3)
			s.Submit(context.Background(), p, func(o backlog.Outcome, err error) {
				if err == nil && o == (backlog.Outcome{}) {
					answers <- nil
				} else {
					answers <- []string{line(&p, o, err)}
				}
			})
		}
	}
	batch := &item{atomic: true, size: 1, done: func(it *item) {
		var lines []string
		for i := range it.publications {
			if it.err == nil && it.publications[i].Ephemeral {
				continue
			}
			lines = append(lines, line(&it.publications[i].Publication, it.publications[i].outcome, it.err))
		}
		answers <- lines
	}}
	for i := range 4 {
		batch.publications = append(batch.publications, newPublication(frame(fmt.Sprint("stream ", i%2), fmt.Sprintf("%d of batch %d", i, round))))
	}
	batch.publications = append([]publication{newPublication(next(0))}, append(batch.publications, newPublication(next(1)))...)
	s.committer.submit(context.Background(), batch)
	return answers
}

// everyFrame has a line for each frame of submitRound's streams; one that says so
// if a sequence is missing.
func everyFrame(ctx context.Context, s *Store) (lines []string) {
	for i := range 3 {
		stream := backlog.StreamName{Channel: fmt.Sprint("stream ", i)}
		result, err := s.Load(ctx, 0, []backlog.LoadRequest{everything(stream)})
		if err != nil {
			return []string{err.Error()}
		}
		loaded := result.Streams[0]
		if uint64(len(loaded.Frames)) != loaded.State.Head.Sequence {
			lines = append(lines, fmt.Sprintf("%s has %d frames up to %v", stream.Channel, len(loaded.Frames), loaded.State.Head))
		}
		for _, f := range loaded.Frames {
			lines = append(lines, fmt.Sprintf("%s %v %s", stream.Channel, f.Position, f.Payload))
		}
	}
	slices.Sort(lines)
	return lines
}

// TestRemainsOfACommit: the worst that a failed commit can leave, all of it with
// its mark. The process that made it does not see it; who opens the file after
// that process was killed does, unless a transaction was written over it: then it
// finds that one alone. So what has failed may be made again, and its outcome is
// unknown as long as it was not.
func TestRemainsOfACommit(t *testing.T) {
	for role, want := range map[string][]string{
		"remains":              {"before", "lost 1", "lost 2", "lost 3"},
		"remains written over": {"before", "again"},
	} {
		t.Run(role, func(t *testing.T) {
			path := filepath.Join(realTempDir(t), "fanfare.db")
			c := child(t, role, path)
			if said, _ := runChild(t, c); said != "" || c.ProcessState.Success() {
				t.Fatalf("the child was not killed: %s", said)
			}
			s := openRunning(t, Config{Path: path})
			if got := payloads(t, s, "a"); !slices.Equal(got, want) {
				t.Errorf("frames are %q, want %q", got, want)
			}
			if next := put(t, s, "a", "next").Sequence; next != uint64(len(want)+1) {
				t.Errorf("the next sequence is %d", next)
			}
		})
	}
}

func childLeavesRemains(path string) error {
	if _, err := openWithRemains(path); err != nil {
		return err
	}
	return syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

func childWritesOverRemains(path string) error {
	s, err := openWithRemains(path)
	if err != nil {
		return err
	}
	if o, err := publishText(s, backlog.StreamName{Channel: "a"}, "again"); err != nil || o.Position.Sequence != 2 {
		return fmt.Errorf("publish over the remains: %v, %w", o, err)
	}
	return syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

// openWithRemains opens a store with a frame, and appends to its log the pages of
// a transaction with three more: those that this transaction has on a copy.
func openWithRemains(path string) (*Store, error) {
	s, _, err := openInChild(Config{Path: path})
	if err != nil {
		return nil, err
	}
	if _, err := publishText(s, backlog.StreamName{Channel: "a"}, "before"); err != nil {
		return nil, err
	}
	log, err := os.ReadFile(path + "-wal")
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	copied := path + ".copy"
	if err := errors.Join(os.WriteFile(copied, content, 0o600), os.WriteFile(copied+"-wal", log, 0o600)); err != nil {
		return nil, err
	}
	other, stop, err := openInChild(Config{Path: copied})
	if err != nil {
		return nil, err
	}
	defer stop()
	batch := []backlog.Publication{frame("a", "lost 1"), frame("a", "lost 2"), frame("a", "lost 3")}
	if _, err := other.PublishBatch(context.Background(), batch); err != nil {
		return nil, err
	}
	longer, err := os.ReadFile(copied + "-wal")
	if err != nil {
		return nil, err
	}
	if len(longer) <= len(log) || !slices.Equal(longer[:len(log)], log) {
		return nil, errors.New("the copy's log does not continue the log")
	}
	if err := os.WriteFile(path+"-wal", longer, 0o600); err != nil { // in place
		return nil, err
	}
	return s, readable(s, "a", 1)
}
