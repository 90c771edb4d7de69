package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Colours appear on a terminal, unless they are not wanted there, and elsewhere
// only if they are asked for.
func TestColors(t *testing.T) {
	const painted, plain = true, false
	for _, c := range []struct {
		name     string
		terminal bool
		env      []string
		args     []string
		want     bool
	}{
		{"terminal", true, nil, nil, painted},
		{"a terminal with a name", true, []string{"TERM=xterm-256color"}, nil, painted},
		{"pipe", false, []string{"TERM=xterm-256color"}, nil, plain},
		{"forced by others", false, []string{"CLICOLOR_FORCE=1", "FORCE_COLOR=1"}, nil, plain},
		{"NO_COLOR", true, []string{"NO_COLOR=1"}, nil, plain},
		{"empty NO_COLOR", true, []string{"NO_COLOR="}, nil, painted},
		{"dumb", true, []string{"TERM=dumb"}, nil, plain},
		{"never", true, nil, []string{"--color", "never"}, plain},
		{"never by variable", true, []string{"FANFARE_COLOR=never"}, nil, plain},
		{"the flag wins", true, []string{"FANFARE_COLOR=never"}, []string{"--color=always"}, painted},
		{"always in a pipe", false, []string{"NO_COLOR=1", "TERM=dumb"}, []string{"--color=always"}, painted},
		{"always by variable", false, []string{"FANFARE_COLOR=always"}, nil, painted},
		{"auto", false, []string{"FANFARE_COLOR=always"}, []string{"--color=auto"}, plain},
	} {
		t.Run(c.name, func(t *testing.T) {
			for what, args := range map[string][]string{"failure": {"streams", "--server", deadServer}, "usage": {"streams", "--nonsense"}} {
				console := newConsole(t, 80)
				r := onConsole(t, console, terminals{stderr: c.terminal}, c.env, strings.NewReader(""), append(c.args, args...)...)
				text := console.text() + r.stderr
				prefix := "fanfare streams: "
				if c.want {
					prefix = "\x1b[31;1mfanfare streams:\x1b[0;22m "
				}
				if !strings.HasPrefix(text, prefix) || strings.Count(text, "\n") != 1 || !c.want && strings.Contains(text, "\x1b") {
					t.Errorf("%s: %q", what, text)
				}
			}
		})
	}
	if r := command(t, "", "streams", "--color", "sometimes"); r.code != exitUsage || !strings.Contains(r.stderr, "auto, always or never") {
		t.Errorf("another mode: %+v", r)
	}
	if r := commandWith(t, []string{"FANFARE_COLOR=sometimes"}, "", "version"); r.code != exitUsage || !strings.Contains(r.stderr, "FANFARE_COLOR") {
		t.Errorf("another mode by variable: %+v", r)
	}
}

// A table for people is aligned by what they see: wide characters, colours and
// escapes count for what they are. A table for scripts is as it always was.
func TestTables(t *testing.T) {
	closed := stream("chat", "long", 12)
	closed.Closed, closed.Subscribers = true, 3
	s := streamsOf(t, stream("注文", "a", 1), closed, stream("é", "", 100))
	want := `CHANNEL  SCOPE  HEAD   OLDEST  STATE   SUBSCRIBERS  UPDATED
注文     a      7-1         1  open              0  1970-01-01T00:00:01Z
chat     long   7-12        1  closed            3  1970-01-01T00:00:01Z
é               7-100       1  open              0  1970-01-01T00:00:01Z
`
	console := newConsole(t, 80)
	r := onConsole(t, console, terminals{stdout: true}, []string{"NO_COLOR=1"}, nil, "streams", "--server", s.address)
	if got := console.text(); r.code != exitOK || got != want {
		t.Errorf("on a terminal, exit code %d:\n%s\nwant\n%s", r.code, got, want)
	}
	painted := strings.NewReplacer(
		"closed", "\x1b[2mclosed\x1b[22m", "          3 ", "          \x1b[32m3\x1b[0m ", "1970-01-01T00:00:01Z", "\x1b[2m1970-01-01T00:00:01Z\x1b[22m",
	).Replace(want)
	for _, title := range []string{"CHANNEL", "SCOPE", "HEAD", "OLDEST", "STATE", "SUBSCRIBERS", "UPDATED"} {
		painted = strings.Replace(painted, title, "\x1b[1m"+title+"\x1b[22m", 1)
	}
	console = newConsole(t, 80)
	onConsole(t, console, terminals{stdout: true}, nil, nil, "streams", "--server", s.address)
	if got := console.text(); got != painted {
		t.Errorf("with colours:\n%q\nwant\n%q", got, painted)
	}
	plain := `CHANNEL  SCOPE  HEAD   OLDEST  STATE   SUBSCRIBERS  UPDATED
注文       a      7-1    1       open    0            1970-01-01T00:00:01Z
chat     long   7-12   1       closed  3            1970-01-01T00:00:01Z
é               7-100  1       open    0            1970-01-01T00:00:01Z
`
	if got := mustRun(t, "", "streams", "--server", s.address); got != plain {
		t.Errorf("in a pipe:\n%s\nwant\n%s", got, plain)
	}
}

// attack is text that takes over a terminal, or makes a text read as another.
const attack = "\x1b]0;owned\x07\u009b31m\r\x7f\u202exe\xff"

// shownAttack is attack made visible.
const shownAttack = `\x1b]0;owned\x07\u009b31m\r\x7f\u202exe\xff`

// What others may have chosen reaches a terminal as text, and a pipe as it is.
func TestTerminalsAreSafe(t *testing.T) {
	position := &fanfarev1.Position{Epoch: 7, Sequence: 1}
	valid := strings.TrimSuffix(attack, "\xff")
	shownValid := strings.TrimSuffix(shownAttack, `\xff`)
	s := streamsOf(t, stream("a\n"+valid, "b\tc", 1))
	s.subscribe = func(_ *fanfarev1.SubscribeRequest, call fanfarev1.FanfareService_SubscribeServer) error {
		return call.Send(&fanfarev1.SubscribeResponse{Frames: []*fanfarev1.Frame{
			{Position: position, Payload: []byte("1\n\t" + attack)},
			{Position: position, Payload: []byte(valid), EventType: valid},
		}})
	}
	s.publishStream = func(call fanfarev1.FanfareService_PublishStreamServer) error {
		if _, err := call.Recv(); err != nil {
			return err
		}
		return call.Send(&fanfarev1.PublishStreamResponse{Number: 1, Outcome: &fanfarev1.PublishStreamResponse_Error{
			Error: &fanfarev1.Error{Code: int32(codes.InvalidArgument), Message: valid},
		}})
	}
	failing := (&scriptedServer{listStreams: func(*fanfarev1.ListStreamsRequest) (*fanfarev1.ListStreamsResponse, error) {
		return nil, status.Error(codes.Internal, valid)
	}}).start(t)
	for name, c := range map[string]struct {
		args        []string
		stdin       string
		shown, pipe string
	}{
		"payloads": {
			[]string{"subscribe", "c", "s", "--server", s.address}, "",
			"1\n\t" + shownAttack + "\n" + shownValid + "\n", "1\n\t" + attack + "\n" + valid + "\n",
		},
		"JSON": {
			[]string{"subscribe", "c", "s", "--json", "--server", s.address}, "",
			`"data":"\u001b]0;owned\u0007\u009b31m\r\u007f\u202exe"`, `"data":"\u001b]0;owned\u0007` + "\u009b31m" + `\r` + "\x7f\u202e" + `xe"`,
		},
		"names":          {[]string{"streams", "--server", s.address}, "", `a\n\x1b]0;owned\x07\u009b31m\r\x7f\u202…  b\tc   7-1 `, "a\n" + valid},
		"names as JSON":  {[]string{"streams", "--json", "--server", s.address}, "", `"channel":"a\n\u001b]0;owned\u0007\u009b31m\r\u007f\u202exe"`, "\u202exe"},
		"messages":       {[]string{"streams", "--server", failing.address}, "", `\x1b]0;owned\x07\u009b31m \x7f\u202exe (Internal)`, "\u202exe (Internal)"},
		"lines' outcome": {[]string{"publish", "c", "s", "--lines", "--server", s.address}, "x\n", `\x1b]0;owned\x07\u009b31m \x7f\u202exe (`, "\u202exe ("},
		"arguments":      {[]string{"strea\x1bms"}, "", `unknown command "strea\x1bms"`, `unknown command "strea\x1bms"`},
	} {
		t.Run(name, func(t *testing.T) {
			console := newConsole(t, 80)
			onConsole(t, console, terminals{stdout: true, stderr: true}, []string{"NO_COLOR=1"}, strings.NewReader(c.stdin), c.args...)
			text := console.text()
			if !strings.Contains(text, c.shown) || visible(text, "\n\t") != text {
				t.Errorf("a terminal is sent %q, want %q", text, c.shown)
			}
			if r := command(t, c.stdin, c.args...); !strings.Contains(r.stdout+r.stderr, c.pipe) {
				t.Errorf("a pipe gets %q, want %q", r.stdout+r.stderr, c.pipe)
			}
		})
	}
}

// What is escaped for a terminal is the same to a reader of JSON.
func TestEscapedJSONIsTheSame(t *testing.T) {
	s := streamsOf(t, stream(strings.TrimSuffix(attack, "\xff"), "<&>\u2028注", 1))
	console := newConsole(t, 0)
	onConsole(t, console, terminals{stdout: true}, nil, nil, "streams", "--json", "--server", s.address)
	shown, piped := console.text(), mustRun(t, "", "streams", "--json", "--server", s.address)
	if fmt.Sprint(objects(t, shown)) != fmt.Sprint(objects(t, piped)) || shown == piped {
		t.Errorf("a terminal is sent %q, a pipe gets %q", shown, piped)
	}
}

// Notices are quiet or warn, and say why, on a terminal only.
func TestNoticesOnATerminal(t *testing.T) {
	at := &fanfarev1.Position{Epoch: 7, Sequence: 1}
	s := (&scriptedServer{subscribe: func(_ *fanfarev1.SubscribeRequest, call fanfarev1.FanfareService_SubscribeServer) error {
		for _, response := range []*fanfarev1.SubscribeResponse{
			{Notice: &fanfarev1.SubscribeResponse_Subscribed{Subscribed: &fanfarev1.Subscribed{Head: at, ResumeAfter: at}}},
			{Notice: &fanfarev1.SubscribeResponse_Gap{Gap: &fanfarev1.Gap{Reason: fanfarev1.GapReason_GAP_REASON_AHEAD, Requested: at, ResumeAfter: at}}},
		} {
			if err := call.Send(response); err != nil {
				return err
			}
		}
		return nil
	}}).start(t)
	plain := "subscribed after 7-1, the stream's head is 7-1\ngap: frames after 7-1 are not available (AHEAD); continuing after 7-1\n"
	console := newConsole(t, 80)
	onConsole(t, console, terminals{stdout: true, stderr: true}, nil, nil, "subscribe", "c", "s", "--server", s.address)
	lines := strings.SplitAfter(plain, "\n")
	want := "\x1b[2m" + strings.TrimSpace(lines[0]) + "\x1b[22m\n\x1b[33m" + strings.TrimSpace(lines[1]) + ": the stream has not come so far\x1b[0m\n"
	if got := console.text(); got != want {
		t.Errorf("a terminal is sent %q, want %q", got, want)
	}
	if r := command(t, "", "subscribe", "c", "s", "--server", s.address); r.stderr != plain || r.stdout != "" {
		t.Errorf("in pipes: %+v", r)
	}
}

// Only a terminal is one: neither another device nor a closed file.
func TestIsTerminal(t *testing.T) {
	console := newConsole(t, 80)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	if !isTerminal(console.device) || columns(console.device) != 80 {
		t.Error("a terminal is taken for none")
	}
	if isTerminal(null) || isTerminal(file) || isTerminal(strings.NewReader("")) || columns(null) != 0 || columns(file) != 0 {
		t.Error("something else is taken for a terminal")
	}
}

// Lines that are typed are read from the terminal, with a word of how to end.
func TestPayloadFromATerminal(t *testing.T) {
	s := (&scriptedServer{}).start(t)
	console := newConsole(t, 80)
	r := startOnConsole(t, console, terminals{stdin: true}, nil, nil, "publish", "c", "s", "--server", s.address)
	r.stderr.await(t, "reading the payload from the terminal; end it with Ctrl-D, or give --data\n")
	r.interrupt()
	if code := r.end(); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
}
