package servicetest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// documented returns the table of docs/stores.md: the kinds of stores that have
// each capability.
func documented(t *testing.T) map[Capability][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "stores.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n| capability |")
	if !found {
		t.Fatal("docs/stores.md has no table of capabilities")
	}
	table, _, _ := strings.Cut("| capability |"+rest, "\n\n")
	rows := strings.Split(table, "\n")
	kinds := cells(rows[0])[1:]
	has := map[Capability][]string{}
	for _, row := range rows[2:] {
		c := cells(row)
		if why := c[len(c)-1]; len(why) < 40 {
			t.Errorf("%s is explained by %q", c[0], why)
		}
		has[Capability(c[0])] = nil
		for i, cell := range c[1 : len(c)-1] {
			switch cell {
			case "yes":
				has[Capability(c[0])] = append(has[Capability(c[0])], strings.Trim(kinds[i], "`"))
			case "no":
			default:
				t.Errorf("%s of %s is %q, neither yes nor no", c[0], kinds[i], cell)
			}
		}
	}
	return has
}

func cells(row string) []string {
	c := strings.Split(strings.Trim(row, "|"), "|")
	for i := range c {
		c[i] = strings.TrimSpace(c[i])
	}
	return c
}

// Users choose a store by docs/stores.md, and tests choose stores by this package.
func TestCapabilitiesAreDocumented(t *testing.T) {
	has := map[Capability][]string{}
	for _, s := range Stores {
		for _, c := range s.Capabilities {
			has[c] = append(has[c], s.Kind)
		}
	}
	doc := documented(t)
	for c, kinds := range has {
		if got, known := doc[c]; !known || !slices.Equal(got, kinds) {
			t.Errorf("%s: docs/stores.md says %v, here it is %v", c, got, kinds)
		}
	}
	for c := range doc {
		if has[c] == nil {
			t.Errorf("docs/stores.md has %s, which no store has here", c)
		}
	}
}

func TestStoresAreChosenByNeeds(t *testing.T) {
	for _, test := range []struct {
		needs Needs
		kinds []string
	}{
		{nil, []string{PostgreSQL, SQLite}},
		{Needs{Replicas, SQL}, []string{PostgreSQL}},
		{Needs{File}, []string{SQLite}},
		{Needs{File, Replicas}, nil},
	} {
		var kinds []string
		for _, s := range Stores {
			if s.has(test.needs...) {
				kinds = append(kinds, s.Kind)
			}
		}
		if !slices.Equal(kinds, test.kinds) {
			t.Errorf("%v: %v, want %v", test.needs, kinds, test.kinds)
		}
	}
}

// Each kind has a database of its own in every subtest, and a replica serves it.
func TestOnEachStoreGivesNewDatabases(t *testing.T) {
	var files []string
	for range 2 {
		OnEachStore(t, Needs{File}, func(t *testing.T, db Database) {
			if db.Kind() != SQLite || !strings.HasSuffix(t.Name(), "/"+SQLite) && !strings.Contains(t.Name(), "/"+SQLite+"#") {
				t.Errorf("%s runs on %s", t.Name(), db.Kind())
			}
			Start(t, db.URL)
			if _, err := os.Stat(db.File()); err != nil {
				t.Error(err)
			}
			files = append(files, db.File())
		})
	}
	if len(files) != 2 || files[0] == files[1] {
		t.Errorf("the databases were %q", files)
	}
}
