package service_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// documented are names in backquotes in the documents that the source does not
// declare: PostgreSQL's, gRPC's, words of the protocol and of the envelope.
var documented = map[string]bool{
	"GracefulStop": true, "UNAVAILABLE": true, "OUTCOME_UNKNOWN": true, "Stop": true,
	"pg_try_advisory_xact_lock": true, "D": true, "P": true, "C": true,
	"synchronous_commit": true,
}

var (
	quotedName  = regexp.MustCompile("`(?:[A-Za-z]+\\.)?([A-Za-z_]+)`")
	declaration = regexp.MustCompile(`(?m)^(?:func (?:\([^)]*\) )?|create (?:function|table|view) |type |var )([A-Za-z_]+)\b`)
	namedType   = regexp.MustCompile(`(?m)^(?:message|service|enum|  rpc) ([A-Za-z]+)`)
)

// ARCHITECTURE.md walks a frame's path by the names of functions, types and
// tests, and docs/scenarios.md has a test for every fault. A renamed function
// would leave the reader searching.
func TestArchitectureNamesExist(t *testing.T) {
	root := ".."
	declared := make(map[string]bool)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root {
			return fs.SkipDir
		}
		switch filepath.Ext(path) {
		case ".go", ".sql", ".proto":
		default:
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, re := range []*regexp.Regexp{declaration, namedType} {
			for _, m := range re.FindAllSubmatch(source, -1) {
				declared[string(m[1])] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	packages := map[string]bool{"backlog": true, "listener": true, "service": true, "servicetest": true, "go": true, "gen": true, "clientlib": true}
	for _, document := range []string{"ARCHITECTURE.md", "docs/scenarios.md"} {
		text, err := os.ReadFile(filepath.Join(root, document))
		if err != nil {
			t.Fatal(err)
		}
		names := quotedName.FindAllStringSubmatch(string(text), -1)
		if len(names) < 80 {
			t.Errorf("only %d names found in %s", len(names), document)
		}
		for _, m := range names {
			if name := m[1]; !declared[name] && !documented[name] && !packages[name] {
				t.Errorf("%s names %s, which is not declared", document, m[0])
			}
		}
	}
}
