package pgbacklog

import (
	"errors"
	"fmt"
	"testing"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

var failoverStream = backlog.StreamName{Channel: "failover"}

func (s *testStore) publishPayloads(t *testing.T, payloads ...string) []backlog.Position {
	t.Helper()
	var positions []backlog.Position
	for _, p := range payloads {
		o, err := backlog.Publish(t.Context(), s, backlog.Publication{Stream: failoverStream, Payload: []byte(p)})
		if err != nil {
			t.Fatal(err)
		}
		positions = append(positions, o.Position)
	}
	return positions
}

func (s *testStore) loadAll(t *testing.T, verify ...uint64) (backlog.Loaded, uint64) {
	t.Helper()
	request := backlog.LoadRequest{Stream: failoverStream, MaxFrames: 100, MaxBytes: 1000, Verify: verify}
	result, err := s.Load(t.Context(), 0, []backlog.LoadRequest{request})
	if err != nil {
		t.Fatal(err)
	}
	return result.Streams[0], result.Origin
}

func wantPage(t *testing.T, s *testStore, after backlog.Position, want ...string) {
	t.Helper()
	page, err := s.ReadPage(t.Context(), 0, backlog.PageRequest{Stream: failoverStream, After: after, MaxFrames: 100, MaxBytes: 1000})
	if err != nil {
		t.Errorf("page after %s: %v", after, err)
		return
	}
	var got []string
	for _, f := range page.Frames {
		got = append(got, string(f.Payload))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("after %s come %q, want %q", after, got, want)
	}
}

func wantPageError(t *testing.T, s *testStore, after backlog.Position, want error) {
	t.Helper()
	_, err := s.ReadPage(t.Context(), 0, backlog.PageRequest{Stream: failoverStream, After: after, MaxFrames: 100, MaxBytes: 1000})
	if !errors.Is(err, want) {
		t.Errorf("page after %s: %v, want %v", after, err, want)
	}
}

// TestRestartKeepsPositions: rows remember the origin that they were written
// under, so a restart changes nothing for those who hold positions.
func TestRestartKeepsPositions(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	u := server.URL("postgres")
	migrate(t, u, "")
	s := openStoreOn(t, Config{URL: u})
	old := s.publishPayloads(t, "1", "2", "3")
	_, origin := s.loadAll(t)
	for _, mode := range []string{"fast", "immediate"} {
		server.Restart(mode)
		// Connections of the pools were lost with the server.
		eventually(t, "the store answers", func() bool { return s.Ping(t.Context()) == nil && loads(t, s) })
	}

	loaded, now := s.loadAll(t, 1, 2, 3)
	if now == origin {
		t.Fatal("the restarted server has its old origin")
	}
	if fmt.Sprint(loaded.Verified) != fmt.Sprint(old) || loaded.State.Head != old[2] {
		t.Errorf("after the restart positions are %v, the head %s; want %v", loaded.Verified, loaded.State.Head, old)
	}
	_, err := s.Load(t.Context(), origin, nil)
	if !errors.Is(err, backlog.ErrOtherServer) {
		t.Errorf("a load from the server before the restart: %v, want ErrOtherServer", err)
	}
	fresh := s.publishPayloads(t, "4", "5")
	if fresh[0].Sequence != 4 || fresh[0].Epoch == old[2].Epoch {
		t.Errorf("the next position is %s after %s", fresh[0], old[2])
	}
	for i, after := range append(old, fresh...) {
		wantPage(t, s, after, []string{"2", "3", "4", "5"}[i:]...)
	}
	wantPage(t, s, backlog.Position{}, "1", "2", "3", "4", "5")
	// An expectation names the head as a client knows it.
	epoch := fresh[1].Epoch
	_, err = backlog.Publish(t.Context(), s, backlog.Publication{Stream: failoverStream, Expected: &backlog.Expectation{Sequence: 5, Epoch: &epoch}})
	if err != nil {
		t.Error(err)
	}
}

func loads(t *testing.T, s *testStore) bool {
	_, err := s.Load(t.Context(), 0, nil)
	return err == nil
}

// TestLostFramesAreNoticed promotes a standby that lacks the newest frames: their
// sequences are given again, but their positions are not.
func TestLostFramesAreNoticed(t *testing.T) {
	t.Parallel()
	primary := pgtest.Start(t)
	migrate(t, primary.URL("postgres"), "")
	before := openStoreOn(t, Config{URL: primary.URL("postgres")})
	kept := before.publishPayloads(t, "1", "2", "3")
	_, origin := before.loadAll(t)
	standby := primary.Standby()
	u := standby.URL("postgres")
	eventually(t, "the standby has the first frames", func() bool {
		return query[bool](t, u, "select to_regclass('fanfare.streams') is not null") && query[int](t, u, "select coalesce(max(head), 0) from fanfare.streams") == 3
	})
	execute(t, u, "alter system set primary_conninfo = ''")
	execute(t, u, "select pg_reload_conf()")
	eventually(t, "the standby no longer follows", func() bool {
		return query[int](t, u, "select count(*) from pg_stat_wal_receiver") == 0
	})
	lost := before.publishPayloads(t, "lost 4", "lost 5")
	before.stop()
	primary.Stop("immediate")
	execute(t, u, "select pg_promote()")

	after := openStoreOn(t, Config{URL: u})
	if _, now := after.loadAll(t); now == origin {
		t.Fatal("the promoted server has the old one's origin")
	}
	wantPageError(t, after, lost[0], backlog.ErrNumberingGone) // ahead of the head
	again := after.publishPayloads(t, "other 4", "other 5", "6")
	if again[0].Sequence != lost[0].Sequence {
		t.Fatalf("the sequence %d was not given again", lost[0].Sequence)
	}
	loaded, _ := after.loadAll(t, 3, 4, 5)
	if loaded.Verified[0] != kept[2] {
		t.Errorf("position %s of a frame that was kept is now %s", kept[2], loaded.Verified[0])
	}
	for i, p := range lost {
		if loaded.Verified[i+1] == p || loaded.Verified[i+1].Epoch == 0 {
			t.Errorf("position %s of a lost frame is now %s", p, loaded.Verified[i+1])
		}
		wantPageError(t, after, p, backlog.ErrNumberingGone)
	}
	wantPage(t, after, kept[2], "other 4", "other 5", "6")
}

// TestRestoredCopyIsNoticed undoes the newest frames, as a restored snapshot of
// the disk does; on such a server everything else is as it was.
func TestRestoredCopyIsNoticed(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	u := server.URL("postgres")
	migrate(t, u, "")
	before := openStoreOn(t, Config{URL: u})
	p := before.publishPayloads(t, "1", "2", "lost 3")
	before.stop()
	execute(t, u, "delete from fanfare.channel_frames where sequence = 3")
	execute(t, u, "update fanfare.streams set head = 2")
	server.Restart("fast")
	after := openStoreOn(t, Config{URL: u})
	again := after.publishPayloads(t, "other 3")
	if again[0].Sequence != 3 || again[0] == p[2] {
		t.Errorf("the position %s was given as %s", p[2], again[0])
	}
	wantPageError(t, after, p[2], backlog.ErrNumberingGone)
	wantPage(t, after, p[1], "other 3")
}

// TestOtherServerResetsPools: connections that lead to a server which has been
// replaced are given up when a read shows it.
func TestOtherServerResetsPools(t *testing.T) {
	t.Parallel()
	first, second := pgtest.Start(t), pgtest.Start(t)
	for _, server := range []*pgtest.Server{first, second} {
		migrate(t, server.URL("postgres"), "")
	}
	proxy := pgtest.Proxy(t, first.URL("postgres"))
	s := openStoreOn(t, Config{URL: proxy.URL(first.URL("postgres"))})
	_, old := s.loadAll(t)
	direct := openStoreOn(t, Config{URL: second.URL("postgres")})
	_, wanted := direct.loadAll(t)
	if _, err := s.ReadPage(t.Context(), old, backlog.PageRequest{Stream: failoverStream}); err != nil {
		t.Fatal(err)
	}

	proxy.SetTarget(t, second.URL("postgres")) // for new connections
	_, err := s.Load(t.Context(), wanted, nil)
	if !errors.Is(err, backlog.ErrOtherServer) {
		t.Errorf("a load on an old connection: %v, want ErrOtherServer", err)
	}
	if result, err := s.Load(t.Context(), wanted, nil); err != nil || result.Origin != wanted {
		t.Errorf("the next load: %d, %v", result.Origin, err)
	}
	if _, err := s.ReadPage(t.Context(), wanted, backlog.PageRequest{Stream: failoverStream}); err != nil {
		t.Errorf("the next page: %v", err)
	}
	direct.publishPayloads(t, "on the second")
	o := s.publishPayloads(t, "on the second, too")
	if o[0].Sequence != 2 {
		t.Errorf("the publish after the reset was numbered %d, want 2", o[0].Sequence)
	}
}

// TestStandbyIsAnotherServer: a standby has its primary's data, but what it shows
// may be old.
func TestStandbyIsAnotherServer(t *testing.T) {
	t.Parallel()
	primary := pgtest.Start(t)
	migrate(t, primary.URL("postgres"), "")
	standby := primary.Standby()
	proxy := pgtest.Proxy(t, primary.URL("postgres"))
	s := openStoreOn(t, Config{URL: proxy.URL(primary.URL("postgres"))})
	proxy.SetTarget(t, standby.URL("postgres"))
	s.loading.Reset()
	s.paging.Reset()
	if _, err := s.Load(t.Context(), 0, nil); !errors.Is(err, backlog.ErrOtherServer) {
		t.Errorf("a load from a standby: %v, want ErrOtherServer", err)
	}
	if _, err := s.ReadPage(t.Context(), 0, backlog.PageRequest{Stream: failoverStream}); !errors.Is(err, backlog.ErrOtherServer) {
		t.Errorf("a page from a standby: %v, want ErrOtherServer", err)
	}
	if err := s.Ping(t.Context()); !errors.Is(err, backlog.ErrUnavailable) {
		t.Errorf("a ping of a standby: %v, want ErrUnavailable", err)
	}
}
