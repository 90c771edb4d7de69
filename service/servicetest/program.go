package servicetest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// programDir is where the program was built; empty if it was not.
var programDir string

var program = sync.OnceValues(func() (string, error) {
	var err error
	if programDir, err = os.MkdirTemp("", "fanfare-program-"); err != nil {
		return "", err
	}
	path := filepath.Join(programDir, "fanfare")
	build := exec.Command("go", "build", "-o", path, "github.com/fanfare-io/fanfare/cmd/fanfare")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w: %s", err, out)
	}
	return path, nil
})

// Program returns the path of the program fanfare, which is built once for all tests of a
// package, without the race detector. Their TestMain removes it with [RemoveProgram].
func Program(t testing.TB) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// RemoveProgram removes what Program has built, if anything.
func RemoveProgram() {
	if programDir != "" {
		_ = os.RemoveAll(programDir)
	}
}
