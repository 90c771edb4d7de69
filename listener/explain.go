package listener

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATEs that need an explanation.
const (
	undefinedFile        = "58P01"
	protocolViolation    = "08P01"
	invalidAuthorization = "28000"
	invalidPassword      = "28P01"
	unknownDatabase      = "3D000"
	noPrivilege          = "42501"
	tooManyConnections   = "53300"
	undefinedFunction    = "42883"
	undefinedSchema      = "3F000"
)

// explain adds to an error what an operator can do about it.
func explain(err error) error {
	if advice := adviceFor(err); advice != "" {
		return fmt.Errorf("%w: %s", err, advice)
	}
	return err
}

func adviceFor(err error) string {
	if errors.Is(err, errRecovery) {
		return "let --listen-database-url lead to the primary"
	}
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return ""
	}
	switch refused.Code {
	case undefinedFile:
		return "a bug of PostgreSQL before 15.17, 16.13, 17.9 and 18.3; trying again after clearing the notification queue"
	case protocolViolation:
		if strings.Contains(refused.Message, "startup parameter") {
			return "this is a pooler; set --listen-database-url to a URL that reaches PostgreSQL directly"
		}
	case invalidAuthorization, invalidPassword:
		return "check user and password of --listen-database-url and the server's pg_hba.conf"
	case unknownDatabase:
		return "check the database of --listen-database-url"
	case noPrivilege:
		return "grant the role of --listen-database-url CONNECT on the database and USAGE on the schema"
	case tooManyConnections:
		return "raise max_connections or close other sessions; a replica needs one connection to listen"
	case undefinedFunction, undefinedSchema:
		return "has the schema been migrated in the database that --listen-database-url leads to?"
	}
	return ""
}
