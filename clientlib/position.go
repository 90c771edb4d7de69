package clientlib

import (
	"fmt"
	"strconv"
	"strings"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Stream names a stream, the unit of order, replay and close. Names are compared
// byte by byte.
type Stream struct {
	// Channel is what kind of thing is published: 1 to 255 bytes of UTF-8 without
	// control characters.
	Channel string
	// Scope is which one of them; 0 to 255 bytes of UTF-8 without control
	// characters.
	Scope string
}

// String is the channel and the scope, for people.
func (s Stream) String() string {
	if s.Scope == "" {
		return strconv.Quote(s.Channel)
	}
	return strconv.Quote(s.Channel) + " " + strconv.Quote(s.Scope)
}

// Position is a place in a stream. As a starting point it is exclusive: delivery
// begins with the frame after it. The zero value, 0-0, is the place before the
// first frame of a stream that has never existed.
//
// Compare positions for equality only. The epoch also changes, without a loss, from
// one frame to the next when the database server has restarted; a [Gap] tells of
// losses.
type Position struct {
	// Epoch is the identity of one numbering of the stream, below 2^63.
	Epoch uint64
	// Sequence is the frame's number, from 1 without holes, below 2^63; 0 is before
	// the first frame.
	Sequence uint64
}

// IsZero reports whether p is 0-0.
func (p Position) IsZero() bool { return p == Position{} }

// String is the text form EPOCH-SEQUENCE, both decimal.
func (p Position) String() string {
	return strconv.FormatUint(p.Epoch, 10) + "-" + strconv.FormatUint(p.Sequence, 10)
}

// MarshalText is String, for JSON and the like.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is [ParsePosition].
func (p *Position) UnmarshalText(text []byte) error {
	parsed, err := ParsePosition(string(text))
	if err == nil {
		*p = parsed
	}
	return err
}

// ParsePosition reads what [Position.String] writes, and nothing else: a damaged
// position is refused instead of being taken for another one.
func ParsePosition(text string) (Position, error) {
	epoch, sequence, found := strings.Cut(text, "-")
	p := Position{}
	var epochOK, sequenceOK bool
	p.Epoch, epochOK = parseDecimal(epoch)
	p.Sequence, sequenceOK = parseDecimal(sequence)
	if !found || !epochOK || !sequenceOK {
		return Position{}, fmt.Errorf("position %.64q is not EPOCH-SEQUENCE, two decimal numbers below 2^63 without leading zeros", text)
	}
	return p, nil
}

// parseDecimal accepts exactly what FormatUint writes.
func parseDecimal(text string) (uint64, bool) {
	n, err := strconv.ParseUint(text, 10, 63)
	return n, err == nil && strconv.FormatUint(n, 10) == text
}

func (p Position) proto() *fanfarev1.Position {
	return &fanfarev1.Position{Epoch: p.Epoch, Sequence: p.Sequence}
}

// positionOf is 0-0 for nil.
func positionOf(p *fanfarev1.Position) Position {
	return Position{Epoch: p.GetEpoch(), Sequence: p.GetSequence()}
}
