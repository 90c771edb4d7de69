package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog"
	"github.com/fanfare-io/fanfare/backlog/sqlitebacklog"
)

func (p *program) migrateCommand() *cobra.Command {
	var o storeOptions
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create or update the database schema",
		Long: `Creates the schema with its tables and functions, or updates it. It may run while
servers serve, and several times at once. Give the direct URL of the database,
not that of a pooler, and a role that may create the schema; servers started
with --migrate off then need fewer rights.

An embedded store is brought up to date whenever fanfare serve opens it, so it
needs this command only to find out in advance whether that works.`,
		Example: `  fanfare migrate --store postgres://owner@localhost/app
  fanfare migrate --store postgres://owner@localhost/app --schema events
  fanfare migrate --store sqlite:/var/lib/fanfare/fanfare.db`,
		Args: noArguments,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			if o.store == "" {
				return usagef("--store is needed, as --store %s or in FANFARE_STORE; the embedded store is migrated by fanfare serve", postgresForm)
			}
			if err := o.check(p.env, cmd.Flags()); err != nil {
				return err
			}
			if o.path == sqlitebacklog.MemoryPath {
				return usagef("--store %s keeps nothing that could be migrated", o.store)
			}
			logger, err := newLogger(p.stderr, "info", "text")
			if err != nil {
				return err
			}
			done, err := o.migrateStore(cmd.Context(), logger)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(p.stdout, "%s is up to date\n", done)
			return err
		}),
	}
	o.addFlags(cmd)
	return cmd
}

// migrateStore brings the store up to date, and returns what it is called.
func (o *storeOptions) migrateStore(ctx context.Context, logger *slog.Logger) (string, error) {
	if !o.embedded() {
		return fmt.Sprintf("schema %q", o.schema), pgbacklog.Migrate(ctx, o.store, o.schema, logger)
	}
	store, err := o.openFile(ctx, sqlitebacklog.Config{Logger: logger})
	if err != nil {
		return "", err
	}
	store.Close()
	return o.path, nil
}
