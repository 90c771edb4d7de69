//go:build unix

package bench

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// roleVariable makes this test's executable a program that a test starts.
const roleVariable = "FANFARE_BENCH_TEST_ROLE"

func TestMain(m *testing.M) {
	if role, is := os.LookupEnv(roleVariable); is {
		os.Exit(play(role))
	}
	goleak.VerifyTestMain(m)
}

// play is what started programs do.
func play(role string) int {
	switch role {
	case "server":
		fmt.Println("backlog in memory")
		fmt.Println("serving on 127.0.0.1:4711; try: something")
		// More than a pipe holds: nobody needs it, and the server must not wait.
		fmt.Println(strings.Repeat("x", 1<<20))
		fmt.Fprintln(os.Stderr, "has printed everything")
		awaitTerm()
		return 0
	case "mute":
		fmt.Fprintln(os.Stderr, "waits for its database")
		awaitTerm()
		return 0
	case "refused":
		fmt.Fprintln(os.Stderr, strings.Repeat("earlier ", 1000)+"\nthe file is in use")
		return 1
	case "short":
		fmt.Println("serving on 127.0.0.1:4711")
		fmt.Fprintln(os.Stderr, "panic: something")
		return 2
	case "answer":
		fmt.Printf("{\"args\": %q}\n", strings.Join(os.Args[1:], " "))
		return 0
	case "babble":
		fmt.Println("hello")
		return 0
	}
	panic(role)
}

func awaitTerm() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	<-ended
}

// asRole returns the environment that has this executable play a role.
func asRole(role string) []string { return append(os.Environ(), roleVariable+"="+role) }

func executable(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
