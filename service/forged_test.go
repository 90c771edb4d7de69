package service_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"github.com/fanfare-io/fanfare/service/servicetest"
	"strconv"
	"strings"
	"testing"
)

// Announcements forged by another role change nothing that a
// subscriber sees. Any role that may connect can NOTIFY.
func TestForgedAnnouncements(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Notifications}, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("forged", "scope")
		mallory := w.sql()
		w.exec(mallory, "listen fanfare_fanfare")
		first := publish(t, w.a, newFrame(s, "first"))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		genuine, err := mallory.WaitForNotification(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var ownEpoch, origin int64
		if err := mallory.QueryRow(ctx, "select epoch, fanfare._origin() from fanfare.streams where channel = 'forged'").Scan(&ownEpoch, &origin); err != nil {
			t.Fatal(err)
		}
		role := fmt.Sprintf("mallory_%d", mallory.PgConn().PID())
		w.exec(mallory, "create role "+role)
		w.exec(mallory, "set session authorization "+role)

		entry := func(kind string, epoch, sequence int64, rest ...string) string {
			fields := append([]string{kind, s.Channel, s.Scope, strconv.FormatInt(epoch, 10), strconv.FormatInt(sequence, 10)}, rest...)
			return strings.Join(fields, "\t")
		}
		frame := func(sequence int64, epoch int64) string {
			return entry("D", epoch, sequence, "1700000000000000", "", "", "", base64.StdEncoding.EncodeToString([]byte("forged")))
		}
		header := strings.Split(strings.SplitN(genuine.Payload, "\n", 2)[0], "\t")
		forge := func(entries ...string) string {
			h := append([]string(nil), header...)
			h[4] = strconv.FormatUint(uint64(mallory.PgConn().PID()), 10) // the sender's own process
			h[5] = "9000000000000000000"                                  // a future transaction
			return strings.Join(append([]string{strings.Join(h, "\t")}, entries...), "\n")
		}
		forgeries := map[string]string{
			"replayed":             genuine.Payload,
			"plausible next frame": forge(frame(2, ownEpoch)),
			"future frame":         forge(frame(1_000_000, ownEpoch)),
			"another epoch":        forge(frame(2, ownEpoch+1)),
			"pointer to no row":    forge(entry("P", ownEpoch, 2, "00000000-0000-0000-0000-000000000000")),
			"close":                forge(entry("C", ownEpoch, 1, strconv.FormatInt(origin, 10))),
			"digest of another":    strings.Replace(genuine.Payload, "first", "forgd", 1) + "\n" + frame(2, ownEpoch),
			"without digest":       strings.Join(append(append([]string(nil), header[:2]...), "", header[3], header[4], header[5], header[6]), "\t") + "\n" + frame(2, ownEpoch),
			"newer version":        "F2\t" + strings.TrimPrefix(genuine.Payload, "F1\t"),
			"negative numbers":     forge(frame(-5, -1)),
			"garbage":              "\x01\x02 not an envelope",
			"a single word":        "hello",
			"empty":                "",
			"long":                 strings.Repeat("F1\t", 2600),
		}
		subscribers := []*reader{subscribe(t, w.a, fromOldest(s)), subscribe(t, w.b, fromOldest(s)), subscribe(t, w.b, after(s, first))}
		for _, r := range subscribers[:2] {
			r.take(1)
		}
		fresh := subscribe(t, w.b, live(stream("forged", "never published")))
		for name, payload := range forgeries {
			for range 3 {
				if _, err := mallory.Exec(ctx, "select pg_notify('fanfare_fanfare', $1)", payload); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
		}
		w.exec(mallory, "reset session authorization")
		w.exec(mallory, "drop role "+role)
		for i := range 3 {
			publish(t, w.a, newFrame(s, fmt.Sprint("genuine ", i)))
		}
		for i, r := range subscribers {
			contiguous(t, append(r.take(3), r.frames...), 2)
			r.untilCaughtUp()
			if len(r.notices) != 1 {
				t.Errorf("subscriber %d was told %v", i, r.notices)
			}
		}
		fresh.silent("genuine", func() { publish(t, w.a, newFrame(stream("forged", "never published"), "genuine")) })
		if forged := w.b.ListenerBus.Stats(); forged.Forged+forged.Replayed+forged.Unreadable+forged.UnknownVersion+forged.UnknownKey == 0 {
			t.Errorf("no forgery was counted: %+v", forged)
		}
	})
}
