package main

import (
	"debug/elf"
	"os"
	"testing"
)

// The program is one file that needs no other.
func TestOneStaticFile(t *testing.T) {
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, program := range f.Progs {
		if program.Type == elf.PT_INTERP || program.Type == elf.PT_DYNAMIC {
			t.Errorf("%s has a segment %s: it is linked dynamically", path, program.Type)
		}
	}
	if info, err := os.Stat(path); err == nil {
		t.Logf("%d bytes", info.Size())
	}
	if libraries, err := f.ImportedLibraries(); err == nil && len(libraries) > 0 {
		t.Errorf("%s needs %q", path, libraries)
	}
}
