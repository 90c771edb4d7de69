//go:build unix

package bench

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Too low a limit is told before ten thousand connections are tried.
func TestOpenFilesAreCheckedFirst(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := needFiles(1); err != nil {
		t.Errorf("one connection: %v", err)
	}
	if uint64(limit.Cur) > 1<<40 {
		return // there is no limit here
	}
	c := Case{Name: "c", Sizes: Sizes{Connections: int(limit.Cur)}}
	err := (&Scenario{Name: "s"}).Measure(t.Context(), Config{Rounds: 1}, &c)
	if err == nil || !strings.Contains(err.Error(), "ulimit -n") || !strings.Contains(err.Error(), "--connections") {
		t.Errorf("as many connections as files: %v", err)
	}
}
