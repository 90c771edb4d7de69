package listener

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/fanfare-io/fanfare/backlog"
)

// transaction is what one announces: durable and ephemeral frames, of which some
// are split.
func transaction() Envelope {
	return Envelope{KeyID: testKey.ID, Origin: 5, PID: 4242, Transaction: 99, Index: 3, Announcements: []backlog.Announcement{
		frame(1, []byte("before"), nil),
		ephemeral(1, bytes.Repeat([]byte("large "), 40_000)),
		ephemeral(1, []byte("small")),
		frame(2, []byte("between"), nil),
		ephemeral(2, bytes.Repeat([]byte{0xff}, 6000)),
		ephemeral(2, bytes.Repeat([]byte{0}, 1<<20)),
		announcement(backlog.AnnounceClosed, 5, 2, func(*backlog.Announcement) {}),
	}}
}

// opened decodes envelopes.
func opened(t testing.TB, payloads []string) []Envelope {
	t.Helper()
	var all []Envelope
	for _, p := range payloads {
		e, err := DecodeEnvelope(p)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

// joinAll gives envelopes to an assembler and returns what it makes of them.
func joinAll(a *assembler, envelopes []Envelope) (announcements []backlog.Announcement, broken int) {
	for _, e := range envelopes {
		broken += a.join(&e, time.Now())
		announcements = append(announcements, e.Announcements...)
	}
	return announcements, broken
}

func TestSplitEntriesAreJoined(t *testing.T) {
	want := transaction()
	payloads := EncodeTransaction(testKey, want)
	for _, p := range payloads {
		if len(p) > maxEnvelopeBytes || !utf8.ValidString(p) {
			t.Fatalf("an envelope of %d bytes, valid UTF-8: %t", len(p), utf8.ValidString(p))
		}
	}
	envelopes := opened(t, payloads)
	for i, e := range envelopes {
		if e.Index != want.Index+uint64(i) || len(e.Parts) > 1 || len(e.Parts) == 1 && len(e.Announcements) > 0 {
			t.Fatalf("envelope %d: index %d, %d parts, %d announcements", i, e.Index, len(e.Parts), len(e.Announcements))
		}
	}
	if first := envelopes[1].Parts[0]; first.ID != envelopes[1].Index || first.Number != 1 {
		t.Fatalf("the first part is %d of entry %d", first.Number, first.ID)
	}
	a := newAssembler()
	got, broken := joinAll(a, envelopes)
	if broken != 0 || a.text.Cap() != 0 || !reflect.DeepEqual(got, want.Announcements) {
		t.Fatalf("%d broken, %d bytes held, %d announcements", broken, a.text.Cap(), len(got))
	}
}

// No character is cut, wherever the parts end.
func TestSplitBetweenCharacters(t *testing.T) {
	const text = "E\tgrüße\t世界\t🎺\tend"
	for size := utf8.UTFMax; size <= len(text)+1; size++ {
		var joined strings.Builder
		for _, p := range split(text, 1, size) {
			if len(p.Chunk) > size || p.Chunk == "" || !utf8.ValidString(p.Chunk) {
				t.Fatalf("chunk %q for %d bytes", p.Chunk, size)
			}
			joined.WriteString(p.Chunk)
		}
		if joined.String() != text {
			t.Fatalf("joined %q", joined.String())
		}
	}
}

// Whatever is not a whole entry is dropped and counted once, nothing of it is
// held, and what comes around it is announced.
func TestBrokenSplits(t *testing.T) {
	text := encodeEntry(ephemeral(1, []byte("broken")))
	part := func(transaction, id uint64, number, of uint32, chunk string) Envelope {
		return Envelope{Origin: 5, PID: 1, Transaction: transaction, Parts: []Part{{ID: id, Number: number, Of: of, Chunk: chunk}}}
	}
	durable := Envelope{Origin: 5, PID: 1, Transaction: 7, Announcements: []backlog.Announcement{frame(1, nil, nil)}}
	within := part(7, 1, 2, 2, text[9:])
	within.Announcements, within.Parts[0].Place = []backlog.Announcement{frame(1, nil, nil)}, 1
	otherProcess := part(7, 1, 2, 2, text[9:])
	otherProcess.PID = 2
	half := strings.Repeat("x", maxSplitBytes/2)
	for name, test := range map[string]struct {
		envelopes []Envelope
		broken    int
		announced int
	}{
		"first part missing":    {[]Envelope{part(7, 1, 2, 4, "b"), part(7, 1, 3, 4, "c"), part(7, 1, 4, 4, "d")}, 1, 0},
		"part missing":          {[]Envelope{part(7, 1, 1, 4, "a"), part(7, 1, 3, 4, "c"), part(7, 1, 4, 4, "d")}, 1, 0},
		"last part missing":     {[]Envelope{part(7, 1, 1, 2, text[:9])}, 1, 0},
		"order":                 {[]Envelope{part(7, 1, 2, 2, text[9:]), part(7, 1, 1, 2, text[:9])}, 2, 0},
		"part twice":            {[]Envelope{part(7, 1, 1, 3, "a"), part(7, 1, 2, 3, "b"), part(7, 1, 2, 3, "b"), part(7, 1, 3, 3, "c")}, 1, 0},
		"another number":        {[]Envelope{part(7, 1, 1, 2, text[:9]), part(7, 1, 2, 3, text[9:])}, 1, 0},
		"another entry":         {[]Envelope{part(7, 1, 1, 2, "a"), part(7, 2, 1, 1, text), part(7, 1, 2, 2, "b")}, 2, 1},
		"another entry's part":  {[]Envelope{part(7, 1, 1, 2, text[:9]), part(7, 2, 2, 2, text[9:])}, 2, 0},
		"another transaction's": {[]Envelope{part(7, 1, 1, 2, text[:9]), part(8, 1, 2, 2, text[9:])}, 2, 0},
		"another process's":     {[]Envelope{part(7, 1, 1, 2, text[:9]), otherProcess}, 2, 0},
		"frame between":         {[]Envelope{part(7, 1, 1, 2, text[:9]), durable, part(7, 1, 2, 2, text[9:])}, 1, 1},
		"frame before the part": {[]Envelope{part(7, 1, 1, 2, text[:9]), within}, 1, 1},
		"empty envelope":        {[]Envelope{part(7, 1, 1, 2, text[:9]), {}, part(7, 1, 2, 2, text[9:])}, 1, 0},
		"too much": {[]Envelope{part(7, 1, 1, 4, half), part(7, 1, 2, 4, half), part(7, 1, 3, 4, "x"),
			part(7, 1, 4, 4, half)}, 1, 0},
		"no entry":       {[]Envelope{part(7, 1, 1, 1, "E\tx")}, 1, 0},
		"empty":          {[]Envelope{part(7, 1, 1, 1, "")}, 1, 0},
		"split again":    {[]Envelope{part(7, 1, 1, 1, "S\t9\t1\t1\tx")}, 1, 0},
		"durable":        {[]Envelope{part(7, 1, 1, 1, encodeEntry(frame(1, nil, nil)))}, 0, 1},
		"whole":          {[]Envelope{part(7, 1, 1, 2, text[:9]), part(7, 1, 2, 2, text[9:])}, 0, 1},
		"in one":         {[]Envelope{{Origin: 5, Parts: []Part{{ID: 1, Number: 1, Of: 2, Chunk: text[:9]}, {ID: 1, Number: 2, Of: 2, Chunk: text[9:]}}}}, 0, 1},
		"a hint between": {[]Envelope{part(7, 1, 1, 2, text[:9]), {Origin: 5, PID: 1, Transaction: 7, Hint: true, Parts: []Part{{ID: 1, Number: 2, Of: 2, Chunk: text[9:]}}}}, 0, 1},
	} {
		a := newAssembler()
		got, broken := joinAll(a, test.envelopes)
		whole := transaction()
		after, more := joinAll(a, opened(t, EncodeTransaction(testKey, whole)))
		if broken+more != test.broken || len(got) != test.announced {
			t.Errorf("%s: %d broken, want %d; %d announced, want %d", name, broken+more, test.broken, len(got), test.announced)
		}
		if !reflect.DeepEqual(after, whole.Announcements) || a.text.Cap() != 0 {
			t.Errorf("%s: %d announced after it, %d bytes held", name, len(after), a.text.Cap())
		}
	}
}

// A reassembled entry of a kind that is not known is skipped like any other.
func TestSplitEntryOfUnknownKind(t *testing.T) {
	e := Envelope{Parts: []Part{{ID: 1, Number: 1, Of: 1, Chunk: "Z\tx"}}}
	if broken := newAssembler().join(&e, time.Now()); broken != 0 || e.Skipped != 1 {
		t.Fatalf("%d broken, %d skipped", broken, e.Skipped)
	}
}

// Any frame comes out as it went in.
func FuzzSplit(f *testing.F) {
	f.Add("c", "s", "text", "event", "k", "v", bytes.Repeat([]byte("x"), 9000), uint64(3), uint64(8), int64(99))
	f.Add("grüße", "", "", "", "🎺", strings.Repeat("世\t\n\"", 2000), []byte{}, uint64(1)<<62, uint64(0), int64(-1))
	f.Fuzz(func(t *testing.T, channel, scope, contentType, eventType, header, value string, payload []byte, epoch, sequence uint64, micros int64) {
		p := backlog.Publication{
			Stream: backlog.StreamName{Channel: channel, Scope: scope}, Ephemeral: true, Payload: payload,
			ContentType: contentType, EventType: eventType, Headers: map[string]string{header: value},
		}
		if p.Validate(0) != nil {
			return
		}
		want := backlog.Announcement{Kind: backlog.AnnounceEphemeral, Stream: p.Stream, OwnEpoch: epoch >> 1, Origin: 5, Frame: backlog.Frame{
			Position:  backlog.Position{Epoch: epoch>>1 ^ 7, Sequence: sequence >> 1},
			Ephemeral: true, ContentType: contentType, EventType: eventType, Headers: p.Headers, Payload: payload,
			Created: time.UnixMicro(micros).UTC(),
		}}
		around := frame(1, []byte("around"), nil)
		e := Envelope{Origin: 5, PID: 1<<32 - 1, Transaction: 1<<64 - 1, Index: 1 << 63, Announcements: []backlog.Announcement{around, want, want, around}}
		payloads := EncodeTransaction(Key{ID: 1<<63 - 1}, e)
		for _, p := range payloads {
			if len(p) > maxEnvelopeBytes || !utf8.ValidString(p) {
				t.Fatalf("an envelope of %d bytes, valid UTF-8: %t", len(p), utf8.ValidString(p))
			}
		}
		got, broken := joinAll(newAssembler(), opened(t, payloads))
		if broken != 0 || !reflect.DeepEqual(got, e.Announcements) {
			t.Fatalf("%d broken, announced\n%+v, want\n%+v", broken, got, e.Announcements)
		}
	})
}

// Parts of several entries, in any order, doubled and lost: nothing is announced
// that was not split, and every entry of which anything came is announced or
// counted.
func FuzzAssembler(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})
	f.Add([]byte{0, 1, 3, 4, 5, 8, 7, 6, 12, 0, 1, 2, 13})
	const entries, parts = 4, 3
	var pool []Envelope
	var originals []backlog.Announcement
	for i := range uint64(entries) {
		a := ephemeral(i, []byte("payload"))
		originals = append(originals, a)
		for _, p := range split(encodeEntry(a), i, len(encodeEntry(a))/parts+1) {
			pool = append(pool, Envelope{Origin: 5, PID: 1, Transaction: 1 + i/2, Parts: []Part{p}})
		}
	}
	if len(pool) != entries*parts {
		f.Fatalf("%d parts", len(pool))
	}
	pool = append(pool, Envelope{Origin: 5, Announcements: []backlog.Announcement{frame(1, nil, nil)}}, Envelope{Hint: true})
	f.Fuzz(func(t *testing.T, order []byte) {
		a := newAssembler()
		begun, announced := map[int]bool{}, map[int]bool{}
		broken := 0
		for _, b := range order {
			i := int(b) % len(pool)
			e := pool[i]
			begun[i/parts] = true
			broken += a.join(&e, time.Now())
			for _, got := range e.Announcements {
				n := int(got.Frame.Position.Sequence)
				if got.Kind == backlog.AnnounceEphemeral {
					announced[n] = true
					if !reflect.DeepEqual(got, originals[n]) {
						t.Fatalf("announced %+v", got)
					}
				}
			}
		}
		broken += a.interrupt()
		lost := 0
		for i := range entries {
			if begun[i] && !announced[i] {
				lost++
			}
		}
		if broken < lost || a.text.Cap() != 0 {
			t.Fatalf("%d lost, %d counted, %d bytes held", lost, broken, a.text.Cap())
		}
	})
}
