package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

// demo runs everything that the chat consists of, but for PostgreSQL. Its parts listen
// on loopback, on ports that are free.
type demo struct {
	database, fanfare, nginx, nginxConfig string
	// site is the address of the chat, control that of what kills replicas.
	site, control string
	// restart is how long a replica stays away that has ended.
	restart time.Duration
	out     io.Writer

	replicas, servers []*part
	proxy             *part
}

func demoCommand() *cobra.Command {
	d := &demo{}
	command := &cobra.Command{
		Use: "demo", Short: "Run three replicas, two servers of the application, and nginx", Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			place, err := os.MkdirTemp("", "fanfare-chat-")
			if err != nil {
				return err
			}
			defer os.RemoveAll(place)
			d.out = &shared{to: command.OutOrStdout()}
			if err := d.plan(place, &shared{to: command.ErrOrStderr()}); err != nil {
				return err
			}
			return d.run(command.Context())
		},
	}
	addDatabase(command, &d.database)
	flags := command.Flags()
	flags.StringVar(&d.site, "site", "127.0.0.1:8080", "where nginx serves the chat; port 0 is any that is free")
	flags.StringVar(&d.fanfare, "fanfare", "bin/fanfare", "the program")
	flags.StringVar(&d.nginx, "nginx", cmp.Or(os.Getenv("FANFARE_TEST_NGINX"), "nginx"), "the program (FANFARE_TEST_NGINX)")
	flags.StringVar(&d.nginxConfig, "nginx-config", "deploy/nginx", "the directory with fanfare-streams.conf")
	flags.DurationVar(&d.restart, "restart", 5*time.Second, "start a replica again so long after it has ended")
	return command
}

// plan says what is to run. place is a directory for it.
func (d *demo) plan(place string, log io.Writer) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	for _, name := range []string{d.fanfare, d.nginx} {
		if _, err := exec.LookPath(name); err != nil {
			return err
		}
	}
	locations, err := filepath.Abs(filepath.Join(d.nginxConfig, "fanfare-streams.conf"))
	if err != nil {
		return err
	}
	if _, err := os.Stat(locations); err != nil {
		return err
	}
	free, err := freeAddresses(10)
	if err != nil {
		return err
	}
	next := func() (address string) {
		address, free = free[0], free[1:]
		return address
	}
	if strings.HasSuffix(d.site, ":0") {
		d.site = next()
	}

	host, _, err := net.SplitHostPort(d.site)
	if err != nil {
		return fmt.Errorf("--site: %w", err)
	}
	config := proxyConfig{Place: place, Site: d.site, Host: host, Locations: locations, Control: next()}
	env := append(withoutFanfare(os.Environ()), "FANFARE_STORE="+d.database)
	for _, name := range []string{"A", "B", "C"} {
		replica := proxyReplica{Name: name, HTTP: next()}
		config.Replicas = append(config.Replicas, replica)
		d.replicas = append(d.replicas, &part{
			name: name, program: d.fanfare, env: env, log: log, url: "http://" + replica.HTTP + "/healthz",
			args: []string{
				"serve", "--instance", "replica-" + name, "--http", replica.HTTP, "--grpc", next(),
				"--replicas", "3", "--drain-delay", "0", "--log-level", "warn",
			},
		})
	}
	for _, name := range []string{"chat-1", "chat-2"} {
		address := next()
		config.Servers = append(config.Servers, address)
		d.servers = append(d.servers, &part{
			name: name, program: program, env: env, log: log, url: "http://" + address + "/rooms/lobby",
			args: []string{"serve", "--listen", address, "--name", name, "--demo"},
		})
	}
	path, err := config.write()
	if err != nil {
		return err
	}
	d.control = config.Control
	d.proxy = &part{
		name: "nginx", program: d.nginx, log: log, url: "http://" + d.site + "/rooms/lobby",
		// Before it has read its configuration it would log elsewhere.
		args: []string{"-e", "stderr", "-p", place, "-c", path},
	}
	return nil
}

// run runs the parts until ctx ends, or one ends that is not to be started again.
func (d *demo) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	begin := func(parts ...*part) error {
		for _, p := range parts {
			group.Go(func() error { return d.keep(ctx, p) })
		}
		for _, p := range parts {
			if err := p.awaitReady(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	group.Go(func() error { return d.serveControl(ctx) })
	group.Go(func() error {
		// Each needs what stands before it.
		for _, parts := range [][]*part{d.replicas, d.servers, {d.proxy}} {
			if err := begin(parts...); err != nil {
				return err
			}
		}
		for _, p := range d.replicas {
			d.tellProcess(p)
		}
		fmt.Fprintf(d.out, "chat on http://%s/ (Ctrl-C ends everything)\n", d.site)
		return nil
	})
	err := group.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// keep runs a part, a replica again and again.
func (d *demo) keep(ctx context.Context, p *part) error {
	for run := p.run; ; run = d.runAgain(p) {
		err := run(ctx)
		if err == nil || !d.isReplica(p) {
			return err
		}
		fmt.Fprintf(d.out, "replica %v; it is started again in %v\n", err, d.restart)
		select {
		case <-time.After(d.restart):
		case <-ctx.Done():
			return nil
		}
	}
}

// runAgain runs a replica as run does, and tells its process id once it is ready.
func (d *demo) runAgain(p *part) func(context.Context) error {
	return func(ctx context.Context) error {
		life, end := context.WithCancel(ctx)
		var telling sync.WaitGroup
		telling.Go(func() {
			if p.awaitReady(life) == nil {
				d.tellProcess(p)
			}
		})
		err := p.run(ctx)
		end()
		telling.Wait()
		return err
	}
}

func (d *demo) tellProcess(p *part) {
	if pid := p.pid(); pid != 0 {
		fmt.Fprintf(d.out, "replica %s has process id %d\n", p.name, pid)
	}
}

// freeAddresses are addresses of loopback that nobody listens on. The kernel gives none of
// them, as it would a port from 32768 on, to a connection while its replica restarts.
func freeAddresses(n int) (addresses []string, err error) {
	for tries := 0; len(addresses) < n; tries++ {
		lis, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", 10_000+rand.IntN(22_000)))
		if err != nil && tries < 1000 {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer lis.Close() // together, so that none is given twice
		addresses = append(addresses, lis.Addr().String())
	}
	return addresses, nil
}

// withoutFanfare leaves out variables that would configure the replicas.
func withoutFanfare(environ []string) (kept []string) {
	for _, variable := range environ {
		if !strings.HasPrefix(variable, "FANFARE_") {
			kept = append(kept, variable)
		}
	}
	return kept
}

// shared is a writer for several goroutines.
type shared struct {
	mu sync.Mutex // guards to
	to io.Writer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.to.Write(p)
}
