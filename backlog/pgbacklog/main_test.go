package pgbacklog

import (
	"os"
	"testing"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }
