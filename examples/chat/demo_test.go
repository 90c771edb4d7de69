package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// asProgram is a variable of the environment: where it is set, the tests' program is chat.
const asProgram = "CHAT_AS_PROGRAM"

// site is a running chat demo.
type site struct {
	t       *testing.T
	url     string
	process *servicetest.Process
}

var chatOn = regexp.MustCompile(`chat on (http://\S+)/`)

// startDemo runs chat demo to the end of the test. Replicas that end stay away.
func startDemo(t *testing.T, args ...string) *site {
	t.Helper()
	if os.Getenv("FANFARE_TEST_NGINX") == "" {
		t.Fatal("FANFARE_TEST_NGINX names no nginx: run make test, which fetches one")
	}
	command := exec.Command(os.Args[0], append([]string{
		"demo", "--database", pgtest.NewDatabase(t), "--site", "127.0.0.1:0", "--restart", "1h",
		"--fanfare", servicetest.Program(t), "--nginx-config", "../../deploy/nginx",
	}, args...)...)
	command.Env = append(os.Environ(), asProgram+"=1")
	process, err := servicetest.StartProcess(command)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, process: process}
	t.Cleanup(func() {
		if err := s.end(); err != nil {
			t.Errorf("chat demo: %v", err)
		}
		if t.Failed() {
			t.Logf("chat demo:\n%s", process.Log())
		}
	})
	s.await("the chat is there", func() bool {
		found := chatOn.FindStringSubmatch(process.Log())
		if found != nil {
			s.url = found[1]
		}
		return found != nil
	})
	return s
}

// end ends the demo as Ctrl-C does, and waits for that.
func (s *site) end() error {
	if err := s.process.Signal(syscall.SIGINT); err != nil && !strings.Contains(err.Error(), "already finished") {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return s.process.AwaitEnd(ctx)
}

func (s *site) await(what string, holds func() bool) {
	s.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			s.t.Fatalf("not within %v: %s\n%s", patience, what, s.process.Log())
		}
	}
}

// post writes messages as a page does, one after the other.
func (s *site) post(t *testing.T, room string, bodies ...string) {
	t.Helper()
	for _, body := range bodies {
		if status, answer := request(t, http.MethodPost, s.url+"/rooms/"+room+"/messages", messageJSON(newKey(), "Ann", body)); status != http.StatusCreated {
			t.Fatalf("a message is answered %d %s", status, answer)
		}
	}
}

// replicas returns the process ids of those that run.
func (s *site) replicas(t *testing.T) map[string]int {
	t.Helper()
	_, answer := request(t, http.MethodGet, s.url+"/demo/replicas", "")
	var states []replicaState
	if err := json.Unmarshal([]byte(answer), &states); err != nil {
		t.Fatalf("%v: %s", err, answer)
	}
	running := map[string]int{}
	for _, state := range states {
		if state.Pid != 0 {
			running[state.Name] = state.Pid
		}
	}
	return running
}

// exists reports whether there is a process with this id.
func exists(pid int) bool { return syscall.Kill(pid, 0) == nil }

// The demonstration starts a killed replica again, and leaves nothing behind.
func TestDemoRestartsReplicasAndEndsEverything(t *testing.T) {
	s := startDemo(t, "--restart", "10ms")
	first := s.replicas(t)
	if len(first) != 3 {
		t.Fatalf("the replicas are %v", first)
	}
	if status, answer := request(t, http.MethodPost, s.url+"/demo/replicas/B/kill", ""); status != http.StatusNoContent {
		t.Errorf("killing B is answered %d %s", status, answer)
	}
	if status, _ := request(t, http.MethodPost, s.url+"/demo/replicas/D/kill", ""); status != http.StatusNotFound {
		t.Errorf("killing D is answered %d", status)
	}
	if status, _ := request(t, http.MethodPost, s.url+"/demo/replicas/A/kill", "", "Sec-Fetch-Site", "cross-site"); status != http.StatusForbidden {
		t.Errorf("killing from another site is answered %d", status)
	}
	if status, _ := request(t, http.MethodGet, s.url+"/rooms/lobby", "", "Host", "evil.example"); status != http.StatusForbidden {
		t.Errorf("under another name the chat is answered %d", status)
	}
	var pids []int
	s.await("B runs again", func() bool {
		now := s.replicas(t)
		pids = []int{first["B"], now["A"], now["B"], now["C"]}
		return len(now) == 3 && now["B"] != first["B"]
	})
	if pids[1] != first["A"] || pids[3] != first["C"] {
		t.Errorf("the replicas were %v, and are %v", first, s.replicas(t))
	}
	told := fmt.Sprintf("replica B has process id %d\n", pids[2])
	s.await("the new process id is told", func() bool { return strings.Contains(s.process.Log(), told) })
	if err := s.end(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	if left := slices.IndexFunc(pids, exists); left >= 0 {
		t.Errorf("process %d is left", pids[left])
	}
	if _, err := http.Get(s.url); err == nil {
		t.Error("nginx is left")
	}
}

// Symptom: nginx led to everything that the replicas serve, which ask for no tokens, and any
// visitor could publish a message in anybody's name, past the chat's servers. Visitors
// reach event streams, and the module that reads them.
func TestVisitorsPublishThroughTheChatOnly(t *testing.T) {
	s := startDemo(t)
	forged := `{"frame": {"channel": "chat/messages", "scope": "lobby", "payload": "e30="}}`
	for _, path := range []string{
		"/v1/publish", "/v1/streams/../publish", "/v1/streams%2f..%2fpublish", "/v1/close", "/fanfare.v1.FanfareService/Publish", "/grpc.health.v1.Health/Check",
	} {
		for _, method := range []string{http.MethodPost, http.MethodGet} {
			status, answer := request(t, method, s.url+path, forged, "Content-Type", "application/json")
			// The chat's servers have nothing there; a replica would answer otherwise.
			if status != http.StatusNotFound && status != http.StatusMethodNotAllowed || strings.Contains(answer, `"code"`) {
				t.Errorf("%s %s is answered %d %.200s", method, path, status, answer)
			}
		}
	}
	for path, want := range map[string]string{"/fanfare.js": "EventSource", "/v1/streams?channel=": "INVALID_FIELD"} {
		if _, answer := request(t, http.MethodGet, s.url+path, ""); !strings.Contains(answer, want) {
			t.Errorf("%s is answered %.200s", path, answer)
		}
	}
}
