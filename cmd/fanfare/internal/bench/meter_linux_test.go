package bench

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMemoryIsReadFromProc(t *testing.T) {
	const status = "Name:\tx\nVmPeak:\t  999 kB\nVmRSS:\t    1024 kB\nThreads:\t8\n"
	const rollup = "00400000-7fff ---p 00000000 00:00 0 [rollup]\nRss:                2048 kB\nPss:                 100 kB\n"
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int64
		err   string
	}{
		{"exact", map[string]string{"status": status, "smaps_rollup": rollup}, 2 << 20, ""},
		{"of another user", map[string]string{"status": status}, 1 << 20, ""},
		{"another unit", map[string]string{"status": "VmRSS:\t 1 MB\n"}, 0, "does not tell how much memory"},
		{"no number", map[string]string{"status": "VmRSS:\t many kB\n"}, 0, "many"},
		{"nothing", nil, 0, "does not tell how much memory"},
	} {
		dir := t.TempDir()
		for name, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := residentOf(dir + "/")
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %d, %v", c.name, got, err)
		}
	}
}

func TestUsageThatCannotBeRead(t *testing.T) {
	if _, err := readUsage(t.TempDir(), os.Getpid()); !errors.Is(err, ErrNoMeter) {
		t.Errorf("without /proc: %v", err)
	}
	// More than a kernel numbers.
	if _, err := ReadUsage(1 << 30); err == nil || err.Error() != "there is no process 1073741824" {
		t.Errorf("a process that is not there: %v", err)
	}
}

// The meter follows what a process really uses: this one's.
func TestUsageOfThisProcess(t *testing.T) {
	usage := func() Usage {
		t.Helper()
		u, err := ReadUsage(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	before := usage()
	const more = 64 << 20
	memory := make([]byte, more)
	for i := 0; i < more; i += os.Getpagesize() {
		memory[i] = 1
	}
	if after := usage(); after.Resident-before.Resident < more/2 {
		t.Errorf("%d bytes more of memory are %d", more, after.Resident-before.Resident)
	}
	runtime.KeepAlive(memory)
	deadline := time.Now().Add(patience)
	for usage().CPU < before.CPU+50*time.Millisecond {
		if time.Now().After(deadline) {
			t.Fatal("no processor time was used")
		}
	}
	// The kernel's other account of the same has coarse steps.
	var times unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &times); err != nil {
		t.Fatal(err)
	}
	accounted, after := time.Duration(times.Utime.Nano()+times.Stime.Nano()), usage().CPU
	if accounted > after || after-accounted > 5*time.Second {
		t.Errorf("the meter says %s, getrusage %s a moment before", after, accounted)
	}
}
