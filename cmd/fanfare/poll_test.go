package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// With --poll-interval a server has no listener, delivers what another publishes
// and what SQL does, and refuses ephemeral frames by name.
func TestPollMode(t *testing.T) {
	t.Parallel()
	database := pgtest.NewDatabase(t)
	polling := startServer(t, database, "--poll-interval", "100ms")
	r := start(t, nil, "subscribe", "c", "s", "--server", polling.address)
	r.stderr.await(t, "caught up")
	mustRun(t, "", "publish", "c", "s", "--data", "here", "--server", polling.address)
	r.stdout.await(t, "here\n")
	began := time.Now()
	for i := range 3 {
		execute(t, database, fmt.Sprintf(`select fanfare.publish('c', 's', 'by SQL %d')`, i))
		r.stdout.await(t, fmt.Sprintf("by SQL %d\n", i))
	}
	// Three of the re-reads that are for safety only would take a minute and a half.
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("what was published by SQL came within %s, the poll interval is 100 ms", took)
	}

	execute(t, database, `do $$ begin
		if exists (select from pg_stat_activity where datname = current_database() and application_name like 'fanfare-listen/%') then
			raise 'there is a listener';
		end if;
	end $$`)
	refused := command(t, "", "publish", "c", "s", "--data", "x", "--ephemeral", "--server", polling.address)
	if refused.code != exitFailed || !strings.Contains(refused.stderr, "cannot deliver ephemeral frames") || !strings.Contains(refused.stderr, "(FailedPrecondition, EPHEMERAL_UNAVAILABLE)") {
		t.Errorf("an ephemeral frame: %+v", refused)
	}

	other := startServer(t, database)
	mustRun(t, "", "publish", "c", "s", "--data", "there", "--server", other.address)
	r.stdout.await(t, "there\n")
	r.interrupt()
	if code := r.end(); code != exitOK || r.stdout.String() != "here\nby SQL 0\nby SQL 1\nby SQL 2\nthere\n" {
		t.Errorf("exit code %d, stdout %q", code, r.stdout)
	}
}
