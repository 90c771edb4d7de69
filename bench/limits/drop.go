package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
)

// droppable begins the names of schemas that drop removes: nobody else's frames.
const droppable = "fanfare_bench"

func dropCommand() *cobra.Command {
	var database, schema string
	cmd := &cobra.Command{
		Use:   "drop",
		Short: "Remove a schema that fanfare bench has used",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !strings.HasPrefix(schema, droppable) {
				return fmt.Errorf("--schema %q does not begin with %s", schema, droppable)
			}
			s := scratch{url: database, schema: pgx.Identifier{schema}.Sanitize()}
			return errors.Join(s.drop(cmd.Context()), printJSON(cmd.OutOrStdout(), struct{}{}))
		},
	}
	cmd.Flags().StringVar(&database, "database", "", "URL of the PostgreSQL database")
	cmd.Flags().StringVar(&schema, "schema", droppable, "the schema; it need not exist")
	return cmd
}
