package service_test

import (
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/fanfare-io/fanfare"

// ban forbids packages to depend on others. A name ending in "/..." stands for
// everything below it, too.
type ban struct {
	packages, forbidden []string
	// direct bans imports only, not what those import.
	direct bool
	reason string
}

var bans = []ban{
	{
		packages:  []string{module + "/backlog"},
		forbidden: []string{module + "/...", "google.golang.org/...", "github.com/..."},
		reason:    "the stores' contract is the standard library only, so that everybody can import it",
	},
	{
		packages:  []string{module + "/service/hub"},
		forbidden: []string{"google.golang.org/...", "github.com/jackc/...", "modernc.org/...", "database/sql", module + "/gen/...", module + "/listener", module + "/backlog/pgbacklog/...", module + "/backlog/sqlitebacklog/..."},
		reason:    "the hub knows streams, tails and cursors; it knows neither gRPC nor SQL",
	},
	{
		packages:  []string{module + "/service"},
		forbidden: []string{"github.com/jackc/...", "modernc.org/...", "database/sql", module + "/listener", module + "/backlog/pgbacklog/...", module + "/backlog/sqlitebacklog/..."},
		reason:    "the gRPC surface serves any store and any bus",
	},
	{
		packages:  []string{module + "/clientlib", module + "/clientlib/sse", module + "/clientlib/browser"},
		forbidden: []string{"github.com/jackc/...", "modernc.org/...", module + "/service/...", module + "/listener", module + "/backlog/..."},
		reason:    "users import them: no drivers and no server code",
	},
	{
		packages:  []string{module + "/cmd/fanfare/internal/transcode"},
		forbidden: []string{"github.com/jackc/...", "modernc.org/...", module + "/service/...", module + "/clientlib/...", module + "/listener", module + "/backlog/pgbacklog/...", module + "/backlog/sqlitebacklog/..."},
		reason:    "it stands in front of any server, which it reaches by gRPC alone",
	},
	{
		packages:  []string{module + "/service/auth"},
		forbidden: []string{"google.golang.org/...", "github.com/jackc/...", "modernc.org/...", module + "/gen/...", module + "/backlog/...", module + "/clientlib/..."},
		reason:    "it verifies tokens for gRPC and HTTP alike",
	},
	{
		packages:  []string{module + "/listener"},
		forbidden: []string{"google.golang.org/...", "modernc.org/...", module + "/gen/...", module + "/service/...", module + "/backlog/pgbacklog/...", module + "/backlog/sqlitebacklog/..."},
		reason:    "one connection and its envelopes; it knows neither gRPC nor the store",
	},
	{
		packages:  []string{module + "/backlog/pgbacklog"},
		forbidden: []string{"google.golang.org/...", "modernc.org/...", module + "/gen/...", module + "/service/...", module + "/listener", module + "/backlog/sqlitebacklog/..."},
		reason:    "a store does not know who serves it, nor other stores",
	},
	{
		packages:  []string{module + "/backlog/sqlitebacklog"},
		forbidden: []string{"google.golang.org/...", "github.com/jackc/...", module + "/gen/...", module + "/service/...", module + "/listener", module + "/backlog/pgbacklog/..."},
		reason:    "a store does not know who serves it, nor other stores",
	},
	{
		packages:  []string{module + "/service/replica", module + "/clientlib/failover"},
		forbidden: []string{"modernc.org/...", module + "/backlog/sqlitebacklog/...", "github.com/spf13/..."},
		reason:    "workers' programs carry them: no embedded store and no command line",
	},
	{
		packages:  []string{module + "/cmd/...", module + "/service/replica", module + "/clientlib/failover"},
		forbidden: []string{"github.com/jackc/...", "modernc.org/...", "database/sql"},
		direct:    true,
		reason:    "drivers are only in the stores and the listener",
	},
}

// testPackages are for tests only.
var testPackages = []string{module + "/bench/limits", module + "/backlog/backlogtest", module + "/backlog/pgbacklog/pgtest", module + "/backlog/pgbacklog/sqltest", module + "/service/servicetest", module + "/clientlib/browser/browsertest"}

// goList runs go list at the module's root and returns lines of fields.
func goList(t *testing.T, args ...string) [][]string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	command.Dir = ".."
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go list %v: %v", args, err)
	}
	var lines [][]string
	for line := range strings.Lines(string(out)) {
		lines = append(lines, strings.Fields(strings.TrimSpace(line)))
	}
	return lines
}

func matches(pattern, name string) bool {
	base, below := strings.CutSuffix(pattern, "/...")
	return name == base || below && strings.HasPrefix(name, base+"/")
}

func matchesAny(patterns []string, name string) bool {
	for _, p := range patterns {
		if matches(p, name) {
			return true
		}
	}
	return false
}

// Dependencies go one way.
func TestImportBans(t *testing.T) {
	direct, all := map[string][]string{}, map[string][]string{}
	for _, line := range goList(t, "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...") {
		direct[line[0]] = line[1:]
	}
	for _, line := range goList(t, "-f", `{{.ImportPath}} {{join .Deps " "}}`, "./...") {
		all[line[0]] = line[1:]
	}
	for _, b := range bans {
		for _, p := range b.packages {
			if _, ok := direct[p]; !ok && !strings.HasSuffix(p, "/...") {
				t.Errorf("there is no package %s", p)
			}
		}
		imports := all
		if b.direct {
			imports = direct
		}
		for name, imported := range imports {
			if !matchesAny(b.packages, name) {
				continue
			}
			for _, i := range imported {
				if matchesAny(b.forbidden, i) {
					t.Errorf("%s depends on %s: %s", name, i, b.reason)
				}
			}
		}
	}
	for name, imported := range direct {
		for _, i := range imported {
			if matches(module+"/cmd/...", i) && !matches(module+"/cmd/...", name) {
				t.Errorf("%s imports %s: nobody imports a command", name, i)
			}
			if matchesAny(testPackages, i) && !matchesAny(testPackages, name) {
				t.Errorf("%s imports %s, which is for tests only", name, i)
			}
		}
	}
}
