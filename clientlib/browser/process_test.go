package browser_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// binaryDir is where tests build the program. It is removed at their end.
var binaryDir string

// binary is the path of the program.
var binary = sync.OnceValues(func() (string, error) {
	var err error
	if binaryDir, err = os.MkdirTemp("", "fanfare-binary-"); err != nil {
		return "", err
	}
	path := filepath.Join(binaryDir, "fanfare")
	build := exec.Command("go", "build", "-o", path, "../../cmd/fanfare")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

func removeBinary() {
	if binaryDir != "" {
		os.RemoveAll(binaryDir)
	}
}
