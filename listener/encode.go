package listener

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/fanfare-io/fanfare/backlog"
)

const (
	// maxEnvelopeBytes is the longest payload that PostgreSQL notifies.
	maxEnvelopeBytes = 7999
	// maxChunkBytes leaves room for the longest header of an envelope and of a part.
	maxChunkBytes = 7500
)

// EncodeEnvelope writes the text form of an envelope, signed with key; e.KeyID
// and e.Skipped are ignored. The database's functions do the same in SQL; this
// is for tests. It panics on headers that are not JSON, which cannot be.
func EncodeEnvelope(key Key, e Envelope) string {
	var entries []string
	parts := e.Parts
	for i := 0; i <= len(e.Announcements); i++ {
		for len(parts) > 0 && parts[0].Place <= i {
			entries = append(entries, encodePart(parts[0]))
			parts = parts[1:]
		}
		if i < len(e.Announcements) {
			entries = append(entries, encodeEntry(e.Announcements[i]))
		}
	}
	if e.Hint {
		entries = append(entries, "H")
	}
	return seal(key, &e, entries)
}

// EncodeTransaction writes what a transaction announces as the envelopes that it
// notifies, none longer than PostgreSQL allows: announcements that do not fit are
// split. The first envelope has e.Index; e.KeyID, e.Parts and e.Skipped are
// ignored. The database's functions do the same in SQL; this is for tests.
func EncodeTransaction(key Key, e Envelope) []string {
	var envelopes, entries []string
	flush := func() {
		if len(entries) > 0 {
			envelopes = append(envelopes, seal(key, &e, entries))
			e.Index++
			entries = nil
		}
	}
	add := func(entry string) {
		if len(seal(key, &e, append(entries[:len(entries):len(entries)], entry))) > maxEnvelopeBytes {
			flush()
		}
		entries = append(entries, entry)
	}
	for _, a := range e.Announcements {
		entry := encodeEntry(a)
		if len(seal(key, &e, []string{entry})) <= maxEnvelopeBytes {
			add(entry)
			continue
		}
		flush()
		for _, p := range split(entry, e.Index, maxChunkBytes) {
			entries = []string{encodePart(p)}
			flush()
		}
	}
	if e.Hint {
		add("H")
	}
	flush()
	return envelopes
}

// seal signs an envelope of encoded entries.
func seal(key Key, e *Envelope, entries []string) string {
	prefix := version + strconv.FormatInt(key.ID, 10) + "\t"
	var rest strings.Builder
	fmt.Fprintf(&rest, "%d\t%d\t%d\t%d", e.Origin, e.PID, e.Transaction, e.Index)
	for _, entry := range entries {
		rest.WriteByte('\n')
		rest.WriteString(entry)
	}
	return prefix + newSigner(key.Secret).digest(prefix, rest.String()) + "\t" + rest.String()
}

// split cuts an entry into parts of at most maxBytes, between characters.
func split(entry string, id uint64, maxBytes int) []Part {
	var parts []Part
	for entry != "" {
		end := min(maxBytes, len(entry))
		for end < len(entry) && !utf8.RuneStart(entry[end]) {
			end--
		}
		parts = append(parts, Part{ID: id, Number: uint32(len(parts) + 1), Chunk: entry[:end]})
		entry = entry[end:]
	}
	for i := range parts {
		parts[i].Of = uint32(len(parts))
	}
	return parts
}

func encodePart(p Part) string {
	return fmt.Sprintf("S\t%d\t%d\t%d\t%s", p.ID, p.Number, p.Of, p.Chunk)
}

func encodeEntry(a backlog.Announcement) string {
	where := fmt.Sprintf("\t%s\t%s\t%d\t%d\t", a.Stream.Channel, a.Stream.Scope, a.OwnEpoch, a.Frame.Position.Sequence)
	switch a.Kind {
	case backlog.AnnouncePointer:
		return "P" + where + a.RowID
	case backlog.AnnounceClosed:
		return "C" + where + strconv.FormatUint(a.Origin, 10)
	case backlog.AnnounceEphemeral:
		headOrigin := strconv.FormatUint(a.OwnEpoch^a.Frame.Position.Epoch, 10)
		return "E" + where + headOrigin + "\t" + encodeContent(&a.Frame)
	default:
		return "D" + where + encodeContent(&a.Frame)
	}
}

func encodeContent(f *backlog.Frame) string {
	headers := ""
	if f.Headers != nil {
		b, err := json.Marshal(f.Headers)
		if err != nil {
			panic(err)
		}
		headers = string(b)
	}
	return strings.Join([]string{
		strconv.FormatInt(f.Created.UnixMicro(), 10), f.ContentType, f.EventType, headers,
		base64.StdEncoding.EncodeToString(f.Payload),
	}, "\t")
}
