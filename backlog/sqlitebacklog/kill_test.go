package sqlitebacklog

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

const (
	killedStreams    = 7
	killedPublishers = 16
)

// childPublishes publishes to several streams until it is killed, and prints a
// line for each frame once it is acknowledged.
func childPublishes(path string) error {
	s, _, err := openInChild(Config{Path: path})
	if err != nil {
		return err
	}
	var mu sync.Mutex // keeps lines whole
	var publishers sync.WaitGroup
	for publisher := range killedPublishers {
		publishers.Go(func() {
			for i := publisher; ; i++ {
				channel := fmt.Sprint("killed ", i%killedStreams)
				payload := fmt.Sprintf("%d of publisher %d of process %d", i, publisher, os.Getpid())
				o, err := publishText(s, backlog.StreamName{Channel: channel}, payload)
				if err != nil {
					fmt.Fprintln(os.Stderr, "publish:", err)
					os.Exit(1)
				}
				mu.Lock()
				fmt.Printf("%s\t%s\t%s\n", channel, o.Position, payload)
				mu.Unlock()
			}
		})
	}
	publishers.Wait()
	return nil
}

// TestKilled: a process is killed at random moments of heavy publishing. Whatever
// it acknowledged is there, where it said, and sequences have no hole; the file is
// opened without a repair.
func TestKilled(t *testing.T) {
	path := filepath.Join(realTempDir(t), "fanfare.db")
	unbounded := int64(backlog.MaxPositionValue)
	acknowledged := map[string]map[backlog.Position]string{}
	for round := range 6 {
		c := child(t, "publish", path)
		lines := startChild(t, c)
		if !lines.Scan() {
			t.Fatal("the child acknowledged nothing")
		}
		killer := time.AfterFunc(time.Duration(rand.IntN(300))*time.Millisecond, func() { _ = c.Process.Kill() })
		for more := true; more; more = lines.Scan() {
			channel, position, payload := parseAcknowledgement(t, lines.Text())
			if acknowledged[channel] == nil {
				acknowledged[channel] = map[backlog.Position]string{}
			}
			if other, twice := acknowledged[channel][position]; twice {
				t.Fatalf("%s of %s was given to %q and %q", position, channel, other, payload)
			}
			acknowledged[channel][position] = payload
		}
		killer.Stop()
		_ = c.Wait()
		s := openRunning(t, Config{Path: path, Backlog: &unbounded})
		checkAcknowledged(t, s, round, acknowledged)
		s.stop()
	}
}

func parseAcknowledgement(t *testing.T, line string) (channel string, position backlog.Position, payload string) {
	t.Helper()
	fields := strings.Split(line, "\t")
	if len(fields) != 3 {
		t.Fatalf("the child said %q", line)
	}
	position, err := backlog.ParsePosition(fields[1])
	if err != nil {
		t.Fatal(err)
	}
	return fields[0], position, fields[2]
}

// checkAcknowledged checks what a killed process left.
func checkAcknowledged(t *testing.T, s *runningStore, round int, acknowledged map[string]map[backlog.Position]string) {
	t.Helper()
	total, stored := 0, 0
	for channel, frames := range acknowledged {
		result, err := s.Load(t.Context(), 0, []backlog.LoadRequest{{
			Stream: backlog.StreamName{Channel: channel}, MaxFrames: 1 << 30, MaxBytes: 1 << 30,
		}})
		if err != nil {
			t.Fatal(err)
		}
		l := &result.Streams[0]
		there := map[backlog.Position]string{}
		for i, f := range l.Frames {
			if f.Position.Sequence != uint64(i+1) {
				t.Fatalf("round %d: frame %d of %s has sequence %d", round, i, channel, f.Position.Sequence)
			}
			there[f.Position] = string(f.Payload)
		}
		if n := uint64(len(l.Frames)); n != l.State.Head.Sequence {
			t.Errorf("round %d: %s has %d frames and its head is %s", round, channel, n, l.State.Head)
		}
		for position, payload := range frames {
			if there[position] != payload {
				t.Fatalf("round %d: %s of %s was acknowledged for %q and holds %q", round, position, channel, payload, there[position])
			}
		}
		total, stored = total+len(frames), stored+len(there)
	}
	// What was in flight may be stored, too.
	if stored < total || stored > total+(round+1)*killedPublishers {
		t.Errorf("round %d: %d frames were acknowledged and %d are stored", round, total, stored)
	}
	t.Logf("round %d: %d frames", round, total)
}
