package service

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(run(func() int { return pgtest.Run(m) })) }

// run is what goleak wants of a testing.M.
type run func() int

func (r run) Run() int { return r() }
