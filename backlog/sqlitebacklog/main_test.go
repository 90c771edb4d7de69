package sqlitebacklog

import (
	"testing"

	"go.uber.org/goleak"
)

// Whatever a store or a test started must have ended.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
