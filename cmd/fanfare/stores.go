package main

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog"
	"github.com/fanfare-io/fanfare/backlog/sqlitebacklog"
)

const (
	postgresForm = "postgres://USER:PASSWORD@HOST:PORT/DATABASE"
	// sqlitePrefix begins the URL of an embedded store. What follows is the path
	// of its file; nothing stands for the file in the data directory.
	sqlitePrefix = "sqlite:"
)

// fileInUse is what the embedded store says of a file that another process has.
// Only the words tell: it has no error of its own for it.
const fileInUse = "in use by another process"

// storeOptions say which store a command works on.
type storeOptions struct {
	store   string
	schema  string
	dataDir string

	// check sets what follows. path is the file of an embedded store, absolute, or
	// sqlitebacklog.MemoryPath; empty for PostgreSQL.
	path string
	// inDataDir is true if path is in the data directory, which may be missing.
	inDataDir bool
}

func (o *storeOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.store, "store", "", "the store: "+postgresForm+", or sqlite:PATH for a file (default sqlite:, "+dataFile+" in the data directory)")
	f.StringVar(&o.schema, "schema", pgbacklog.DefaultSchema, "the database schema with Fanfare's tables and functions (PostgreSQL only)")
	f.StringVar(&o.dataDir, "data-dir", "", "where "+dataFile+" is, if --store names no other place (default $XDG_DATA_HOME/fanfare or ~/.local/share/fanfare)")
}

// check refuses a store of a kind that this version has not, and what of a URL
// and a schema's name is wrong whatever the server says. It completes the
// options: env says where the data directory is. flags are those that were given.
func (o *storeOptions) check(env map[string]string, flags *pflag.FlagSet) error {
	switch {
	case flags.Changed("data-dir") && o.dataDir == "":
		return usagef("--data-dir must not be empty")
	case o.store != "" && o.store != sqlitePrefix && onCommandLine(flags, "store") && onCommandLine(flags, "data-dir"):
		return usagef("--data-dir is where %s is, and --store names another place: give one of the two", dataFile)
	case o.embedded():
		if err := o.locate(env); err != nil || !flags.Changed("schema") {
			return err
		}
		return o.postgreSQLOnly("--schema")
	case o.schema == "":
		return usagef("--schema must not be empty")
	case !strings.HasPrefix(o.store, "postgres://") && !strings.HasPrefix(o.store, "postgresql://"):
		// The value is not repeated: it may hold a password.
		return usagef("--store must have the form %s or %sPATH", postgresForm, sqlitePrefix)
	}
	if err := (pgbacklog.Config{URL: o.store, Schema: o.schema}).Check(); err != nil {
		return usagef("%v", err)
	}
	return nil
}

// embedded reports whether the store is a file, or memory, of this process.
func (o *storeOptions) embedded() bool {
	return o.store == "" || strings.HasPrefix(o.store, sqlitePrefix)
}

// postgreSQLOnly is the error of a flag that an embedded store has no use for.
func (o *storeOptions) postgreSQLOnly(flag string) error {
	return usagef("%s is for PostgreSQL, and the store is %s: leave it out, or name a database with --store %s", flag, o.path, postgresForm)
}

// locate sets where the embedded store is.
func (o *storeOptions) locate(env map[string]string) error {
	path := strings.TrimPrefix(o.store, sqlitePrefix)
	switch {
	case path == "":
		dir, err := dataDir(o.dataDir, env)
		o.path, o.inDataDir = filepath.Join(dir, dataFile), true
		return err
	case path == sqlitebacklog.MemoryPath:
		o.path = path
		return nil
	case strings.HasPrefix(path, "//") && !strings.HasPrefix(path, "///"):
		// Programs differ in what they read in such a URL.
		return usagef("--store %s is ambiguous: write sqlite:PATH, as in sqlite:%s or sqlite:/var/lib/fanfare/%s", o.store, dataFile, dataFile)
	case strings.Trim(path, ":") == strings.Trim(sqlitebacklog.MemoryPath, ":") && path != "memory":
		// It would be a file of this name, which is hardly meant.
		return &usageError{fmt.Sprintf("--store %s is not the store in memory", o.store), didYouMean([]string{sqlitePrefix + sqlitebacklog.MemoryPath})}
	case strings.HasPrefix(path, "file:"):
		return usagef("--store %s: URIs of SQLite and their parameters are not taken: write sqlite:PATH, as in sqlite:%s", o.store, dataFile)
	}
	var err error
	o.path, err = filepath.Abs(path)
	return err
}

// openFile opens the embedded store. The path in config is set here.
func (o *storeOptions) openFile(ctx context.Context, config sqlitebacklog.Config) (*sqlitebacklog.Store, error) {
	if o.inDataDir {
		if err := makeDataDir(filepath.Dir(o.path)); err != nil {
			return nil, err
		}
	}
	config.Path = o.path
	store, err := sqlitebacklog.Open(ctx, config)
	if err != nil && strings.Contains(err.Error(), fileInUse) {
		err = fmt.Errorf("%w; a server may be running on it already: fanfare health asks the one at %s, and --server another", err, defaultAddress)
	}
	if err != nil && o.inDataDir {
		// The store's own advice knows no flags.
		err = fmt.Errorf("%w; --data-dir names another data directory", err)
	}
	return store, err
}

// place says for people where the store is, without its secrets.
func (o *storeOptions) place() string {
	switch o.path {
	case "":
		return o.database() + ", schema " + o.schema
	case sqlitebacklog.MemoryPath:
		return "memory, gone when this process ends"
	default:
		return o.path
	}
}

// database is the URL without user, password and parameters.
func (o *storeOptions) database() string {
	u, err := url.Parse(o.store)
	if err != nil || u.Host == "" {
		// Several hosts, or a host among the parameters.
		return "PostgreSQL"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}
