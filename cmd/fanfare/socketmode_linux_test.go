package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// Symptom: where the umask lets others write, another user could connect to a new socket
// in the moment between its making and the setting of its mode, and stay connected.
func TestASocketHasItsModeFromTheBeginning(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	lis, err := bindSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	if info, err := os.Lstat(path); err != nil || info.Mode() != fs.ModeSocket|socketMode {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}
