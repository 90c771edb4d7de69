package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
)

// counted is what queries prints.
type counted struct {
	// Queries is nil if the database does not count them.
	Queries *int64 `json:"queries"`
}

func queriesCommand() *cobra.Command {
	var database string
	cmd := reporting("queries", "Count the statements so far that read the backlog in a database", func(ctx context.Context) (counted, error) {
		return countQueries(ctx, database)
	})
	cmd.Long = `Counts the statements so far that read the backlog in a database, of whatever
schema, by its extension pg_stat_statements. Prints null if the server has not
loaded that.`
	askDatabase(cmd, &database)
	return cmd
}

func countQueries(ctx context.Context, url string) (c counted, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	// Statements that write call functions, which name the table where it is not
	// seen here.
	const sql = `
select coalesce(sum(q.calls), 0)::bigint
  from pg_stat_statements q join pg_database d on d.oid = q.dbid
 where d.datname = current_database() and q.toplevel
   and (q.query like '%channel_frames%' or q.query like '%stream_states%') and q.query not like '%pg_stat_statements%'`
	_, err = conn.Exec(ctx, "set client_min_messages = warning; create extension if not exists pg_stat_statements")
	if err == nil {
		err = conn.QueryRow(ctx, sql).Scan(&c.Queries)
	}
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		// The extension's files are not there (0A000, 58P01), or it was not loaded when
		// the server started (55000).
		switch refused.Code {
		case "0A000", "58P01", "55000":
			return counted{}, nil
		}
	}
	return c, err
}
