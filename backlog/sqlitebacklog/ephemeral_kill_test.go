package sqlitebacklog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

var _ = addRole("publish ephemeral", childPublishesEphemeral)

// childPublishesEphemeral publishes until it is killed. It prints a line for each
// durable frame once it is acknowledged, and publishes ephemeral ones to the same
// streams, and to one that has nothing else.
func childPublishesEphemeral(path string) error {
	s, _, err := openInChild(Config{Path: path})
	if err != nil {
		return err
	}
	var mu sync.Mutex // keeps lines whole
	failed := make(chan error)
	for publisher := range killedPublishers {
		go func() {
			for i := publisher; ; i++ {
				channel := fmt.Sprint("killed ", i%killedStreams)
				payload := fmt.Sprintf("%d of publisher %d of process %d", i, publisher, os.Getpid())
				for _, p := range []backlog.Publication{passing("only", payload), passing(channel, "lost")} {
					if _, err := backlog.Publish(context.Background(), s, p); err != nil {
						failed <- err
					}
				}
				outcomes, err := s.PublishBatch(context.Background(), []backlog.Publication{passing(channel, "lost"), frame(channel, payload), passing(channel, "lost")})
				if err != nil {
					failed <- err
				}
				mu.Lock()
				fmt.Printf("%s\t%s\t%s\n", channel, outcomes[1].Position, payload)
				mu.Unlock()
			}
		}()
	}
	return <-failed
}

// TestKilledWithEphemeral: what a process that is killed loses are ephemeral
// frames only. Durable ones have no hole where they were, and the stream that has
// nothing else keeps its numbering.
func TestKilledWithEphemeral(t *testing.T) {
	path := filepath.Join(realTempDir(t), "fanfare.db")
	unbounded := int64(backlog.MaxPositionValue)
	acknowledged := map[string]map[backlog.Position]string{}
	var only backlog.StreamState
	for round := range 4 {
		c := child(t, "publish ephemeral", path)
		printed := startChild(t, c)
		if !printed.Scan() {
			t.Fatal("the child acknowledged nothing")
		}
		killer := time.AfterFunc(time.Duration(rand.IntN(300))*time.Millisecond, func() { _ = c.Process.Kill() })
		for more := true; more; more = printed.Scan() {
			channel, position, payload := parseAcknowledgement(t, printed.Text())
			if acknowledged[channel] == nil {
				acknowledged[channel] = map[backlog.Position]string{}
			}
			acknowledged[channel][position] = payload
		}
		killer.Stop()
		_ = c.Wait()
		s := openRunning(t, Config{Path: path, Backlog: &unbounded})
		checkAcknowledged(t, s, round, acknowledged)
		for channel := range acknowledged {
			l := s.loadOne(t, everything(backlog.StreamName{Channel: channel}))
			if !l.State.Ephemeral || slices.ContainsFunc(l.Frames, func(f backlog.Frame) bool { return string(f.Payload) == "lost" }) {
				t.Errorf("round %d: %s has lost its mark or stored an ephemeral frame", round, channel)
			}
		}
		state := s.loadOne(t, everything(backlog.StreamName{Channel: "only"})).State
		if !state.Exists || !state.Ephemeral || state.Head.Sequence != 0 || round > 0 && state != only {
			t.Errorf("round %d: the stream without durable frames is %+v, was %+v", round, state, only)
		}
		only = state
		s.stop()
	}
}
