package pgbacklog

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	code := pgtest.Run(m)
	// Whatever a store, a migration or a test started must have ended. pgx closes
	// an abandoned connection within seconds, which Find waits for.
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
