package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func readUsage(proc string, pid int) (Usage, error) {
	if _, err := os.Stat(proc + "/self/status"); err != nil {
		return Usage{}, ErrNoMeter
	}
	dir := fmt.Sprintf("%s/%d/", proc, pid)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return Usage{}, fmt.Errorf("there is no process %d", pid)
	}
	resident, err := residentOf(dir)
	if err != nil {
		return Usage{}, err
	}
	cpu, err := cpuOf(pid)
	return Usage{cpu, resident}, err
}

// cpuOf reads the process's clock of processor time. It is the sum of the utime
// and stime of /proc/PID/stat, which has them in steps of 10 ms. The clock's id
// follows from the process's, as in clock_getcpuclockid(3).
func cpuOf(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED, what all threads were scheduled for
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil {
		return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// residentOf reads the memory of the process with the directory dir. The sum
// over its mappings is exact; the counter in its status, for a process of another
// user, is late by some pages for each processor.
func residentOf(dir string) (int64, error) {
	for _, file := range []struct{ name, field string }{{"smaps_rollup", "Rss:"}, {"status", "VmRSS:"}} {
		text, err := os.ReadFile(dir + file.name)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) == 3 && fields[0] == file.field && fields[2] == "kB" {
				kilobytes, err := strconv.ParseInt(fields[1], 10, 64)
				return kilobytes << 10, err
			}
		}
	}
	return 0, fmt.Errorf("%sstatus does not tell how much memory the process has", dir)
}
