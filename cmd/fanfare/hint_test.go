package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Errors of the command line say what was probably meant, on the same line, and
// nothing where they would have to guess.
func TestHints(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"sbscribe", "c", "s"}, `fanfare: unknown command "sbscribe" for "fanfare"; did you mean subscribe? see fanfare --help`},
		{[]string{"PUBLISH"}, `unknown command "PUBLISH" for "fanfare"; did you mean publish? see`},
		{[]string{"send", "c", "s"}, `did you mean publish?`},
		{[]string{"start"}, `did you mean serve?`},
		{[]string{"tail"}, `did you mean subscribe?`},
		{[]string{"s"}, `did you mean serve, streams or subscribe?`},
		{[]string{"sing"}, `fanfare: unknown command "sing" for "fanfare"; see fanfare --help`},
		{[]string{`"quoted"`}, `unknown command "\"quoted\"" for "fanfare"; see`},
		{[]string{"completion", "bsh"}, `unknown command "bsh" for "fanfare completion"; did you mean bash, fish or zsh?`},
		{[]string{"streams", "--jsno"}, `fanfare streams: unknown flag: --jsno; did you mean --json? see fanfare streams --help`},
		{[]string{"streams", "-json"}, `unknown shorthand flag: 'j' in -json; did you mean --json?`},
		{[]string{"streams", "-server=x"}, `did you mean --server?`},
		{[]string{"streams", "-x"}, `unknown shorthand flag: 'x' in -x; see`},
		{[]string{"streams", "--colour", "never"}, `did you mean --color?`},
		{[]string{"close", "c", "s", "--jsonn"}, `unknown flag: --jsonn; see`},
		{[]string{"subscribe", "c", "s", "--count", "x"}, `fanfare subscribe: --count takes a number from 0 to 18446744073709551615, not "x"; see`},
		{[]string{"streams", "--timeout", "5"}, `--timeout takes a duration such as 500ms, 30s or 5m, at most 2562047h, not "5"; see`},
		{[]string{"streams", "--json=maybe"}, `--json takes true or false, not "maybe"; see`},
		{[]string{"subscribe", "c", "s", "--from", "17"}, `a sequence alone is no position: publish, streams and subscribe print EPOCH-SEQUENCE; see`},
		{[]string{"subscribe", "c", "s", "--from", "oldset"}, `did you mean oldest? see`},
		{[]string{"subscribe", "c", "s", "--from", "latest"}, `did you mean live? see`},
		{[]string{"subscribe", "c", "s", "--from", "earliest"}, `did you mean oldest? see`},
		{[]string{"streams", "--server", "http://localhost:7420/"}, `--server "http://localhost:7420/" is not an address: write host:port, localhost:7420, without http://; see`},
		{[]string{"health", "--server", "https://localhost:7420"}, `without https://; see`},
	} {
		r := command(t, "", c.args...)
		if r.code != exitUsage || r.stdout != "" || !strings.Contains(r.stderr, c.want) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("fanfare %q: %+v, want %q", c.args, r, c.want)
		}
	}
}

// S168: a start that is no position is refused before a server is asked, never
// read as one.
func TestPositionsThatAreNone(t *testing.T) {
	for _, from := range []string{
		"", "abc", "-1", "1e3", "0x10", " 7", "7 ", "1,2", "７-１", "1-７", "12345678901234567890", "1-12345678901234567890", "7", "7-", "-7", "7-1-1", "07-1", "7-01",
		"+7-1", "7-+1", "7.0-1", "7-1\x00", "7-1\n", strings.Repeat("1", 10_000), strings.Repeat("1-", 5_000),
	} {
		r := command(t, "", "subscribe", "c", "s", "--from", from, "--server", deadServer)
		if r.code != exitUsage || r.stdout != "" || !strings.Contains(r.stderr, "--from is oldest, live or a position") || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("--from %.40q: exit code %d, stderr %.300q", from, r.code, r.stderr)
		}
		if len(r.stderr) > 500 {
			t.Errorf("--from %.40q: an error of %d bytes", from, len(r.stderr))
		}
	}
}

// Every command is in a group, says what it does, and teaches by example.
func TestEveryCommandTeaches(t *testing.T) {
	root := newProgram(nil, nil, nil, nil).rootCommand()
	eachCommand(root, func(c *cobra.Command) {
		if c.Hidden {
			return
		}
		if c.Short == "" || !strings.Contains(c.Example, "fanfare ") {
			t.Errorf("%s teaches by no example", c.CommandPath())
		}
		for line := range strings.Lines(c.Example) {
			if !strings.HasPrefix(line, "  ") && strings.TrimSpace(line) != "" {
				t.Errorf("an example of %s is not indented: %q", c.CommandPath(), line)
			}
		}
		if c.Parent() == root && !root.ContainsGroup(c.GroupID) {
			t.Errorf("%s is in no group", c.CommandPath())
		}
	})
	help := mustRun(t, "", "--help")
	for _, want := range []string{"Publish and subscribe:\n", "Decide what is kept:\n", "Run a server:\n", "More:\n", "needs nothing else"} {
		if !strings.Contains(help, want) {
			t.Errorf("the help does not contain %q:\n%s", want, help)
		}
	}
	if strings.Contains(help, "Additional Commands") {
		t.Errorf("commands are left over:\n%s", help)
	}
}

// The examples of the help are command lines that would run: their commands and
// flags exist, and their arguments are as many as are wanted.
func TestExamplesAreCommandLines(t *testing.T) {
	root := newProgram(nil, nil, nil, nil).rootCommand()
	examples := 0
	eachCommand(root, func(c *cobra.Command) {
		for line := range strings.Lines(c.Example) {
			_, line, found := strings.Cut(line, "fanfare ")
			if !found {
				continue
			}
			// Comments and what is the shell's.
			if end := strings.IndexAny(line, "#|<>)"); end >= 0 {
				line = line[:end]
			}
			words := strings.Fields(strings.ReplaceAll(line, "'", ""))
			command, rest, err := root.Find(words)
			if err == nil {
				err = command.ParseFlags(rest)
			}
			if err == nil {
				err = command.ValidateArgs(command.Flags().Args())
			}
			if err != nil {
				t.Errorf("an example of %s: fanfare %s: %v", c.CommandPath(), line, err)
			}
			examples++
		}
	})
	if examples < 40 {
		t.Errorf("%d examples were found", examples)
	}
}
