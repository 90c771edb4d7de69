package sqlitebacklog

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// MemoryPath is the path of a database that is gone when its store is closed.
const MemoryPath = ":memory:"

// Config is what a store needs. The zero value of each field but Path is its
// default.
type Config struct {
	// Path is the database's file, which is created if it is missing, for its owner
	// alone; its directory must exist. MemoryPath keeps everything in memory.
	Path string
	// Backlog, if not nil, is stored as the default backlog.
	Backlog *int64
	// MaxFrameBytes bounds a payload. 0: what the file's settings say, 1 MiB in a
	// new one.
	MaxFrameBytes int
	// MaxBatchFrames and MaxBatchBytes cut a transaction, which carries at least
	// one publication whatever its size. Defaults: 512 frames, 1 MiB.
	MaxBatchFrames int
	MaxBatchBytes  int64
	// MaxQueuedFrames and MaxQueuedBytes bound what has been submitted and is not
	// yet finished; what comes when nothing else is queued is taken whatever its
	// size. Defaults: 10,000 frames, 64 MiB.
	MaxQueuedFrames int
	MaxQueuedBytes  int64
	// MaxAnnouncedBytes bounds what has been committed and the hub has not been
	// told of yet; commits wait while it is more. Default 16 MiB.
	MaxAnnouncedBytes int64
	// ReadConns is how many pages are read at a time; loads, lists and pings have
	// connections of their own. In memory there is one connection for everything.
	// Default 4.
	ReadConns int
	// JanitorInterval is how long the janitor rests between sweeps. Default 30 s.
	JanitorInterval time.Duration
	// Logger gets what operators should know; nil: nothing is logged.
	Logger *slog.Logger
}

// withDefaults returns c with every zero value replaced by its default.
func (c Config) withDefaults() Config {
	setDefault(&c.MaxBatchFrames, 512)
	setDefault(&c.MaxBatchBytes, 1<<20)
	setDefault(&c.MaxQueuedFrames, 10_000)
	setDefault(&c.MaxQueuedBytes, 64<<20)
	setDefault(&c.MaxAnnouncedBytes, 16<<20)
	setDefault(&c.ReadConns, 4)
	setDefault(&c.JanitorInterval, 30*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// validate checks what can be checked without a file. It expects defaults to be
// set.
func (c Config) validate() error {
	switch {
	case c.Path == "":
		return errors.New("no path of a database is configured")
	case strings.IndexByte(c.Path, 0) >= 0:
		return fmt.Errorf("the path %q must not contain NUL", c.Path)
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"MaxFrameBytes", int64(c.MaxFrameBytes)}, {"MaxBatchFrames", int64(c.MaxBatchFrames)}, {"MaxBatchBytes", c.MaxBatchBytes},
		{"MaxQueuedFrames", int64(c.MaxQueuedFrames)}, {"MaxQueuedBytes", c.MaxQueuedBytes}, {"MaxAnnouncedBytes", c.MaxAnnouncedBytes},
		{"ReadConns", int64(c.ReadConns)}, {"JanitorInterval", int64(c.JanitorInterval)},
	} {
		if f.value < 0 {
			return fmt.Errorf("%s must not be negative", f.name)
		}
	}
	if c.Backlog != nil && *c.Backlog < 0 {
		return errors.New("the backlog must not be negative")
	}
	if c.MaxFrameBytes > backlog.MaxBatchBytes {
		return fmt.Errorf("MaxFrameBytes is %d, the limit is %d", c.MaxFrameBytes, backlog.MaxBatchBytes)
	}
	return nil
}

// inMemory reports whether the database has no file.
func (c *Config) inMemory() bool { return c.Path == MemoryPath }
