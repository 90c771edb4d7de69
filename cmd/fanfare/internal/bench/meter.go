package bench

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"
)

// Usage is what the operating system says of a process.
type Usage struct {
	// CPU is user and system time of all threads since the start, in steps of
	// 10 ms.
	CPU time.Duration
	// Resident is the memory in RAM, in bytes.
	Resident int64
}

// clockTick is the unit of times in /proc/PID/stat: 1/100 s on every
// architecture that Go runs on (USER_HZ, proc(5)).
const clockTick = 10 * time.Millisecond

// ErrNoMeter says that this system does not tell what a process uses.
var ErrNoMeter = errors.New("processor time and memory of a process are read from /proc, which this system does not have")

// ReadUsage returns what the process with this number uses. The error is
// ErrNoMeter on a system without /proc.
func ReadUsage(pid int) (Usage, error) { return readUsage("/proc", pid) }

func readUsage(proc string, pid int) (Usage, error) {
	if _, err := os.Stat(proc + "/self/stat"); err != nil {
		return Usage{}, ErrNoMeter
	}
	dir := fmt.Sprintf("%s/%d/", proc, pid)
	stat, err := os.ReadFile(dir + "stat")
	if errors.Is(err, fs.ErrNotExist) {
		return Usage{}, fmt.Errorf("there is no process %d", pid)
	}
	if err != nil {
		return Usage{}, err
	}
	u := Usage{}
	if u.CPU, err = cpuOf(stat); err != nil {
		return Usage{}, err
	}
	u.Resident, err = residentOf(dir)
	return u, err
}

// cpuOf reads the content of /proc/PID/stat. The second field is the program's
// name in brackets, which may hold spaces and brackets; utime and stime are the
// 14th and 15th.
func cpuOf(stat []byte) (time.Duration, error) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	const utime, stime = 14 - 3, 15 - 3
	if len(fields) <= stime {
		return 0, fmt.Errorf("/proc has a process status of %d fields", len(fields))
	}
	user, err1 := strconv.ParseInt(string(fields[utime]), 10, 64)
	system, err2 := strconv.ParseInt(string(fields[stime]), 10, 64)
	return time.Duration(user+system) * clockTick, errors.Join(err1, err2)
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
