package pgtest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// place is a temporary directory with a data directory, and who runs what in
// it.
type place struct {
	bin   string
	dir   string
	owner *syscall.Credential // nil: this process's user
	// watchdog must stay reachable: its pipe is closed when it is collected.
	watchdog *watchdog
}

func newPlace() (*place, error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	who, err := owner()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "fanfare-pgtest-")
	if err != nil {
		return nil, err
	}
	p := &place{bin: bin, dir: dir, owner: who}
	return p, p.own(dir)
}

func (p *place) data() string    { return filepath.Join(p.dir, "data") }
func (p *place) log() string     { return filepath.Join(p.dir, "log") }
func (p *place) pidFile() string { return filepath.Join(p.data(), "postmaster.pid") }

// own gives a file to the user that servers run as.
func (p *place) own(path string) error {
	if p.owner == nil {
		return nil
	}
	return os.Chown(path, int(p.owner.Uid), int(p.owner.Gid))
}

// remove removes the directory; nothing may run in it.
func (p *place) remove() error {
	if p.watchdog != nil {
		p.watchdog.end()
	}
	return os.RemoveAll(p.dir)
}

// write writes a file of the data directory.
func (p *place) write(name, content string) error {
	path := filepath.Join(p.data(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return err
	}
	return p.own(path)
}

// configure writes settings over those of the data directory's first server.
func (p *place) configure(settings []string) error {
	var b strings.Builder
	for _, s := range settings {
		name, value, found := strings.Cut(s, "=")
		if !found {
			return fmt.Errorf("setting %q is not name=value", s)
		}
		fmt.Fprintf(&b, "%s = '%s'\n", name, strings.ReplaceAll(value, "'", "''"))
	}
	return p.write("postgresql.auto.conf", b.String())
}

// command prepares a program that runs as the owner. In a process group of its
// own it does not get the terminal's interrupt: the test process or the
// watchdog ends it in order.
func (p *place) command(name string, args ...string) *exec.Cmd {
	c := exec.Command(name, args...)
	c.Dir = p.dir // the owner may not be allowed to enter the working directory
	c.Env = append(os.Environ(), "LC_ALL=C")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: p.owner, Setpgid: true}
	return c
}

func (p *place) run(name string, args ...string) error {
	if out, err := p.command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// watchdog cleans up a place when the test process has ended without doing so:
// killed, timed out or panicking.
type watchdog struct {
	process *exec.Cmd
	alive   io.WriteCloser // its closing, by whomever, is the end
}

// watch starts a watchdog. Its script waits for the end of the pipe that only
// the test process can write to, then stops the server that the pid file names,
// gives it a moment to let go of its files, and removes the directory.
func (p *place) watch() error {
	const script = `read -r _
if [ -f data/postmaster.pid ]; then
  kill -QUIT "$(head -n 1 data/postmaster.pid)" && sleep 1
fi
cd / && rm -rf -- "$0"`
	process := p.command("sh", "-c", script, p.dir)
	alive, err := process.StdinPipe()
	if err != nil {
		return err
	}
	if err := process.Start(); err != nil {
		return errors.Join(fmt.Errorf("start the watchdog: %w", err), alive.Close())
	}
	p.watchdog = &watchdog{process: process, alive: alive}
	return nil
}

// end ends the watchdog of a server that has stopped.
func (w *watchdog) end() {
	_ = w.alive.Close()
	_ = w.process.Wait() // nothing is left for it to fail at
}
