package listener

import (
	"fmt"
	"testing"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// POSTGRES.md 19, symptom: the server kept the session of a listener whose network
// was gone for hours, and with it all notifications. Cause: the kernel's default
// times. The listener's session has its own, whatever database and role say.
func TestSettingsOfTheSession(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, "idle_session_timeout=1h", "lock_timeout=1h")
	url := server.URL("postgres")
	pgtest.Exec(t, pgtest.Dial(t, url), `alter role postgres set tcp_user_timeout = '1h'; alter role postgres set tcp_keepalives_idle = 7200`)
	for name, want := range map[string]uint64{
		"tcp_user_timeout": 10_000, "tcp_keepalives_idle": 10, "tcp_keepalives_interval": 5, "tcp_keepalives_count": 3,
		"idle_session_timeout": 0, "statement_timeout": 5000, "lock_timeout": 0,
	} {
		// The listener asks for the origin in its own session.
		l, _ := start(t, Config{URL: url, OriginSQL: fmt.Sprintf("select setting::bigint from pg_settings where name = '%s'", name)})
		if got := ensure(t, l, "a").Origin; got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
}
