package failover_test

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"
)

// workerBirths is how many workers come and go; workersAtOnce are there at a time.
func workerBirths() (births, atOnce int) {
	if inLongForm() {
		return 500, 10
	}
	return 50, 5
}

// Workers come, subscribe, and die, half of them by a kill: the hub's file descriptors
// and the database's connections stay as they were.
func TestBirthsAndDeathsOfWorkers(t *testing.T) {
	t.Parallel()
	database, path := migrated(t), socketIn(t)
	hub := serveHub(t, database, path)
	births, atOnce := workerBirths()
	cfg := workerConfig{Hub: "unix://" + path, Database: database, Streams: 2}
	generation := func(first int) {
		workers := startWorkers(t, atOnce, cfg)
		for i, w := range workers {
			if (first+i)%2 == 0 {
				w.signal(syscall.SIGKILL)
			} else {
				w.stdin.Close() // it ends, as it has nobody to work for
			}
		}
		for _, w := range workers {
			<-w.ended
		}
	}
	// What stays for good is there after the first.
	generation(0)
	files, conns := settled(t, hub), connections(t, database)
	for born := atOnce; born < births; born += atOnce {
		generation(born)
		if names := census(t, database); len(names) != 1 || own(names[0]) {
			t.Fatalf("after %d births these listen: %q", born, names)
		}
	}
	// Two that subscribe at the same time may have the hub connect to the database once
	// more, for good.
	const further = 3
	eventually(t, "have no more files open than before", func() bool { return openFiles(t, hub) <= files+further })
	if now := connections(t, database); now > conns+further {
		t.Errorf("%d connections to the database, %d before", now, conns)
	}
	t.Logf("%d births: %d files, then %d; %d connections, then %d", births, files, openFiles(t, hub), conns, connections(t, database))
}

// settled is how many files a process has open when no more are closed.
func settled(t *testing.T, p *hubProcess) int {
	t.Helper()
	files, since := openFiles(t, p), time.Now()
	eventually(t, "close files", func() bool {
		if now := openFiles(t, p); now != files {
			files, since = now, time.Now()
		}
		return time.Since(since) > 300*time.Millisecond
	})
	return files
}

func openFiles(t *testing.T, p *hubProcess) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
