package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// A policy is set field by field, shown with what applies, and removed, on both
// stores alike.
func TestPolicies(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) *server{
		"sqlite":     func(t *testing.T) *server { return startEmbedded(t) },
		"postgresql": func(t *testing.T) *server { return startServer(t, pgtest.NewDatabase(t)) },
	} {
		t.Run(name, func(t *testing.T) { testPolicies(t, start(t)) })
	}
}

func testPolicies(t *testing.T, s *server) {
	policy := func(args ...string) string {
		t.Helper()
		return mustRun(t, "", append([]string{"policy", "--server", s.address}, args...)...)
	}
	expect := func(got string, want ...string) {
		t.Helper()
		if strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(strings.Join(want, " ")), " ") {
			t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
		}
	}
	const listTitles, titles = "APPLIES TO  CHANNEL  BACKLOG  RETENTION AGE  STREAM RETENTION", "BOUND  SET  EFFECTIVE  SOURCE"

	expect(policy(), listTitles, "built-in 1000 any 7d")
	expect(policy("get", "chat/messages"), titles, "backlog inherit 1000 built-in", "retention-age inherit any built-in", "stream-retention inherit 7d built-in")

	// Each set changes what it names and leaves the rest.
	expect(policy("set", "chat/messages", "--backlog", "5000"), titles, "backlog 5000 5000 channel", "retention-age inherit any built-in", "stream-retention inherit 7d built-in")
	expect(policy("set", "chat/messages", "--retention-age", "1d12h"), titles, "backlog 5000 5000 channel", "retention-age 36h 36h channel", "stream-retention inherit 7d built-in")
	expect(policy("set", "chat/", "--prefix", "--backlog", "0", "--stream-retention", "30d"), titles, `backlog 0 0 prefix "chat/"`, "retention-age inherit any built-in", `stream-retention 30d 30d prefix "chat/"`)
	expect(policy("set", "--default", "--retention-age", "90m"), titles, "backlog inherit 1000 built-in", "retention-age 1h30m 1h30m default", "stream-retention inherit 7d built-in")
	expect(policy("get", "chat/messages"), titles, "backlog 5000 5000 channel", "retention-age 36h 36h channel", `stream-retention inherit 30d prefix "chat/"`)
	expect(policy("get", "chat/other"), titles, `backlog inherit 0 prefix "chat/"`, "retention-age inherit 1h30m default", `stream-retention inherit 30d prefix "chat/"`)
	expect(policy("set", "chat/messages", "--backlog", "inherit", "--retention-age", "any"), titles, `backlog inherit 0 prefix "chat/"`, "retention-age any any channel", `stream-retention inherit 30d prefix "chat/"`)

	list := []string{
		listTitles, "built-in 1000 any 7d", "default (1000) 1h30m (7d)",
		"prefix chat/ 0 (1h30m) 30d", "channel chat/messages (0) any (30d)",
	}
	expect(policy(), list...)
	expect(policy("list"), list...)
	if out := objects(t, policy("--json")); len(out) != 3 || fmt.Sprint(out[2]) != "map[backlog:<nil> channel:chat/messages effective:map[backlog:0 retention_age_seconds:0 stream_retention_seconds:2.592e+06] prefix:false retention_age_seconds:0 stream_retention_seconds:<nil>]" {
		t.Errorf("as JSON: %v", out)
	}
	if out := objects(t, policy("get", "--default", "--json")); len(out) != 1 || out[0]["prefix"] != true || out[0]["channel"] != "" || out[0]["retention_age_seconds"] != 5400.0 {
		t.Errorf("the default as JSON: %v", out)
	}

	source := objects(t, policy("get", "chat/messages", "--json"))[0]["source"]
	if want := "map[backlog:map[applies_to:prefix channel:chat/] retention_age_seconds:map[applies_to:channel channel:chat/messages] stream_retention_seconds:map[applies_to:prefix channel:chat/]]"; fmt.Sprint(source) != want {
		t.Errorf("sources as JSON: %v, want %s", source, want)
	}

	// With its last bound a policy goes, as it does with remove.
	policy("set", "chat/messages", "--retention-age", "inherit")
	expect(policy("remove", "chat/", "--prefix"), titles, "backlog inherit 1000 built-in", "retention-age inherit 1h30m default", "stream-retention inherit 7d built-in")
	expect(policy("remove", "--default", "--json"), `{"channel":"","prefix":true,"backlog":null,"retention_age_seconds":null,"stream_retention_seconds":null,`+
		`"effective":{"backlog":1000,"retention_age_seconds":0,"stream_retention_seconds":604800},`+
		`"source":{"backlog":{"applies_to":"built-in"},"retention_age_seconds":{"applies_to":"built-in"},"stream_retention_seconds":{"applies_to":"built-in"}}}`)
	expect(policy(), listTitles, "built-in 1000 any 7d")
	again := command(t, "", "policy", "remove", "chat/messages", "--server", s.address)
	if again.code != exitOK || again.stderr != "there was no such policy\n" {
		t.Errorf("removing nothing: %+v", again)
	}
}

// A policy bounds what is replayed at once.
func TestPolicyApplies(t *testing.T) {
	s := startEmbedded(t)
	mustRun(t, "1\n2\n3\n", "publish", "c", "s", "--lines", "--server", s.address)
	mustRun(t, "", "policy", "set", "c", "--backlog", "2", "--server", s.address)
	if out := mustRun(t, "", "subscribe", "c", "s", "--count", "2", "--server", s.address); out != "2\n3\n" {
		t.Errorf("replayed %q", out)
	}
}

// The environment is shared with fanfare serve, whose FANFARE_BACKLOG must not
// find its way into a policy.
func TestPoliciesIgnoreTheEnvironment(t *testing.T) {
	var set *fanfarev1.Policy
	s := (&scriptedServer{
		listPolicies: func() (*fanfarev1.ListPoliciesResponse, error) {
			return &fanfarev1.ListPoliciesResponse{}, nil
		},
		setPolicy: func(_ context.Context, request *fanfarev1.SetPolicyRequest) (*fanfarev1.SetPolicyResponse, error) {
			set = request.GetPolicy()
			return &fanfarev1.SetPolicyResponse{}, nil
		},
	}).start(t)
	env := []string{"FANFARE_BACKLOG=5", "FANFARE_PREFIX=true", "FANFARE_DEFAULT=true", "FANFARE_SERVER=" + s.address}
	r := commandWith(t, env, "", "policy", "set", "c", "--retention-age", "24h")
	if r.code != exitOK || set.Backlog != nil || set.GetPrefix() || set.GetChannel() != "c" || set.GetRetentionAge().AsDuration() != day {
		t.Errorf("%+v sets %v", r, set)
	}
	if want := "warning: no flag belongs to the environment variable FANFARE_DEFAULT, FANFARE_PREFIX\n"; !strings.HasSuffix(r.stderr, want) {
		t.Errorf("stderr %q, want %q", r.stderr, want)
	}
}

func TestPolicyUsageErrors(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"gte", "c"}, `unknown command "gte" for "fanfare policy"; did you mean get? see fanfare policy --help`},
		{[]string{"put", "c", "--backlog", "5"}, `unknown command "put" for "fanfare policy"; did you mean get or set?`},
		{[]string{"--backlog", "5"}, "unknown flag: --backlog"},
		{[]string{"get"}, "one CHANNEL is needed, or --default; got 0 arguments"},
		{[]string{"get", "a", "b"}, "got 2 arguments"},
		{[]string{"get", "a", "--default"}, `--default is for all channels: it takes no CHANNEL, got "a"`},
		{[]string{"get", "--prefix", "--default"}, "--prefix and --default exclude each other"},
		{[]string{"get", ""}, "channel must not be empty"},
		{[]string{"get", "a\x1b"}, "U+001B"},
		{[]string{"set", "c"}, "nothing to change"},
		{[]string{"set", "c", "--backlog", "many"}, `--backlog "many" is neither a number of frames nor inherit`},
		{[]string{"set", "c", "--backlog", "-1"}, `--backlog "-1" is neither`},
		{[]string{"set", "c", "--backlog", "any"}, `--backlog "any" is neither`},
		{[]string{"set", "c", "--backlog", "9223372036854775808"}, "--backlog must be below 2^63"},
		{[]string{"set", "c", "--retention-age", "7"}, `--retention-age "7" is neither a duration, such as 90m, 24h or 7d, nor any or inherit`},
		{[]string{"set", "c", "--retention-age", "-1h"}, "--retention-age must not be negative"},
		{[]string{"set", "c", "--retention-age", "36501d"}, "--retention-age must be at most 876000 hours"},
		{[]string{"set", "c", "--retention-age", "1ns"}, "--retention-age must be in whole microseconds"},
		{[]string{"set", "c", "--stream-retention", "any"}, `--stream-retention "any" is neither a duration`},
		{[]string{"set", "c", "--stream-retention", "0"}, "--stream-retention must not be 0"},
		{[]string{"list", "c"}, `takes no arguments, got "c"`},
		{[]string{"remove"}, "one CHANNEL is needed"},
	} {
		r := command(t, "", append([]string{"policy"}, append(c.args, "--server", deadServer)...)...)
		if r.code != exitUsage || r.stdout != "" || !strings.Contains(r.stderr, c.want) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("fanfare policy %q: %+v, want %q", c.args, r, c.want)
		}
	}
}

// A change that nobody answered may have been made.
func TestPolicyUnanswered(t *testing.T) {
	s := &scriptedServer{listPolicies: func() (*fanfarev1.ListPoliciesResponse, error) {
		return &fanfarev1.ListPoliciesResponse{}, nil
	}}
	s.setPolicy = func(ctx context.Context, _ *fanfarev1.SetPolicyRequest) (*fanfarev1.SetPolicyResponse, error) {
		<-s.conns // that of the question
		s.hangUp(ctx, nil)
		return nil, nil
	}
	s.start(t)
	r := command(t, "", "policy", "set", "c", "--backlog", "1", "--server", s.address)
	if r.code != exitFailed || !strings.HasSuffix(r.stderr, "was lost; the policy may have been changed, and the same command again does no harm\n") {
		t.Errorf("%+v", r)
	}
}

// A server that fails, is older, or is not there is an error, not a policy.
func TestPoliciesOfOtherServers(t *testing.T) {
	older := (&scriptedServer{
		listPolicies: func() (*fanfarev1.ListPoliciesResponse, error) {
			return nil, status.Error(codes.Unimplemented, "method ListPolicies not implemented")
		},
	}).start(t)
	for address, want := range map[string]string{older.address: "is not a Fanfare server, or an older one", deadServer: "no server answers"} {
		for _, args := range [][]string{{}, {"list", "--json"}, {"get", "c"}, {"set", "c", "--backlog", "1"}, {"remove", "c"}} {
			r := command(t, "", append([]string{"policy", "--server", address}, args...)...)
			if r.code != exitFailed || r.stdout != "" || !strings.Contains(r.stderr, want) {
				t.Errorf("fanfare policy %q: %+v, want %q", args, r, want)
			}
		}
	}
}

// What applies, and why, is resolved with what the server has built in, which may
// differ from what this binary knows.
func TestEffectiveBounds(t *testing.T) {
	five, hour := uint64(5), time.Hour
	set := policySet{
		policies: []backlog.Policy{{Prefix: true, RetentionAge: &hour}, {Channel: "a", Prefix: true, Backlog: &five}, {Channel: "ab"}},
		builtIn:  backlog.Bounds{Backlog: 77, RetentionAge: time.Minute, StreamRetention: time.Second},
	}
	for i, c := range []struct {
		frames uint64
		source string
	}{{77, "built-in"}, {five, `prefix "a"`}, {five, `prefix "a"`}} {
		target := policyTarget{set.policies[i].Channel, set.policies[i].Prefix}
		want := backlog.Bounds{Backlog: c.frames, RetentionAge: hour, StreamRetention: time.Second}
		if got := set.effective(target); got != want {
			t.Errorf("policy %d: %+v, want %+v", i, got, want)
		}
		from := set.sources(target)
		if sourceText(from.backlog) != c.source || sourceText(from.retentionAge) != "default" || sourceText(from.streamRetention) != "built-in" {
			t.Errorf("policy %d: from %q, %q, %q", i, sourceText(from.backlog), sourceText(from.retentionAge), sourceText(from.streamRetention))
		}
	}
}
