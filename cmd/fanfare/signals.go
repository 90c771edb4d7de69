package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// watchSignals asks for an orderly end at the first signal and ends the process
// at the second. It does not rely on the signals' default, which is to be ignored
// for the first process of a container and for a shell's background jobs.
func watchSignals(cancel context.CancelFunc) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	<-signals
	cancel()
	<-signals
	fmt.Fprintln(os.Stderr, "fanfare: ended at once by a second signal")
	os.Exit(exitFailed)
}

// surviveBrokenPipes has writes to a pipe without a reader fail. Otherwise one to
// standard output ends the process at once, as is right where all that it does is
// to print: a command that stores something has yet to say what. It is for the
// rest of the process.
func surviveBrokenPipes() { signal.Ignore(syscall.SIGPIPE) }
