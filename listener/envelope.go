package listener

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// Errors of reading an envelope.
var (
	// ErrUnreadable: the payload is no envelope.
	ErrUnreadable = errors.New("the notification is not a readable envelope")
	// ErrUnknownVersion: the payload is an envelope of a version that this program
	// does not know; there may be a newer replica.
	ErrUnknownVersion = errors.New("the envelope has an unknown version")
)

// version begins every envelope of this version.
const version = "F1\t"

// Envelope is the content of one NOTIFY. Its text form, whose fields are
// separated by TAB, is a line
//
//	F1 KEYID DIGEST ORIGIN PID TRANSACTION INDEX
//
// and then, each after a LF, its entries
//
//	D CHANNEL SCOPE OWNEPOCH SEQUENCE MICROSECONDS CONTENTTYPE EVENTTYPE HEADERS PAYLOAD
//	P CHANNEL SCOPE OWNEPOCH SEQUENCE ROWID
//	C CHANNEL SCOPE OWNEPOCH SEQUENCE HEADORIGIN
//	E CHANNEL SCOPE OWNEPOCH SEQUENCE HEADORIGIN MICROSECONDS CONTENTTYPE EVENTTYPE HEADERS PAYLOAD
//	H
//	S ID PART PARTS CHUNK
//
// for a durable frame, a pointer to one, a close, an ephemeral frame, a hint: a
// policy was changed, and a part of an entry that is too large for an envelope. Of
// an ephemeral frame the sequence and the head's origin are of the durable frame
// that it follows. Numbers are decimal, the digest is hexadecimal, headers are a
// JSON object or empty, a payload is base64. Names and types have no control
// characters, so nothing is escaped. Fields may be added at the end of a line,
// except after a chunk, which may contain TABs. See [Part] for how parts are put
// together.
type Envelope struct {
	// KeyID names the key of the digest.
	KeyID int64
	// Origin is that of the server that notified.
	Origin uint64
	// PID and Transaction are the server process and its transaction.
	PID         uint32
	Transaction uint64
	// Index numbers the envelopes of the transaction, from 1.
	Index uint64
	// Announcements are in the order of commit.
	Announcements []backlog.Announcement
	// Hint is true if something has changed that is read rather than announced: the
	// bounds of streams.
	Hint bool
	// Parts of entries that are too large for an envelope, in order.
	Parts []Part
	// Skipped counts entries of a kind that this program does not know.
	Skipped int
	// Unheard counts announcements that were not read, since nobody hears their
	// streams.
	Unheard int
}

// Part is a part of an entry that is split over consecutive envelopes of one
// transaction, one part in each. The chunks one after another are the entry's
// text.
type Part struct {
	// Place is how many announcements of the envelope come before the part.
	Place int
	// ID is of all parts of an entry, and of no other entry of the transaction: the
	// index of the envelope with the first part.
	ID uint64
	// Number is from 1 to Of.
	Number, Of uint32
	// Chunk is of the text, and does not cut a character.
	Chunk string
}

// DecodeEnvelope reads an envelope's text form. It does not check who wrote it:
// see [Authenticator]. Errors are ErrUnknownVersion and ErrUnreadable. Nothing in
// the result refers to payload's memory.
func DecodeEnvelope(payload string) (Envelope, error) {
	h, err := parseHeader(payload)
	if err != nil {
		return Envelope{}, err
	}
	return h.open(nil)
}

// header is an envelope whose entries have not been read.
type header struct {
	Envelope

	digest  string
	prefix  string // signed, before the digest
	rest    string // signed, after the digest
	entries string // with a leading LF, or empty
}

func parseHeader(payload string) (header, error) {
	if !strings.HasPrefix(payload, version) {
		return header{}, versionError(payload)
	}
	id, after, found := strings.Cut(payload[len(version):], "\t")
	if !found {
		return header{}, ErrUnreadable
	}
	h := header{prefix: payload[:len(version)+len(id)+1]}
	if h.digest, h.rest, found = strings.Cut(after, "\t"); !found {
		return header{}, ErrUnreadable
	}
	line := h.rest
	if i := strings.IndexByte(line, '\n'); i >= 0 {
		line, h.entries = line[:i], line[i:]
	}
	var fields [4]string
	for i := range fields {
		if fields[i], line, found = strings.Cut(line, "\t"); !found && i < len(fields)-1 {
			return header{}, ErrUnreadable
		}
	}
	var n numbers
	h.KeyID = int64(n.parse(id, 63))
	h.Origin = n.parse(fields[0], 63)
	h.PID = uint32(n.parse(fields[1], 32))
	h.Transaction = n.parse(fields[2], 64)
	h.Index = n.parse(fields[3], 64)
	if n.failed {
		return header{}, ErrUnreadable
	}
	return h, nil
}

// versionError tells another version from garbage.
func versionError(payload string) error {
	tag, _, found := strings.Cut(payload, "\t")
	if found && len(tag) > 1 && len(tag) <= 6 && tag[0] == 'F' {
		var n numbers
		if n.parse(tag[1:], 32); !n.failed {
			return ErrUnknownVersion
		}
	}
	return ErrUnreadable
}

// open reads the entries; if hears is not nil, only those about streams that are
// heard, which are found by their names before anything else is read.
func (h *header) open(hears func(backlog.StreamName) bool) (Envelope, error) {
	e := h.Envelope
	for rest, entry := h.entries, ""; rest != ""; {
		entry, rest = rest[1:], ""
		if i := strings.IndexByte(entry, '\n'); i >= 0 {
			entry, rest = entry[:i], entry[i:]
		}
		if hears != nil {
			if stream, ok := streamOf(entry); ok && !hears(stream) {
				e.Unheard++
				continue
			}
		}
		if e.Announcements == nil {
			e.Announcements = make([]backlog.Announcement, 0, 1+strings.Count(rest, "\n"))
		}
		if err := e.read(entry); err != nil {
			return Envelope{}, err
		}
	}
	return e, nil
}

// streamOf returns the stream that an entry is about; ok is false if it is about none,
// or of a kind that is not known. Nothing is copied.
func streamOf(entry string) (stream backlog.StreamName, ok bool) {
	if len(entry) < 2 || entry[1] != '\t' || strings.IndexByte("DPCE", entry[0]) < 0 {
		return stream, false
	}
	var rest string
	if stream.Channel, rest, ok = strings.Cut(entry[2:], "\t"); !ok {
		return stream, false
	}
	stream.Scope, _, ok = strings.Cut(rest, "\t")
	return stream, ok
}

// read reads an entry and adds what it says.
func (e *Envelope) read(entry string) error {
	switch kindOf(entry) {
	case "H":
		e.Hint = true
		return nil
	case "S":
		p, err := parsePart(entry)
		p.Place = len(e.Announcements)
		e.Parts = append(e.Parts, p)
		return err
	}
	a, err := parseEntry(entry, e.Origin)
	switch {
	case errors.Is(err, errUnknownKind):
		e.Skipped++
	case err != nil:
		return err
	default:
		e.Announcements = append(e.Announcements, a)
	}
	return nil
}

var errUnknownKind = errors.New("unknown kind of entry")

func kindOf(entry string) string {
	kind, _, _ := strings.Cut(entry, "\t")
	return kind
}

// parseEntry reads an entry about a stream. Strings of the result share one copy of the entry
// without its payload: a frame that is kept must not keep its envelope.
func parseEntry(entry string, origin uint64) (backlog.Announcement, error) {
	switch kind := kindOf(entry); kind {
	case "D":
		return parseFrame(entry, origin)
	case "E":
		return parseEphemeral(entry, origin)
	case "P", "C":
		fields := strings.Split(strings.Clone(entry), "\t")
		if len(fields) < 6 {
			return backlog.Announcement{}, ErrUnreadable
		}
		if kind == "P" {
			return parseWhere(backlog.AnnouncePointer, fields, origin, fields[5])
		}
		var n numbers
		headOrigin := n.parse(fields[5], 63)
		if n.failed {
			return backlog.Announcement{}, ErrUnreadable
		}
		return parseWhere(backlog.AnnounceClosed, fields, headOrigin, "")
	}
	return backlog.Announcement{}, errUnknownKind
}

// parseWhere reads what all kinds of entries begin with.
func parseWhere(kind backlog.AnnouncementKind, fields []string, origin uint64, rowID string) (backlog.Announcement, error) {
	a := backlog.Announcement{
		Kind:   kind,
		Stream: backlog.StreamName{Channel: fields[1], Scope: fields[2]},
		Origin: origin,
		RowID:  rowID,
	}
	var n numbers
	a.OwnEpoch = n.parse(fields[3], 63)
	a.Frame.Position = backlog.Position{Epoch: a.OwnEpoch ^ origin, Sequence: n.parse(fields[4], 63)}
	if n.failed || a.Stream.Validate() != nil {
		return backlog.Announcement{}, ErrUnreadable
	}
	return a, nil
}

func parseFrame(entry string, origin uint64) (backlog.Announcement, error) {
	var room [fieldsBeforePayload]string
	fields, payload, err := cutPayload(entry, room[:fieldsBeforePayload-1])
	if err != nil {
		return backlog.Announcement{}, err
	}
	a, err := parseWhere(backlog.AnnounceFrame, fields, origin, "")
	if err != nil {
		return a, err
	}
	return a, parseContent(&a.Frame, fields[5:], payload)
}

func parseEphemeral(entry string, origin uint64) (backlog.Announcement, error) {
	var room [fieldsBeforePayload]string
	fields, payload, err := cutPayload(entry, room[:])
	if err != nil {
		return backlog.Announcement{}, err
	}
	a, err := parseWhere(backlog.AnnounceEphemeral, fields, origin, "")
	if err != nil {
		return a, err
	}
	var n numbers
	a.Frame.Position.Epoch = a.OwnEpoch ^ n.parse(fields[5], 63)
	if n.failed {
		return backlog.Announcement{}, ErrUnreadable
	}
	a.Frame.Ephemeral = true
	return a, parseContent(&a.Frame, fields[6:], payload)
}

// fieldsBeforePayload is how many an ephemeral frame has; a durable one has one less.
const fieldsBeforePayload = 10

// cutPayload fills fields with those before the payload, and returns them and the
// payload, which is not copied. The fields' array is the caller's, so that it may be
// on the stack: this runs for every frame of the schema.
func cutPayload(entry string, fields []string) (_ []string, payload string, err error) {
	end := 0
	for range fields {
		i := strings.IndexByte(entry[end:], '\t')
		if i < 0 {
			return nil, "", ErrUnreadable
		}
		end += i + 1
	}
	payload, _, _ = strings.Cut(entry[end:], "\t")
	rest := strings.Clone(entry[:end])
	for i := range fields {
		fields[i], rest, _ = strings.Cut(rest, "\t")
	}
	return fields, payload, nil
}

// parseContent reads what a frame has besides its place; fields begin with the
// time.
func parseContent(f *backlog.Frame, fields []string, payload string) error {
	micros, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return ErrUnreadable
	}
	f.Created = time.UnixMicro(micros).UTC()
	f.ContentType, f.EventType = fields[1], fields[2]
	if fields[3] != "" {
		if err := json.Unmarshal([]byte(fields[3]), &f.Headers); err != nil {
			return ErrUnreadable
		}
	}
	if f.Payload, err = decodeBase64(payload); err != nil {
		return ErrUnreadable
	}
	return nil
}

func parsePart(entry string) (Part, error) {
	fields := strings.SplitN(entry, "\t", 5)
	if len(fields) < 5 {
		return Part{}, ErrUnreadable
	}
	var n numbers
	p := Part{
		ID:     n.parse(fields[1], 64),
		Number: uint32(n.parse(fields[2], 32)),
		Of:     uint32(n.parse(fields[3], 32)),
		Chunk:  fields[4],
	}
	if n.failed || p.Number < 1 || p.Number > p.Of {
		return Part{}, ErrUnreadable
	}
	return p, nil
}

var strictBase64 = base64.StdEncoding.Strict()

func decodeBase64(s string) ([]byte, error) {
	// The decoder skips CR and LF wherever they stand; a CR is damage.
	if strings.IndexByte(s, '\r') >= 0 {
		return nil, ErrUnreadable
	}
	return strictBase64.DecodeString(s)
}

// numbers parses decimal numbers and remembers whether one failed.
type numbers struct{ failed bool }

func (n *numbers) parse(s string, bits int) uint64 {
	v, err := strconv.ParseUint(s, 10, bits)
	n.failed = n.failed || err != nil
	return v
}
