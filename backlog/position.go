package backlog

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxPositionValue is the largest epoch or sequence: both fit a signed 64-bit
// integer, the largest that PostgreSQL's bigint and Java's long hold.
const MaxPositionValue = 1<<63 - 1

// Position is a place in a stream. As a starting point it is exclusive:
// delivery begins with the frame after it.
//
// The zero value, 0-0, is the position before the first frame of a stream that
// has never existed.
type Position struct {
	// Epoch is the stream's own epoch XOR the origin of the frame at Sequence.
	Epoch uint64
	// Sequence is the number of the frame in its stream, from 1; 0 stands before
	// the first frame.
	Sequence uint64
}

// IsZero reports whether p is 0-0.
func (p Position) IsZero() bool { return p == Position{} }

// String returns the text form EPOCH-SEQUENCE, both decimal.
func (p Position) String() string {
	b := make([]byte, 0, 40)
	b = strconv.AppendUint(b, p.Epoch, 10)
	b = append(b, '-')
	return string(strconv.AppendUint(b, p.Sequence, 10))
}

// ParsePosition reads the text form EPOCH-SEQUENCE: two decimal numbers below
// 2^63 without sign, spaces or leading zeros. It accepts exactly what
// [Position.String] writes, so a damaged position is refused instead of being
// read as another one.
func ParsePosition(s string) (Position, error) {
	epoch, sequence, found := strings.Cut(s, "-")
	if !found {
		return Position{}, positionError(s)
	}
	var p Position
	var ok bool
	if p.Epoch, ok = parseDecimal(epoch); !ok {
		return Position{}, positionError(s)
	}
	if p.Sequence, ok = parseDecimal(sequence); !ok {
		return Position{}, positionError(s)
	}
	return p, nil
}

func positionError(s string) error {
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return fmt.Errorf("position %q is not EPOCH-SEQUENCE, two decimal numbers below 2^63 without leading zeros", s)
}

func parseDecimal(s string) (uint64, bool) {
	if s == "" || len(s) > 19 || (len(s) > 1 && s[0] == '0') {
		return 0, false
	}
	var n uint64
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + uint64(s[i]-'0')
	}
	return n, n <= MaxPositionValue
}
