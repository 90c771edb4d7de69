package main

import (
	"context"
	"encoding/json"
	"io"

	"github.com/spf13/cobra"
)

// reporting returns a command without arguments that measures and prints a line of
// JSON.
func reporting[A any](use, short string, measure func(context.Context) (A, error)) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			answer, err := measure(cmd.Context())
			if err != nil {
				return err
			}
			return printJSON(cmd.OutOrStdout(), answer)
		},
	}
}

func printJSON(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }

// askDatabase adds the flag that names the database.
func askDatabase(cmd *cobra.Command, url *string) {
	cmd.Flags().StringVar(url, "database", "", "URL of the PostgreSQL database")
	_ = cmd.MarkFlagRequired("database") // it exists
}
