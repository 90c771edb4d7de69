package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
)

// droppable begins the names of schemas that drop removes: nobody else's frames.
const droppable = "fanfare_bench"

func dropCommand() *cobra.Command {
	var database, schema string
	cmd := reporting("drop", "Remove a schema that fanfare bench has used", func(ctx context.Context) (done struct{}, err error) {
		if !strings.HasPrefix(schema, droppable) {
			return done, fmt.Errorf("--schema %q does not begin with %s", schema, droppable)
		}
		s := scratch{url: database, schema: pgx.Identifier{schema}.Sanitize()}
		return done, s.drop(ctx)
	})
	askDatabase(cmd, &database)
	cmd.Flags().StringVar(&schema, "schema", droppable, "the schema; it need not exist")
	return cmd
}
