package listener

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

var testKey = Key{ID: 12, Secret: []byte("0123456789abcdef0123456789abcdef")}

func frame(sequence uint64, payload []byte, headers map[string]string) backlog.Announcement {
	return announcement(backlog.AnnounceFrame, 5, sequence, func(a *backlog.Announcement) {
		a.Frame.ContentType, a.Frame.EventType, a.Frame.Headers, a.Frame.Payload = "text/plain", "greeting", headers, payload
		a.Frame.Created = time.UnixMicro(1796000000123456).UTC()
	})
}

func announcement(kind backlog.AnnouncementKind, origin, sequence uint64, change func(*backlog.Announcement)) backlog.Announcement {
	a := backlog.Announcement{
		Kind:     kind,
		Stream:   backlog.StreamName{Channel: "chat/messages", Scope: "räum 1"},
		OwnEpoch: 1<<62 + 3,
		Origin:   origin,
	}
	a.Frame.Position = backlog.Position{Epoch: a.OwnEpoch ^ origin, Sequence: sequence}
	change(&a)
	return a
}

// ephemeral is an announcement by origin 5 of a frame that follows one of origin 7.
func ephemeral(sequence uint64, payload []byte) backlog.Announcement {
	return announcement(backlog.AnnounceEphemeral, 5, sequence, func(a *backlog.Announcement) {
		a.Frame.Position.Epoch = a.OwnEpoch ^ 7
		a.Frame.Ephemeral = true
		a.Frame.ContentType, a.Frame.EventType, a.Frame.Payload = "text/plain", "grüße", payload
		a.Frame.Headers = map[string]string{"a": "tab\t line\n quote\" ü"}
		a.Frame.Created = time.UnixMicro(1796000000123456).UTC()
	})
}

// sample has every kind of entry; its origin is 5, that of the closed stream's
// head 9.
func sample() Envelope {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return Envelope{
		KeyID: testKey.ID, Origin: 5, PID: 4242, Transaction: 1 << 40, Index: 1,
		Announcements: []backlog.Announcement{
			frame(1, all, map[string]string{"a": "tab\t line\n quote\" ü", "b": ""}),
			frame(2, []byte{}, nil),
			announcement(backlog.AnnouncePointer, 5, 3, func(a *backlog.Announcement) {
				a.RowID = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
				a.Stream.Scope = ""
			}),
			announcement(backlog.AnnounceClosed, 9, 3, func(*backlog.Announcement) {}),
			ephemeral(0, all),
		},
		Parts: []Part{
			{Place: 0, ID: 1<<64 - 1, Number: 1, Of: 1<<32 - 1, Chunk: "E\tä\t\t"},
			{Place: 3, ID: 1, Number: 7, Of: 7},
			{Place: 5, ID: 2, Number: 1, Of: 2, Chunk: "x"},
		},
		Hint: true,
	}
}

func TestEnvelopeRoundTrip(t *testing.T) {
	want := sample()
	got, err := DecodeEnvelope(EncodeEnvelope(testKey, want))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("decoded\n%+v, want\n%+v", got, want)
	}
}

func TestEnvelopeText(t *testing.T) {
	e := Envelope{KeyID: 1, Origin: 2, PID: 3, Transaction: 4, Index: 1, Announcements: []backlog.Announcement{
		announcement(backlog.AnnounceFrame, 2, 8, func(a *backlog.Announcement) {
			a.Frame.Created = time.UnixMicro(99).UTC()
			a.Frame.ContentType, a.Frame.EventType, a.Frame.Headers, a.Frame.Payload = "t", "e", map[string]string{"k": "v"}, []byte("hi")
		}),
		announcement(backlog.AnnounceClosed, 6, 8, func(*backlog.Announcement) {}),
	}}
	// The digest is that of: printf '…' | openssl dgst -sha256 -hmac secret
	want := "F1\t1\t" + newSigner([]byte("secret")).digest("F1\t1\t", "2\t3\t4\t1\nD\tchat/messages\träum 1\t4611686018427387907\t8\t99\tt\te\t{\"k\":\"v\"}\taGk=\nC\tchat/messages\träum 1\t4611686018427387907\t8\t6") +
		"\t2\t3\t4\t1\nD\tchat/messages\träum 1\t4611686018427387907\t8\t99\tt\te\t{\"k\":\"v\"}\taGk=\nC\tchat/messages\träum 1\t4611686018427387907\t8\t6"
	if got := EncodeEnvelope(Key{ID: 1, Secret: []byte("secret")}, e); got != want {
		t.Fatalf("encoded\n%q, want\n%q", got, want)
	}
	// RFC 4231, test case 2.
	if got := newSigner([]byte("Jefe")).digest("what do ya want ", "for nothing?"); got != "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843" {
		t.Fatalf("digest %s", got)
	}
}

func TestEphemeralText(t *testing.T) {
	a := announcement(backlog.AnnounceEphemeral, 2, 8, func(a *backlog.Announcement) {
		a.Frame.Position.Epoch = a.OwnEpoch ^ 6
		a.Frame.Ephemeral, a.Frame.Created = true, time.UnixMicro(99).UTC()
		a.Frame.ContentType, a.Frame.EventType, a.Frame.Headers, a.Frame.Payload = "t", "e", map[string]string{"k": "v"}, []byte("hi")
	})
	e := Envelope{Origin: 2, PID: 3, Transaction: 4, Index: 1, Announcements: []backlog.Announcement{a}, Parts: []Part{{Place: 1, ID: 1, Number: 2, Of: 3, Chunk: "a\tb"}}}
	want := "2\t3\t4\t1\nE\tchat/messages\träum 1\t4611686018427387907\t8\t6\t99\tt\te\t{\"k\":\"v\"}\taGk=\nS\t1\t2\t3\ta\tb"
	if got := EncodeEnvelope(testKey, e); !strings.HasSuffix(got, "\t"+want) {
		t.Fatalf("encoded\n%q, want\n%q", got, want)
	}
}

// The nested sha256() calls of the database's functions give the same digest.
func TestDigestInSQL(t *testing.T) {
	db := pgtest.Dial(t, pgtest.NewDatabase(t))
	pad := func(with byte) []byte {
		p := make([]byte, 64)
		copy(p, testKey.Secret)
		for i := range p {
			p[i] ^= with
		}
		return p
	}
	for _, text := range []string{"", "F1\t12\t", "grüße\nzwei"} {
		got := pgtest.Query[string](t, db, "select encode(sha256($1::bytea || sha256($2::bytea || convert_to($3, 'UTF8'))), 'hex')", pad(0x5c), pad(0x36), text)
		if want := newSigner(testKey.Secret).digest("", text); got != want {
			t.Fatalf("SQL digest %s of %q, want %s", got, text, want)
		}
	}
}

// A newer writer may add fields to lines and kinds of entries.
func TestNewerEntries(t *testing.T) {
	got, err := DecodeEnvelope("F1\t1\tdigest\t2\t3\t4\t1\tnew\nZ\twhat ever\nC\tc\ts\t8\t9\t10\tnew\nD\tc\ts\t8\t9\t99\t\t\t\taGk=\tnew\nH\tnew\nHZ\nE\tc\ts\t8\t9\t7\t99\t\t\t\taGk=\tnew\nP\tc\ts\t8\t9\tid\tnew")
	if err != nil {
		t.Fatal(err)
	}
	if got.Skipped != 2 || !got.Hint || len(got.Announcements) != 4 || string(got.Announcements[1].Frame.Payload) != "hi" ||
		string(got.Announcements[2].Frame.Payload) != "hi" || got.Announcements[3].RowID != "id" {
		t.Fatalf("decoded %+v", got)
	}
}

func TestUnreadableEnvelopes(t *testing.T) {
	head := "F1\t1\tdigest\t2\t3\t4\t1"
	for name, test := range map[string]struct {
		payload string
		want    error
	}{
		"empty":                  {"", ErrUnreadable},
		"text":                   {"hello", ErrUnreadable},
		"JSON":                   {`{"a":1}`, ErrUnreadable},
		"other version":          {"F2\t1\tdigest\t2\t3\t4\t1", ErrUnknownVersion},
		"much later version":     {"F12345\tx", ErrUnknownVersion},
		"no version":             {"F\tx", ErrUnreadable},
		"version without fields": {"F1", ErrUnreadable},
		"no digest":              {"F1\t1\t", ErrUnreadable},
		"short":                  {"F1\t1\td\t2\t3\t4", ErrUnreadable},
		"negative key":           {"F1\t-1\td\t2\t3\t4\t1", ErrUnreadable},
		"origin above 2^63":      {"F1\t1\td\t9223372036854775808\t3\t4\t1", ErrUnreadable},
		"process id above 2^32":  {"F1\t1\td\t2\t4294967296\t4\t1", ErrUnreadable},
		"hexadecimal":            {"F1\t1\td\t0x2\t3\t4\t1", ErrUnreadable},
		"short frame":            {head + "\nD\tc\ts\t8\t9\t99\t\t\t", ErrUnreadable},
		"short pointer":          {head + "\nP\tc\ts\t8\t9", ErrUnreadable},
		"short close":            {head + "\nC\tc\ts\t8\t9", ErrUnreadable},
		"no channel":             {head + "\nC\t\ts\t8\t9\t10", ErrUnreadable},
		"long scope":             {head + "\nC\tc\t" + strings.Repeat("s", 256) + "\t8\t9\t10", ErrUnreadable},
		"invalid UTF-8":          {head + "\nC\t\xff\ts\t8\t9\t10", ErrUnreadable},
		"negative sequence":      {head + "\nC\tc\ts\t8\t-9\t10", ErrUnreadable},
		"huge sequence":          {head + "\nC\tc\ts\t8\t9223372036854775808\t10", ErrUnreadable},
		"huge epoch":             {head + "\nP\tc\ts\t18446744073709551615\t9\tid", ErrUnreadable},
		"bad base64":             {head + "\nD\tc\ts\t8\t9\t99\t\t\t\taGk", ErrUnreadable},
		"base64 with CR":         {head + "\nD\tc\ts\t8\t9\t99\t\t\t\ta\rGk=", ErrUnreadable},
		"bad headers":            {head + "\nD\tc\ts\t8\t9\t99\t\t\t[1]\taGk=", ErrUnreadable},
		"short ephemeral":        {head + "\nE\tc\ts\t8\t9\t7\t99\t\t\taGk=", ErrUnreadable},
		"ephemeral, bad origin":  {head + "\nE\tc\ts\t8\t9\tx\t99\t\t\t\taGk=", ErrUnreadable},
		"ephemeral, huge origin": {head + "\nE\tc\ts\t8\t9\t9223372036854775808\t99\t\t\t\taGk=", ErrUnreadable},
		"ephemeral, bad base64":  {head + "\nE\tc\ts\t8\t9\t7\t99\t\t\t\taGk", ErrUnreadable},
		"ephemeral, bad headers": {head + "\nE\tc\ts\t8\t9\t7\t99\t\t\t{\taGk=", ErrUnreadable},
		"ephemeral, bad time":    {head + "\nE\tc\ts\t8\t9\t7\t\t\t\t\taGk=", ErrUnreadable},
		"ephemeral, no channel":  {head + "\nE\t\ts\t8\t9\t7\t99\t\t\t\taGk=", ErrUnreadable},
		"short part":             {head + "\nS\t1\t1\t2", ErrUnreadable},
		"part 0":                 {head + "\nS\t1\t0\t2\tx", ErrUnreadable},
		"part after the last":    {head + "\nS\t1\t3\t2\tx", ErrUnreadable},
		"too many parts":         {head + "\nS\t1\t1\t4294967296\tx", ErrUnreadable},
		"part without an id":     {head + "\nS\t\t1\t2\tx", ErrUnreadable},
		"bad time":               {head + "\nD\tc\ts\t8\t9\tnow\t\t\t\taGk=", ErrUnreadable},
	} {
		if _, err := DecodeEnvelope(test.payload); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

// A frame that is kept must not keep the 8 kB of its envelope.
func TestDecodedNamesAreCopies(t *testing.T) {
	b := []byte(EncodeEnvelope(testKey, sample()))
	payload := string(b)
	e, err := DecodeEnvelope(payload)
	if err != nil {
		t.Fatal(err)
	}
	within := func(s string) bool {
		for i := 0; i+len(s) <= len(payload) && s != ""; i++ {
			if payload[i:i+len(s)] == s && sameMemory(payload[i:i+len(s)], s) {
				return true
			}
		}
		return false
	}
	for _, a := range e.Announcements {
		for _, s := range []string{a.Stream.Channel, a.Stream.Scope, a.Frame.ContentType, a.Frame.EventType, a.RowID} {
			if within(s) {
				t.Fatalf("%q is part of the envelope's memory", s)
			}
		}
	}
}

func FuzzDecodeEnvelope(f *testing.F) {
	f.Add(EncodeEnvelope(testKey, sample()))
	f.Add("F1\t1\tdigest\t2\t3\t4\t1\nZ\tx\nC\tc\ts\t8\t9\t10\tnew")
	f.Add("F1\t1\tdigest\t2\t3\t4\t1\nH\nH\tx\n")
	f.Add("F1\t1\tdigest\t2\t3\t4\t1\nE\tc\ts\t8\t9\t7\t99\t\t\t{\"k\":\"v\"}\taGk=\nS\t1\t1\t2\tE\tc")
	f.Add("F1\t1\tdigest\t2\t3\t4\t1\nS\t1\t4294967295\t4294967295\t\nS\t0\t1\t1\t")
	f.Add("F2\t")
	f.Add("F1\t0\t\t0\t0\t0\t0\nD\t0\t\t0\t0\t0\t\t\t{}\t")
	f.Fuzz(func(t *testing.T, payload string) {
		e, err := DecodeEnvelope(payload)
		if err != nil {
			if !errors.Is(err, ErrUnreadable) && !errors.Is(err, ErrUnknownVersion) {
				t.Fatalf("unknown error %v", err)
			}
			return
		}
		for _, a := range e.Announcements {
			if a.Stream.Validate() != nil || a.Frame.Position.Epoch > backlog.MaxPositionValue || a.Frame.Position.Sequence > backlog.MaxPositionValue {
				t.Fatalf("accepted %+v", a)
			}
			if strings.ContainsAny(a.Frame.ContentType+a.Frame.EventType+a.RowID, "\t\n") {
				return // cannot be written
			}
		}
		e.Skipped = 0
		again, err := DecodeEnvelope(EncodeEnvelope(Key{ID: e.KeyID}, e))
		if err != nil || len(again.Announcements) != len(e.Announcements) || again.Hint != e.Hint || !slices.Equal(again.Parts, e.Parts) {
			t.Fatalf("written again: %v", err)
		}
		for i := range e.Announcements {
			if again.Announcements[i].Kind != e.Announcements[i].Kind ||
				!reflect.DeepEqual(again.Announcements[i].Frame.Position, e.Announcements[i].Frame.Position) ||
				!reflect.DeepEqual(again.Announcements[i].Frame.Payload, e.Announcements[i].Frame.Payload) {
				t.Fatalf("written again %+v, want %+v", again.Announcements[i], e.Announcements[i])
			}
		}
	})
}
