package pgtest

import (
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// binariesVariable names the environment variable with the directory of initdb
// and postgres.
const binariesVariable = "FANFARE_TEST_POSTGRES_BIN"

var errNoBinaries = errors.New("found no PostgreSQL binaries (initdb, postgres): " +
	"run the tests with `make test`, which fetches them, " +
	"or set " + binariesVariable + " to the directory that holds them, " +
	"or " + databaseURLVariable + " to the URL of a server to create test databases on")

// binaries returns the directory of initdb and postgres.
func binaries() (string, error) {
	var candidates []string
	if dir := os.Getenv(binariesVariable); dir != "" {
		candidates = append(candidates, dir)
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		candidates = append(candidates, filepath.Dir(path))
	}
	installed, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is valid
	for i := len(installed) - 1; i >= 0; i-- {                 // newest first
		candidates = append(candidates, installed[i])
	}
	for _, dir := range candidates {
		if hasBinaries(dir) {
			return filepath.Abs(dir)
		}
	}
	return "", errNoBinaries
}

func hasBinaries(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.IsDir() {
			return false
		}
	}
	return true
}

// owner returns whom servers run as; nil means as this process.
func owner() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as: run the tests as another user")
}
