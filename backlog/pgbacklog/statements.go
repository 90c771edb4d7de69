package pgbacklog

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// statements are the store's SQL, with the schema's quoted name in place of
// "fanfare". The connections' search_path is left alone: it may be anything.
type statements struct {
	load, changed, page, listAll, listChannel string
	announcementKeys                          string
	policies, setDefaultBacklog               string
	janitor                                   janitorStatements
}

// qualify replaces "fanfare." by the schema's quoted name.
func qualify(schema, sql string) string {
	return strings.ReplaceAll(sql, "fanfare.", pgx.Identifier{schema}.Sanitize()+".")
}

func newStatements(schema string) statements {
	in := func(sql string) string { return qualify(schema, sql) }
	return statements{
		load:              in(loadSQL),
		changed:           in(changedSQL),
		page:              in(pageSQL),
		listAll:           in(listAllSQL),
		listChannel:       in(listChannelSQL),
		announcementKeys:  in(`select key_id, key from fanfare.announcement_keys order by key_id`),
		policies:          in(policiesSQL),
		setDefaultBacklog: in(setDefaultBacklogSQL),
		janitor: janitorStatements{
			lock:          in(janitorLockSQL),
			keys:          in(sweepKeysSQL),
			retired:       in(sweepRetiredSQL),
			candidates:    in(candidatesSQL),
			trim:          in(trimSQL),
			removeStreams: in(removeStreamsSQL),
		},
	}
}
