package pgbacklog

import "github.com/jackc/pgx/v5"

// OriginSQL is the query for a server's origin, one bigint, by which a listener
// can tell whether it listens to the server that the store reads from.
func (s *Store) OriginSQL() string {
	return "select " + pgx.Identifier{s.cfg.Schema}.Sanitize() + "._origin()"
}
