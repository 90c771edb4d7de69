package pgbacklog

import (
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// publishShort publishes in one transaction of the short way, and returns the
// results by payload.
func publishShort(t *testing.T, s *Store, publications ...backlog.Publication) map[string]result {
	t.Helper()
	var items []*item
	for _, p := range publications {
		items = append(items, newItem(p, nil))
	}
	conn, err := s.committer.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	results, err := s.committer.publishBatched(t.Context(), conn, items)
	if err != nil {
		t.Fatal(err)
	}
	if s.committer.pinIsolation.Load() {
		t.Error("the short way was left")
	}
	by := make(map[string]result)
	for i, r := range results {
		by[string(publications[i].Payload)] = r
	}
	return by
}

// A batch of which some streams are as simple as can be, some are new, and the others
// are held, being created, closed or at their last sequence: each frame gets what it
// would get alone, in the order of its stream, and what is announced is what is stored.
func TestShortWayOfStreamsInEveryState(t *testing.T) {
	t.Parallel()
	url := newSchema(t)
	s, foreign, admin := startPublisher(t, url), pgtest.Dial(t, url), pgtest.Dial(t, url)
	for _, scope := range []string{"plain", "held", "closed", "full"} {
		mustPublish(t, s, publication(scope, "0"))
	}
	if err := closeStream(t.Context(), s, "closed"); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, admin, `update fanfare.streams set head = $1, floor = $1, stored_bytes = 0 where scope = 'full'`, int64(math.MaxInt64-1))
	hold(t, foreign, "held", "creating")
	conn := listen(t, s, url)

	large := publication("plain", "large"+strings.Repeat("x", 5000))
	headed := publication("new", "new 1")
	headed.ContentType, headed.EventType, headed.Headers = "text/plain", "e", map[string]string{"k": "\t\n\"é"}
	got := publishShort(t, s,
		publication("plain", "plain 1"), publication("full", "full 1"), headed, publication("held", "held 1"), large,
		publication("closed", "closed 1"), publication("creating", "creating 1"), publication("full", "full 2"),
		publication("plain", "plain 2"), publication("closed", "closed 2"), publication("new", "new 2"), publication("held", "held 2"))
	const last = math.MaxInt64
	want := map[string]struct {
		status   int16
		sequence uint64
	}{
		"plain 1": {statusStored, 2}, string(large.Payload): {statusStored, 3}, "plain 2": {statusStored, 4},
		"new 1": {statusStored, 1}, "new 2": {statusStored, 2},
		"closed 1": {statusStored, 1}, "closed 2": {statusStored, 2},
		"held 1": {statusBusy, 0}, "held 2": {statusBusy, 0}, "creating 1": {statusBusy, 0},
		"full 1": {statusStored, last}, "full 2": {statusExhausted, 0},
	}
	for payload, w := range want {
		if r := got[payload]; r.status != w.status || r.position.Sequence != w.sequence || (r.position.Epoch != 0) != (w.sequence != 0) {
			t.Errorf("%.10s: status %d at %v, want status %d at sequence %d", payload, r.status, r.position, w.status, w.sequence)
		}
	}

	const stored = 8
	for _, a := range announced(t, conn, stored) {
		f := a.Frame
		if a.Kind == backlog.AnnouncePointer {
			id := pgtest.Query[string](t, admin, `select f.id::text from fanfare.channel_frames f join fanfare.streams s using (stream_id) where s.scope = $1 and f.sequence = $2`,
				a.Stream.Scope, int64(f.Position.Sequence))
			if a.RowID != id || f.Position != got[string(large.Payload)].position {
				t.Errorf("announced was the row %s at %v, the large frame is %s at %v", a.RowID, f.Position, id, got[string(large.Payload)].position)
			}
			continue
		}
		if r := got[string(f.Payload)]; f.Position != r.position || r.status != statusStored {
			t.Errorf("%q was announced at %v, the caller got %+v", f.Payload, f.Position, r)
		}
		if string(f.Payload) == "new 1" && (f.ContentType != headed.ContentType || f.EventType != headed.EventType || !maps.Equal(f.Headers, headed.Headers)) {
			t.Errorf("announced was %+v", f)
		}
	}
	wantStreamRows(t, admin)
}

// wantStreamRows checks that what streams remember of their frames is true.
func wantStreamRows(t *testing.T, admin *pgx.Conn) {
	t.Helper()
	wrong := pgtest.Query[string](t, admin, `
		select coalesce(string_agg(concat_ws(' ', s.scope, s.head, s.stored_bytes, f.head, f.bytes), '; '), '')
		  from fanfare.streams s
		  left join lateral (select max(f.sequence) as head, sum(f.size) as bytes, count(*) from fanfare.channel_frames f
		                      where f.stream_id = s.stream_id and f.sequence > s.floor) f on true
		 where (s.head, s.stored_bytes, s.head - s.floor) is distinct from (f.head, f.bytes, f.count)
		    or s.head_origin <> (select origin from fanfare.announcing)`)
	if wrong != "" {
		t.Errorf("streams remember other frames than they have: %s", wrong)
	}
}

// The same for a frame alone.
func TestShortWayOfOneFrame(t *testing.T) {
	t.Parallel()
	url := newSchema(t)
	s, foreign, admin := startPublisher(t, url), pgtest.Dial(t, url), pgtest.Dial(t, url)
	for _, scope := range []string{"plain", "held", "closed"} {
		mustPublish(t, s, publication(scope, "0"))
	}
	if err := closeStream(t.Context(), s, "closed"); err != nil {
		t.Fatal(err)
	}
	hold(t, foreign, "held", "creating")
	conn := listen(t, s, url)
	for _, c := range []struct {
		scope    string
		payload  string
		status   int16
		sequence uint64
	}{
		{"plain", "1", statusStored, 2},
		{"plain", strings.Repeat("x", 5000), statusStored, 3},
		{"new", "1", statusStored, 1},
		{"closed", "1", statusStored, 1},
		{"held", "1", statusBusy, 0},
		{"creating", "1", statusBusy, 0},
	} {
		r := publishShort(t, s, publication(c.scope, c.payload))[c.payload]
		if r.status != c.status || r.position.Sequence != c.sequence {
			t.Errorf("%s: status %d at %v, want status %d at sequence %d", c.scope, r.status, r.position, c.status, c.sequence)
		}
		if c.status != statusStored {
			continue
		}
		if a := announced(t, conn, 1)[0]; a.Stream.Scope != c.scope || a.Frame.Position != r.position || (a.RowID != "") != (len(c.payload) > 4096) {
			t.Errorf("%s: announced was %v at %v, row %q; the caller got %v", c.scope, a.Stream, a.Frame.Position, a.RowID, r.position)
		}
	}
	wantStreamRows(t, admin)
}

// Every 64 frames of a stream its publisher deletes what is beyond its bounds, on
// the short way too.
func TestShortWayTrims(t *testing.T) {
	t.Parallel()
	url := newSchema(t)
	s, admin := startPublisher(t, url), pgtest.Dial(t, url)
	pgtest.Exec(t, admin, `update fanfare.settings set grace = '0'; select fanfare.set_policy('c', backlog => 10)`)
	for _, many := range []bool{false, true} {
		scope := fmt.Sprint("many ", many)
		mustPublish(t, s, publication(scope, "0"))
		pgtest.Exec(t, admin, `update fanfare.streams set head = 62 where scope = $1`, scope)
		pgtest.Exec(t, admin, `insert into fanfare.channel_frames select f.stream_id, n, gen_random_uuid(), f.payload, f.size, f.content_type, f.event_type, f.headers, f.origin, f.created
			from fanfare.streams s join fanfare.channel_frames f using (stream_id), generate_series(2, 62) n where s.scope = $1`, scope)
		publications := []backlog.Publication{publication(scope, "63"), publication(scope, "64")}
		if many {
			publishShort(t, s, publications...)
		} else {
			publishShort(t, s, publications[0])
			publishShort(t, s, publications[1])
		}
		if floor := pgtest.Query[int64](t, admin, `select floor from fanfare.streams where scope = $1`, scope); floor != 54 {
			t.Errorf("%s: the floor is %d, want 54", scope, floor)
		}
	}
}

// Symptom it would have: announcements under a key that was removed, which every
// replica refuses, or inline although that was forbidden. What announcements need is
// kept in one row, which follows the tables that it is from, within their
// transactions.
func TestAnnouncingFollowsItsSources(t *testing.T) {
	t.Parallel()
	url := newSchema(t)
	s, admin, listener := startPublisher(t, url), pgtest.Dial(t, url), pgtest.Dial(t, url)
	pgtest.Exec(t, listener, "listen "+s.NotifyChannel())
	publish := func(what, prefix, kind string) {
		t.Helper()
		publishShort(t, s, publication("s", "one"))
		publishShort(t, s, publication("s", "a"), publication("t", "b"))
		pgtest.Exec(t, admin, `select fanfare.publish('c', 's', 'sql')`)
		for _, payload := range notifications(t, listener, 4) {
			if !strings.HasPrefix(payload, prefix) || !strings.Contains(payload, "\n"+kind+"\tc\t") {
				t.Errorf("%s: %.12q… was notified, want %q and entries %s", what, payload, prefix, kind)
			}
		}
	}
	publish("at first", "F1\t1\t", "D")
	pgtest.Exec(t, admin, `update fanfare.settings set inline_bytes = 0`)
	publish("without inline content", "F1\t1\t", "P")
	pgtest.Exec(t, admin, `update fanfare.settings set inline_bytes = 4096`)
	pgtest.Exec(t, admin, `insert into fanfare.announcement_keys (key, inner_pad, outer_pad) select key, inner_pad, outer_pad from fanfare.announcement_keys`)
	publish("with a second key", "F1\t2\t", "D")
	pgtest.Exec(t, admin, `delete from fanfare.announcement_keys where key_id = 2`)
	publish("with the first key again", "F1\t1\t", "D")
	pgtest.Exec(t, admin, `begin; update fanfare.settings set inline_bytes = 0; rollback`)
	publish("after a rollback", "F1\t1\t", "D")
}
