package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	// dataFile is the embedded store's file in the data directory.
	dataFile = "fanfare.db"
	// dataDirMode keeps what was published from other users of the machine.
	dataDirMode = 0o700
)

// dataDir returns the data directory: the one that was given or, by the XDG Base
// Directory Specification, fanfare below the user's data. It is absolute, and
// need not exist.
func dataDir(given string, env map[string]string) (string, error) {
	if given != "" {
		return filepath.Abs(given)
	}
	// The specification has relative paths ignored.
	if base := env["XDG_DATA_HOME"]; filepath.IsAbs(base) {
		return filepath.Join(base, "fanfare"), nil
	}
	if home := env["HOME"]; filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "share", "fanfare"), nil
	}
	problem := "is not set"
	if home := env["HOME"]; home != "" {
		problem = fmt.Sprintf("is %q, which is not an absolute path", home)
	}
	return "", usagef("there is no place for the data, since HOME %s: name a directory with --data-dir, or a database with --store", problem)
}

// makeDataDir creates the data directory and its parents where they are missing.
func makeDataDir(dir string) error {
	err := os.MkdirAll(dir, dataDirMode)
	if err == nil {
		return nil
	}
	// What MkdirAll's error names may be a parent.
	if cause := (*fs.PathError)(nil); errors.As(err, &cause) {
		err = fmt.Errorf("%s: %w", cause.Path, cause.Err)
	}
	return fmt.Errorf("the data directory %s cannot be created (%w): choose another one with --data-dir", dir, err)
}
