package pgbacklog

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// POSTGRES.md 13, symptom: a publish failed, or was rolled back, because of the
// length of its notification. Cause: PostgreSQL refuses payloads of 8,000 bytes
// and more, and an envelope is longer than what it carries: base64, names, types,
// headers. Lengths go byte by byte over where a frame no longer fits. It then
// becomes a pointer, never an error.
func TestAnnouncementsAtTheLimit(t *testing.T) {
	t.Parallel()
	url := newSchema(t)
	s, admin, listener := startPublisher(t, url), pgtest.Dial(t, url), pgtest.Dial(t, url)
	pgtest.Exec(t, admin, `update fanfare.settings set inline_bytes = 8000`)
	pgtest.Exec(t, listener, "listen "+s.NotifyChannel())
	long := strings.Repeat("é|", 85) // 255 bytes
	for name, frame := range map[string]backlog.Publication{
		"plain":   {Stream: backlog.StreamName{Channel: "c"}},
		"names":   {Stream: backlog.StreamName{Channel: long, Scope: long}, ContentType: long, EventType: long},
		"headers": {Stream: backlog.StreamName{Channel: "h"}, Headers: map[string]string{"ü": strings.Repeat("\"", 1000)}},
	} {
		var whole, pointers, longest int
		for _, n := range aroundTheLimit(frame) {
			frame.Payload = make([]byte, n)
			mustPublish(t, s, frame)
			for _, payload := range notifications(t, listener, 1) {
				longest = max(longest, len(payload))
				if pointer := strings.Contains(payload, "\nP\t"); pointer {
					pointers++
				} else if whole++; pointers > 0 {
					t.Errorf("%s: a payload of %d bytes is inline, a shorter one was not", name, n)
				}
			}
		}
		if whole == 0 || pointers == 0 || longest > 7999 || longest < 7500 {
			t.Errorf("%s: %d frames inline, %d pointers, the longest notification has %d bytes", name, whole, pointers, longest)
		}
	}
}

// aroundTheLimit returns the lengths of payloads around where the frame becomes
// a pointer.
func aroundTheLimit(p backlog.Publication) (lengths []int) {
	room := 7600 - len(p.Stream.Channel) - len(p.Stream.Scope) - len(p.ContentType) - len(p.EventType)
	for k, v := range p.Headers {
		room -= len(k) + len(v) + strings.Count(v, `"`)
	}
	for n := room*3/4 - 30; n < room*3/4+20; n++ {
		lengths = append(lengths, n)
	}
	return lengths
}

// The same with many frames to an envelope, of all lengths: each is announced
// once, in order, and no envelope is too long.
func TestManyAnnouncementsToAnEnvelope(t *testing.T) {
	t.Parallel()
	url := newSchema(t)
	s, listener := startPublisher(t, url), pgtest.Dial(t, url)
	pgtest.Exec(t, listener, "listen "+s.NotifyChannel())
	const frames = 900
	var batch []backlog.Publication
	for i := range frames {
		p := publication("s", strings.Repeat("x", i*37%5000))
		batch = append(batch, p)
	}
	if _, err := s.PublishBatch(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	next := 1
	all := notifications(t, listener, frames)
	for _, payload := range all {
		if len(payload) > 7999 {
			t.Errorf("a notification of %d bytes", len(payload))
		}
		for _, entry := range strings.Split(payload, "\n")[1:] {
			if got := strings.Split(entry, "\t")[4]; got != fmt.Sprint(next) {
				t.Fatalf("sequence %s is announced where %d is due", got, next)
			}
			next++
		}
	}
	if len(all) >= frames {
		t.Errorf("%d notifications for %d frames", len(all), frames)
	}
}

// notifications waits for notifications with that many entries and returns their
// payloads.
func notifications(t *testing.T, listener *pgx.Conn, entries int) (payloads []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for entries > 0 {
		n, err := listener.WaitForNotification(ctx)
		if err != nil {
			t.Fatalf("%d announcements are missing: %v", entries, err)
		}
		payloads = append(payloads, n.Payload)
		entries -= strings.Count(n.Payload, "\n")
	}
	return payloads
}
