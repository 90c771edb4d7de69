package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// completed is what a shell is offered for a command line, the last word of
// which is being typed.
func completed(t *testing.T, env []string, words ...string) string {
	t.Helper()
	r := commandWith(t, env, "", append([]string{"__completeNoDesc"}, words...)...)
	if r.code != exitOK {
		t.Fatalf("completing %q: %+v", words, r)
	}
	return r.stdout
}

// Names of channels and scopes come from the server that is meant, each once, and
// only such as are one plain word: others could be commands to the shell.
func TestCompletionOfNames(t *testing.T) {
	s := (&scriptedServer{
		listStreams: func(request *fanfarev1.ListStreamsRequest) (*fanfarev1.ListStreamsResponse, error) {
			if request.GetChannel() != "" {
				return &fanfarev1.ListStreamsResponse{Streams: []*fanfarev1.Stream{
					stream(request.GetChannel(), "raum-ä", 1), stream(request.GetChannel(), "", 1), stream(request.GetChannel(), "b c", 1),
				}}, nil
			}
			if request.GetPageToken() == "" {
				return &fanfarev1.ListStreamsResponse{NextPageToken: "more", Streams: []*fanfarev1.Stream{
					stream("orders", "1", 1), stream("orders", "2", 1), stream("$(touch x)", "1", 1), stream("`id`", "1", 1), stream("a;b", "1", 1),
				}}, nil
			}
			return &fanfarev1.ListStreamsResponse{Streams: []*fanfarev1.Stream{
				stream("chat/messages", "1", 1), stream("--lines", "1", 1), stream("_activeHelp_ me", "1", 1), stream("a\x1b[31m", "1", 1), stream("urn:x", "1", 1),
			}}, nil
		},
		listPolicies: func() (*fanfarev1.ListPoliciesResponse, error) {
			return &fanfarev1.ListPoliciesResponse{Policies: []*fanfarev1.Policy{{Prefix: true}, {Channel: "metrics/", Prefix: true}}}, nil
		},
	}).start(t)
	const channels = "chat/messages\norders\nurn:x\n:4\n"
	for _, c := range []struct {
		env   []string
		words []string
		want  string
	}{
		{nil, []string{"publish", "--server", s.address, ""}, channels},
		{[]string{"FANFARE_SERVER=" + s.address}, []string{"subscribe", ""}, channels},
		{[]string{"FANFARE_SERVER=" + deadServer}, []string{"close", "--server=" + s.address, ""}, channels},
		{nil, []string{"streams", "--server", s.address, "--channel", ""}, channels},
		{nil, []string{"subscribe", "--server", s.address, "chat", ""}, "raum-ä\n:4\n"},
		{nil, []string{"subscribe", "--server", s.address, "chat", "raum", ""}, ":4\n"},
		{nil, []string{"policy", "set", "--server", s.address, ""}, "chat/messages\nmetrics/\norders\nurn:x\n:4\n"},
		{nil, []string{"policy", "get", "c", "--server", s.address, ""}, ":4\n"},
	} {
		got := completed(t, c.env, c.words...)
		for deadline := time.Now().Add(patience); got == ":4\n" && got != c.want && time.Now().Before(deadline); {
			got = completed(t, c.env, c.words...) // the server had a moment, which a busy machine may need
		}
		if got != c.want {
			t.Errorf("%q: got %q, want %q", c.words, got, c.want)
		}
	}
}

// A server that is away, or does not answer, costs a moment and offers nothing.
func TestCompletionWithoutAServer(t *testing.T) {
	release := make(chan struct{})
	mute := (&scriptedServer{listStreams: func(*fanfarev1.ListStreamsRequest) (*fanfarev1.ListStreamsResponse, error) {
		<-release
		return nil, nil
	}}).start(t)
	t.Cleanup(func() { close(release) })
	for _, address := range []string{deadServer, mute.address, "http://x", ""} {
		begun := time.Now()
		if got := completed(t, nil, "publish", "--server", address, ""); got != ":4\n" {
			t.Errorf("%q: got %q", address, got)
		}
		if took := time.Since(begun); took > 20*completionTimeout {
			t.Errorf("%q: took %s", address, took)
		}
	}
}

func TestCompletionOfFlags(t *testing.T) {
	for _, c := range []struct {
		words []string
		want  string
	}{
		{[]string{"subscribe", "c", "s", "--from", ""}, "oldest\nlive\n:4\n"},
		{[]string{"streams", "--color", ""}, "auto\nalways\nnever\n:4\n"},
		{[]string{"policy", "set", "c", "--stream-retention", ""}, "24h\n7d\n30d\ninherit\n:4\n"},
		{[]string{"policy", "set", "c", "--backlog", ""}, ":4\n"},
		{[]string{"publish", "c", "s", "--data", ""}, ":4\n"},
		{[]string{"publish", "c", "s", "--file", ""}, ":0\n"},
		{[]string{"serve", "--data-dir", ""}, ":16\n"},
		{[]string{"serve", "--store", ""}, "sqlite:\npostgres://\n:6\n"},
		{[]string{"serve", "--log-level", ""}, "debug\ninfo\nwarn\nerror\n:4\n"},
		{[]string{"serve", ""}, ":4\n"},
		{[]string{"health", ""}, "liveness\nfanfare.v1.FanfareService\n:4\n"},
		{[]string{"policy", "g"}, "get\n:4\n"},
		{[]string{"sub"}, "subscribe\n:4\n"},
		{[]string{"completion", "b"}, "bash\n:4\n"},
	} {
		if got := completed(t, nil, c.words...); got != c.want {
			t.Errorf("%q: got %q, want %q", c.words, got, c.want)
		}
	}
}

// No flag that takes a value and is no file offers the files of the directory,
// and no word is known for a flag that does not exist.
func TestEveryFlagIsCompleted(t *testing.T) {
	known := map[string]bool{}
	eachCommand(newProgram(nil, nil, nil, nil).rootCommand(), func(c *cobra.Command) {
		c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			known[f.Name] = true
			if _, completes := c.GetFlagCompletionFunc(f.Name); !completes && !slices.Contains(fileFlags, f.Name) {
				t.Errorf("%s --%s is not completed", c.CommandPath(), f.Name)
			}
		})
	})
	names := slices.Concat(beginnings, fileFlags, directoryFlags)
	for name := range flagWords {
		names = append(names, name)
	}
	for _, name := range names {
		if !known[name] {
			t.Errorf("there is no flag --%s", name)
		}
	}
}

// A shell that reads the script completes with the built program.
func TestCompletionInBash(t *testing.T) {
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	s := streamsOf(t, stream("chat/messages", "1", 1), stream("chat/$(touch evil)", "1", 1), stream("orders", "1", 1))
	const script = `
# Of the package bash-completion.
_get_comp_words_by_ref() { words=("${COMP_WORDS[@]}") cword=$COMP_CWORD cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}; }
fanfare() { "$FANFARE_TEST_BINARY" "$@"; }
source <(fanfare completion bash)
complete_words() {
	COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE} COMP_TYPE=9 COMPREPLY=()
	__start_fanfare
	printf '%s\n' "${COMPREPLY[*]}"
}
complete_words fanfare subscribe ch
complete_words fanfare subscribe chat/messages s --from l
complete_words fanfare strea
`
	shell := exec.Command("bash", "--norc", "-c", script)
	shell.Dir = t.TempDir()
	shell.Env = append(os.Environ(), "FANFARE_TEST_BINARY="+path, "FANFARE_SERVER="+s.address)
	// Outside a completion the script complains that it is none; stdout has what is
	// offered.
	out, err := shell.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		lines = append(lines, strings.TrimSpace(line))
	}
	if got, want := fmt.Sprint(lines), "[chat/messages live streams]"; got != want {
		t.Errorf("bash completes %s, want %s", got, want)
	}
	if files, err := os.ReadDir(shell.Dir); err != nil || len(files) > 0 {
		t.Errorf("completing ran a command: %v, %v", files, err)
	}
}
