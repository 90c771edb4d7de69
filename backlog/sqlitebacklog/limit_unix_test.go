//go:build unix

package sqlitebacklog

import (
	"errors"
	"fmt"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/fanfare-io/fanfare/backlog"
)

var _ = addRole("outcomes at a limit", childReportsOutcomes)

// TestOutcomesAtLimit: many publish to a file that may not grow, and the process is
// killed. No outcome was unknown: the next process finds everything that was called
// stored and nothing else.
func TestOutcomesAtLimit(t *testing.T) {
	path := filepath.Join(realTempDir(t), "fanfare.db")
	c := child(t, "outcomes at a limit", path)
	lines := startChild(t, c)
	var stored []string
	refused := 0
	for lines.Scan() {
		what, payload, _ := strings.Cut(lines.Text(), " ")
		switch what {
		case "stored":
			stored = append(stored, payload)
		case "refused":
			refused++
		default:
			t.Errorf("an outcome is %s", lines.Text())
		}
	}
	if err := c.Wait(); err == nil || c.ProcessState.Exited() {
		t.Fatalf("the child was not killed: %v", err)
	}
	if len(stored) < 20 || refused < 20 {
		t.Fatalf("%d frames were stored and %d refused", len(stored), refused)
	}
	got := payloads(t, openRunning(t, Config{Path: path}), "a")
	for i := range got {
		got[i], _, _ = strings.Cut(got[i], " ")
	}
	slices.Sort(got)
	slices.Sort(stored)
	if !slices.Equal(got, stored) {
		t.Errorf("%d frames are there, %d were called stored", len(got), len(stored))
	}
}

// childReportsOutcomes prints an outcome of each publish, while the limit is met,
// lifted and met again.
func childReportsOutcomes(path string) error {
	signal.Ignore(syscall.SIGXFSZ) // the write fails instead
	s, _, err := openInChild(Config{Path: path})
	if err != nil {
		return err
	}
	for round := range 3 {
		if err := limitFiles(largestFile(path) + 150<<10); err != nil {
			return err
		}
		var publishers sync.WaitGroup
		for publisher := range 8 {
			publishers.Go(func() {
				for i := range 20 {
					name := fmt.Sprintf("%d/%d/%d", round, publisher, i)
					_, err := publishText(s, backlog.StreamName{Channel: "a"}, name+" "+strings.Repeat("x", 1500))
					switch {
					case err == nil:
						fmt.Println("stored", name)
					case errors.Is(err, backlog.ErrUnavailable) || errors.Is(err, backlog.ErrDiskFull):
						fmt.Println("refused", name)
					default:
						fmt.Println("other", name, err)
					}
				}
			})
		}
		publishers.Wait()
		if err := limitFiles(allRoom); err != nil {
			return err
		}
	}
	return killMyself()
}
