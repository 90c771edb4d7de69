package listener

import (
	"slices"
	"syscall"
	"testing"
	"time"
)

func median(d []time.Duration) time.Duration {
	d = slices.Clone(d)
	slices.Sort(d)
	return d[len(d)/2]
}

// crashBackend kills a server process hard, which makes the postmaster end all
// others and recover.
func crashBackend(t testing.TB, url string) {
	t.Helper()
	pid := query[int](t, connect(t, url), "select pg_backend_pid()")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
