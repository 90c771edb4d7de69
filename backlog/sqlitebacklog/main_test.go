package sqlitebacklog

import (
	"database/sql"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// countFramesVariable makes the test binary count the frames of the file that it
// names instead of testing.
const countFramesVariable = "FANFARE_TEST_COUNT_FRAMES"

func TestMain(m *testing.M) {
	if path := os.Getenv(countFramesVariable); path != "" {
		os.Exit(countFrames(path))
	}
	// Whatever a store or a test started must have ended.
	goleak.VerifyTestMain(m)
}

func countFrames(path string) int {
	db, err := sql.Open("sqlite", path)
	if err == nil {
		var n int
		if err = db.QueryRow("select count(*) from channel_frames").Scan(&n); err == nil {
			fmt.Print(n)
			err = db.Close()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
