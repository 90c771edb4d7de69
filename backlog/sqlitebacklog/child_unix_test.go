//go:build unix

package sqlitebacklog

import (
	"errors"
	"os"
	"syscall"
)

// dropRights makes the process one of an ordinary user, if it is root's.
func dropRights() error {
	if os.Geteuid() != 0 {
		return nil
	}
	const nobody = 65534
	return errors.Join(syscall.Setgroups(nil), syscall.Setgid(nobody), syscall.Setuid(nobody))
}
