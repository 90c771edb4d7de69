//go:build unix

package bench

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// spareFiles are what a process has open beside the connections of a case.
const spareFiles = 200

// needFiles refuses a number of connections for which this process, or a server
// that it starts, may not open enough files.
func needFiles(connections int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("ask for the limit of open files: %w", err)
	}
	if need := uint64(connections + spareFiles); need > uint64(limit.Cur) {
		return fmt.Errorf("%d connections need %d open files, and a process may have %d here: raise the limit with ulimit -n, for the server too, or give fewer with --connections", connections, need, limit.Cur)
	}
	return nil
}
