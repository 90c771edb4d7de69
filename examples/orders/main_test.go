package main

import (
	"bytes"
	"strconv"
	"strings"
	"testing"

	"github.com/fanfare-io/fanfare/service/servicetest"
)

// command runs the program to its end, which must be good, and returns the lines
// of its output.
func command(t *testing.T, args ...string) []string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), args, &stdout, &stderr); code != 0 {
		t.Fatalf("orders %v exits with %d: %s", args, code, stderr.String())
	}
	return strings.Split(strings.TrimSuffix(stdout.String(), "\n"), "\n")
}

// The README's run: sell, watch some, and watch the rest after the last position,
// also of what was sold meanwhile.
func TestContinueByPosition(t *testing.T) {
	database := newDatabase(t)
	replica := servicetest.Start(t, database)
	watch := func(args ...string) []string {
		t.Helper()
		return command(t, append([]string{"watch", "--server", replica.Addr}, args...)...)
	}
	sellSome := func() {
		t.Helper()
		command(t, "sell", "--database", database, "--tills", "3", "--transactions", "7")
	}

	sellSome()
	seen := watch("--count", "5")
	position, _, _ := strings.Cut(seen[4], " ")
	sellSome() // the setup is already there
	total := len(committed(t, database))
	seen = append(seen, watch("--after", position, "--count", strconv.Itoa(total-5))...)

	all := watch("--count", strconv.Itoa(total))
	if got, want := strings.Join(seen, "\n"), strings.Join(all, "\n"); got != want {
		t.Errorf("in two parts:\n%s\nat once:\n%s", got, want)
	}
}

func TestErrorsOfUse(t *testing.T) {
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 2, "usage:"},
		{[]string{"buy"}, 2, "usage:"},
		{[]string{"sell"}, 2, "usage:"},
		{[]string{"sell", "--database", "postgres://127.0.0.1", "--tills", "0"}, 2, "usage:"},
		{[]string{"watch", "extra"}, 2, "usage:"},
		{[]string{"watch", "--count", "-1"}, 2, "usage:"},
		{[]string{"watch", "--after", "7"}, 1, "--after"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), test.args, &stdout, &stderr); code != test.code || !strings.Contains(stderr.String(), test.want) {
			t.Errorf("orders %v exits with %d and %q, want %d and %q", test.args, code, stderr.String(), test.code, test.want)
		}
	}
}

// Without Fanfare's schema the error says what is missing.
func TestSellNeedsFanfare(t *testing.T) {
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"sell", "--database", newDatabase(t)}, &stdout, &stderr)
	if code != 1 || !strings.Contains(stderr.String(), "fanfare serve") {
		t.Errorf("exits with %d and %q", code, stderr.String())
	}
}
