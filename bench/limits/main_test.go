package main

import (
	"context"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// asProgram is set in the environment of a process of this test binary that is to
// be the program itself.
const asProgram = "FANFARE_LIMITS_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(exitCode(func() int { return pgtest.Run(m) }))
}

// exitCode is what goleak wants of a testing.M.
type exitCode func() int

func (r exitCode) Run() int { return r() }
