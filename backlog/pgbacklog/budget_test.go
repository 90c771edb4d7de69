package pgbacklog

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// TestConnectionsAreCounted: what a replica is said to hold is what its pools
// may hold, and the listener.
func TestConnectionsAreCounted(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	pools := s.publishing.Config().MaxConns + s.loading.Config().MaxConns + s.paging.Config().MaxConns
	if n := s.cfg.connections(); n != int(pools)+listenerConns || n != 23 {
		t.Errorf("a replica holds %d connections, its pools %d", n, pools)
	}
}

func TestOpenWarnsOfConnections(t *testing.T) {
	t.Parallel()
	// 60 less 3 that are reserved are enough for two replicas of 23, not for three.
	server := pgtest.Start(t, "max_connections=60", "superuser_reserved_connections=3")
	u := server.URL("postgres")
	migrate(t, u, "")
	execute(t, u, "create role replica login password 'x'; grant usage on schema fanfare to replica;"+
		"grant all on all tables in schema fanfare to replica; grant execute on all functions in schema fanfare to replica")
	asReplica := withUser(t, u, "replica", "x")
	for _, step := range []struct {
		sql      string
		url      string
		replicas int
		want     []string // of the warning; none if there is no warning
	}{
		{"", u, 0, nil},
		{"", u, 2, nil},
		{"", u, 3, []string{"replicas=3", "connections_of_each=23", "needed=69", "allowed=57", "max_connections (60, of which 3 are reserved)", "fewer replicas"}},
		{"", asReplica, 2, nil},
		{"alter role replica connection limit 40", asReplica, 1, nil},
		{"", asReplica, 2, []string{"needed=46", "allowed=40", "the role's CONNECTION LIMIT (40)"}},
		{"alter database postgres connection limit 30", asReplica, 2, []string{"allowed=30", "the database's CONNECTION LIMIT (30)"}},
		{"", u, 2, nil}, // limits are not for superusers
	} {
		if step.sql != "" {
			execute(t, u, step.sql)
		}
		var log bytes.Buffer
		s, err := Open(t.Context(), Config{URL: step.url, Replicas: step.replicas, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		if warned := strings.Contains(log.String(), "connections"); warned != (step.want != nil) {
			t.Errorf("%d replicas: the log is %q, want a warning: %v", step.replicas, log.String(), step.want != nil)
		}
		for _, part := range step.want {
			if !strings.Contains(log.String(), part) {
				t.Errorf("%d replicas: the log %q lacks %q", step.replicas, log.String(), part)
			}
		}
	}
}
