package bench

import (
	"errors"
	"time"
)

// Usage is what the operating system says of a process.
type Usage struct {
	// CPU is user and system time of all threads since the start, those that have
	// ended too.
	CPU time.Duration
	// Resident is the memory in RAM, in bytes.
	Resident int64
}

// ErrNoMeter says that this system does not tell what a process uses.
var ErrNoMeter = errors.New("what processor time and memory another process uses is read from a Linux kernel, and this system has none")

// ReadUsage returns what the process with this number uses. The error is
// ErrNoMeter on another system than Linux, or without /proc.
func ReadUsage(pid int) (Usage, error) { return readUsage("/proc", pid) }
