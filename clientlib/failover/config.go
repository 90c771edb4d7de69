package failover

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog"
)

// Mode says where calls may go.
type Mode int

// Modes.
const (
	// Automatic goes to the hub, and to a server in this process when the hub fails.
	Automatic Mode = iota
	// HubOnly waits for the hub when it fails, as an ordinary connection does.
	HubOnly
	// OwnOnly has no hub: the process serves itself from its first call.
	OwnOnly
)

// String returns the name of the mode, as in "hub only".
func (m Mode) String() string {
	switch m {
	case Automatic:
		return "automatic"
	case HubOnly:
		return "hub only"
	case OwnOnly:
		return "own only"
	default:
		return "mode " + strconv.Itoa(int(m))
	}
}

// Config configures a Conn. Hub and Database are required, but for HubOnly, which
// needs no Database, and OwnOnly, which needs no Hub.
type Config struct {
	// Hub is the address of the host's hub, as its --grpc: unix:///PATH, or host:port
	// of a loopback address.
	Hub string
	// Database is the URL of the hub's database, for the process's own connections.
	// Its schema has been migrated; the role needs what a server's needs. At most 10
	// connections are held beside one that listens, two or three when little happens.
	Database string
	// ListenDatabase is where LISTEN goes if Database leads through a transaction
	// pooler. Empty: Database.
	ListenDatabase string
	// Schema is the hub's --schema. Empty: fanfare.
	Schema string
	// Mode is Automatic unless set.
	Mode Mode

	// ConnectTimeout is how long the hub may take to answer a new connection. 0: 5 s.
	ConnectTimeout time.Duration
	// AckTimeout is how long the hub may leave a subscription without any answer while
	// the client waits for one. A hub answers within 20 s if its database does not. 0:
	// 30 s.
	AckTimeout time.Duration
	// RestartWait is how long a hub that has said it is going away may be absent.
	// Meanwhile calls wait. 0: 5 s; negative: not at all.
	RestartWait time.Duration

	// Instance names this process in pg_stat_activity while it serves itself. Empty:
	// own:HOST-PID.
	Instance string
	// MaxMessageBytes bounds what is received in one message; it must be above the
	// largest payload by about 30 KiB. 0: 16 MiB.
	MaxMessageBytes int
	// DialOptions are added to those of the connections to the hub and to the own
	// server: interceptors, credentials for each call, handlers of statistics.
	DialOptions []grpc.DialOption
	// Logger gets a line when the Conn goes elsewhere, and what a server logs while
	// the process serves itself. Nil: slog.Default.
	Logger *slog.Logger
	// OnFailover, if not nil, is called each time that the process has begun to serve
	// itself instead of calling the hub, with the reason and what was seen. It must not
	// block; calls wait for it.
	OnFailover func(Reason, error)
}

func (c Config) withDefaults() Config {
	c.Schema = cmp.Or(c.Schema, pgbacklog.DefaultSchema)
	c.ListenDatabase = cmp.Or(c.ListenDatabase, c.Database)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, 5*time.Second)
	c.AckTimeout = cmp.Or(c.AckTimeout, 30*time.Second)
	c.RestartWait = max(0, cmp.Or(c.RestartWait, 5*time.Second))
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, 16<<20)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if c.Instance == "" {
		c.Instance = defaultInstance()
	}
	return c
}

// defaultInstance tells the own connections of workers from those of servers.
func defaultInstance() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return "own:" + host + "-" + strconv.Itoa(os.Getpid())
}

// check expects defaults to be set.
func (c *Config) check() error {
	switch {
	case c.Mode < Automatic || c.Mode > OwnOnly:
		return fmt.Errorf("there is no %s", c.Mode)
	case c.ConnectTimeout < 0 || c.AckTimeout < 0 || c.MaxMessageBytes < 0:
		return errors.New("ConnectTimeout, AckTimeout and MaxMessageBytes must not be negative")
	}
	if c.Mode != OwnOnly {
		if _, _, err := socketOf(c.Hub); err != nil {
			return err
		}
	}
	if c.Mode == HubOnly {
		return nil
	}
	if c.Database == "" {
		return fmt.Errorf("the mode %s needs a Database", c.Mode)
	}
	return errors.Join(c.store(c.Database).Check(), c.store(c.ListenDatabase).Check())
}

// store is the configuration of the own store. A worker serves itself only, so
// that few connections do; those for publishing are the batch, two for streams that
// foreign transactions hold, one each for batches and policies, and two shared.
func (c *Config) store(url string) pgbacklog.Config {
	return pgbacklog.Config{
		URL:        url,
		Schema:     c.Schema,
		Instance:   c.Instance,
		Logger:     c.Logger,
		Lanes:      2,
		BatchConns: 1,
		LoadConns:  1,
		PageConns:  2,
	}
}

// socketOf returns how to dial an address.
func socketOf(address string) (network, name string, err error) {
	if name, ok := strings.CutPrefix(address, "unix:"); ok {
		name, ok = strings.CutPrefix(name, "//")
		if !ok || !path.IsAbs(name) {
			return "", "", fmt.Errorf("the hub's address %q is not unix:///PATH, with an absolute path", address)
		}
		return "unix", name, nil
	}
	if !strings.Contains(address, ":") {
		return "", "", fmt.Errorf("the hub's address %q is neither unix:///PATH nor host:port", address)
	}
	return "tcp", address, nil
}
