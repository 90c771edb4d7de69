package pgbacklog

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// statements are the store's SQL, with the schema's quoted name in place of
// "fanfare". The connections' search_path is left alone: it may be anything.
type statements struct {
	load, page, listAll, listChannel string
	announcementKeys, setBacklog     string
	janitor                          janitorStatements
}

func newStatements(schema string) statements {
	qualify := func(sql string) string {
		return strings.ReplaceAll(sql, "fanfare.", pgx.Identifier{schema}.Sanitize()+".")
	}
	return statements{
		load:             qualify(loadSQL),
		page:             qualify(pageSQL),
		listAll:          qualify(listAllSQL),
		listChannel:      qualify(listChannelSQL),
		announcementKeys: qualify(`select key_id, key from fanfare.announcement_keys order by key_id`),
		setBacklog:       qualify(`update fanfare.policies set backlog = $1 where channel = '' and backlog <> $1`),
		janitor: janitorStatements{
			lock:          qualify(janitorLockSQL),
			keys:          qualify(sweepKeysSQL),
			retired:       qualify(sweepRetiredSQL),
			candidates:    qualify(candidatesSQL),
			trim:          qualify(trimSQL),
			removeStreams: qualify(removeStreamsSQL),
		},
	}
}
