// Package docs_test checks the documents against each other and against the program.
package docs_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-io/fanfare/service/servicetest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	servicetest.RemoveProgram()
	os.Exit(code)
}

// documents are the Markdown files of the repository, by their paths from its top.
func documents(t *testing.T) map[string]string {
	t.Helper()
	out := make(map[string]string)
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == "node_modules" || len(entry.Name()) > 2 && entry.Name()[0] == '.') {
			return fs.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		content, err := os.ReadFile(path)
		out[filepath.ToSlash(path[len("../"):])] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var (
	codeBlock = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	anchor    = regexp.MustCompile(`<a id="([^"]+)">`)
)

// places are the fragments that a document has: its headings, as GitHub names them, and
// its anchors.
func places(text string) (out []string) {
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(strings.ToLower(m[1]), "")
		out = append(out, strings.ReplaceAll(name, " ", "-"))
	}
	for _, m := range anchor.FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	return out
}

// Every link within the repository leads to something that is there.
func TestLinksLeadSomewhere(t *testing.T) {
	followed := 0
	all := documents(t)
	for name, text := range all {
		for _, m := range link.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			followed++
			path, place, _ := strings.Cut(m[1], "#")
			target := name
			if path != "" {
				target = filepath.ToSlash(filepath.Join(filepath.Dir(name), path))
			}
			if _, err := os.Stat(filepath.Join("..", target)); err != nil {
				t.Errorf("%s: %s leads nowhere", name, m[1])
			} else if place != "" && !slices.Contains(places(all[target]), place) {
				t.Errorf("%s: %s has no such place; it has %q", name, m[1], places(all[target]))
			}
		}
	}
	if followed < 50 {
		t.Errorf("only %d links were followed", followed)
	}
}

// Each flag of what runs for long is described where those who run it look, and no
// document has a flag that there is not.
func TestFlagsAreDescribed(t *testing.T) {
	all := documents(t)
	described := all["docs/operations.md"] + all["docs/security.md"]
	flags := make(map[string]bool)
	for _, command := range []string{"serve", "edge", "migrate", "publish", "subscribe", "close", "streams", "token", "health", "bench", "policy", "policy set", "policy get"} {
		help, err := exec.Command(servicetest.Program(t), append(strings.Fields(command), "--help")...).Output()
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z-]+)`).FindAllStringSubmatch(string(help), -1)
		if len(found) < 2 {
			t.Fatalf("%s --help names %d flags:\n%s", command, len(found), help)
		}
		for _, m := range found {
			flags[m[1]] = true
			runs := command == "serve" || command == "edge" || command == "migrate"
			if runs && m[1] != "help" && m[1] != "color" && !regexp.MustCompile("--"+m[1]+"(?:[^a-z-]|$)").MatchString(described) {
				t.Errorf("fanfare %s --%s is described neither in docs/operations.md nor in docs/security.md", command, m[1])
			}
		}
	}
	used := regexp.MustCompile(`\bfanfare (?:serve|edge|migrate|publish|subscribe|close|streams|token|health|bench|policy)\b[^\n|&;` + "`" + `]*`)
	checked := 0
	for name, text := range all {
		if name == "CHANGELOG.md" {
			continue // of other versions, too
		}
		for _, line := range used.FindAllString(text, -1) {
			for _, m := range regexp.MustCompile(`(?:^| )--([a-z][a-z-]+)`).FindAllStringSubmatch(line, -1) {
				checked++
				if !flags[m[1]] {
					t.Errorf("%s: %q has the flag --%s, which there is not", name, line, m[1])
				}
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d flags were found in command lines", checked)
	}
}
