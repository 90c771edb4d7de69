//go:build unix

package failover_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fanfare-io/fanfare/clientlib/failover"
)

// nobody is who a worker runs as that may not use the hub's socket.
const nobody = 65534

// A worker of another user than the hub's may not use its socket. That is no absence:
// the worker says what is wrong, rather than to hide it with connections of its own.
func TestASocketOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		// Nobody else's socket can be made; one without rights is the same to its owner.
		path := socketIn(t)
		startHub(t, migrated(t), path)
		if err := os.Chmod(path, 0); err != nil {
			t.Fatal(err)
		}
		refused(t, path, func(cfg workerConfig) string { return startWorker(t, cfg).awaitEnd() })
		return
	}
	path := socketIn(t)
	startHub(t, migrated(t), path)
	public := filepath.Dir(path)
	for file, mode := range map[string]os.FileMode{public: 0o755, path: 0o600} {
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(public, "worker")
	copyProgram(t, program)
	refused(t, path, func(cfg workerConfig) string {
		return launchWorker(t, cfg, program, func(command *exec.Cmd) {
			command.Dir = "/"
			command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		}).awaitEnd()
	})
}

func refused(t *testing.T, path string, run func(workerConfig) (output string)) {
	t.Helper()
	for _, mode := range []failover.Mode{failover.Automatic, failover.HubOnly} {
		output := run(workerConfig{Name: mode.String(), Hub: "unix://" + path, Database: "postgres://127.0.0.1:1/db", Mode: mode, Streams: 1})
		if !strings.Contains(output, "may not connect to the hub on unix://"+path) || !strings.Contains(output, "run the worker as the user that the hub runs as") {
			t.Errorf("%s: the worker says:\n%s", mode, output)
		}
		if strings.Contains(output, "moved") {
			t.Errorf("%s: the worker has left the hub", mode)
		}
	}
}

// copyProgram copies this program to where everybody may run it.
func copyProgram(t *testing.T, to string) {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	file, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(file, from); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}
