package main

import (
	"errors"
	"syscall"
)

// setModeBeforeBind gives the descriptor of a socket the mode that the socket is to have:
// Linux makes it with that. So nobody else can connect in the moment before its mode is
// set, whatever the umask.
func setModeBeforeBind(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) { failed = syscall.Fchmod(int(fd), uint32(socketMode)) })
	return errors.Join(err, failed)
}
