package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog"
)

func (p *program) migrateCommand() *cobra.Command {
	var o storeOptions
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create or update the database schema",
		Long: `Creates the schema with its tables and functions, or updates it. It may run while
servers serve, and several times at once. Give the direct URL of the database,
not that of a pooler, and a role that may create the schema; servers started
with --migrate off then need fewer rights.`,
		Example: `  fanfare migrate --store postgres://owner@localhost/app
  fanfare migrate --store postgres://owner@localhost/app --schema events`,
		Args: noArguments,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			logger, err := newLogger(p.stderr, "info", "text")
			if err != nil {
				return err
			}
			if err := pgbacklog.Migrate(cmd.Context(), o.store, o.schema, logger); err != nil {
				return err
			}
			_, err = fmt.Fprintf(p.stdout, "schema %q is up to date\n", o.schema)
			return err
		}),
	}
	o.addFlags(cmd)
	return cmd
}
