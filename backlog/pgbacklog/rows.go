package pgbacklog

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// row is one that a reading statement returned. Its values are decoded here where
// they are of the expected type and binary, as those of prepared statements are: pgx
// takes an indirect call and mostly an allocation for each, which for the rows of a
// replay is more work than PostgreSQL has with them. All others, such as those in text
// form (default_query_exec_mode), pgx decodes.
//
// What cannot be decoded fails the read; see eachRow.
type row struct {
	types  *pgtype.Map
	fields []pgconn.FieldDescription
	values [][]byte // by column; of the connection's buffer, until the next row
	err    error    // the first

	texts    []string // by column: the last one, which the next row often has, too
	payloads chunks
}

// eachRow calls do with every row, which is overwritten by the next one, and closes
// rows.
func eachRow(rows pgx.Rows, do func(*row)) error {
	defer rows.Close()
	var r row
	for rows.Next() {
		if r.fields == nil {
			r.types, r.fields = rows.Conn().TypeMap(), rows.FieldDescriptions()
			r.texts = make([]string, len(r.fields))
		}
		r.values = rows.RawValues()
		if do(&r); r.err != nil {
			return r.err
		}
	}
	return rows.Err()
}

// isNull reports whether a column has no value.
func (r *row) isNull(column int) bool { return r.values[column] == nil }

// number returns a bigint, 0 for null.
func (r *row) number(column int) int64 {
	raw := r.values[column]
	switch {
	case raw == nil:
		return 0
	case r.isBinary(column, pgtype.Int8OID) && len(raw) == 8:
		return int64(binary.BigEndian.Uint64(raw))
	default:
		return scanned[int64](r, column)
	}
}

// text returns a text, "" for null.
func (r *row) text(column int) string {
	// In both formats a text is its bytes.
	if raw := r.values[column]; r.texts[column] != string(raw) {
		r.texts[column] = string(raw)
	}
	return r.texts[column]
}

// payload returns a bytea, which may share an allocation with those of other rows.
func (r *row) payload(column int) []byte {
	if r.isBinary(column, pgtype.ByteaOID) {
		return r.payloads.copyOf(r.values[column])
	}
	return scanned[[]byte](r, column)
}

// microsecondsOf2000 is when the binary form of a timestamptz begins.
const microsecondsOf2000 = 946_684_800_000_000

// time returns a timestamptz in UTC.
func (r *row) time(column int) time.Time {
	if raw := r.values[column]; r.isBinary(column, pgtype.TimestamptzOID) && len(raw) == 8 {
		return time.UnixMicro(int64(binary.BigEndian.Uint64(raw)) + microsecondsOf2000).UTC()
	}
	return scanned[time.Time](r, column).UTC()
}

// jsonbVersion precedes the text of a jsonb in its binary form, and begins no JSON.
const jsonbVersion = 1

// headers returns a frame's headers, nil for null.
func (r *row) headers(column int) map[string]string {
	raw := r.values[column]
	if raw == nil {
		return nil
	}
	if r.isBinary(column, pgtype.JSONBOID) && len(raw) > 0 && raw[0] == jsonbVersion {
		raw = raw[1:]
	}
	var headers map[string]string
	if err := json.Unmarshal(raw, &headers); err != nil {
		r.fail(column, err)
	}
	return headers
}

// numbers appends the elements of a bigint[] to list.
func (r *row) numbers(column int, list []pgtype.Int8) []pgtype.Int8 {
	raw := r.values[column]
	if !r.isBinary(column, pgtype.Int8ArrayOID) {
		return append(list, scanned[[]pgtype.Int8](r, column)...)
	}
	list, ok := appendNumbers(list, raw)
	if !ok {
		r.fail(column, errors.New("is no list of bigint"))
	}
	return list
}

// appendNumbers decodes the binary form of a bigint[] of one dimension: how many
// dimensions there are, flags, the type of the elements, and of a dimension how many
// they are and the first one's index; then the length and the value of each, where
// the length of a null is -1. All are of 4 bytes, but for the values. Without elements
// there is no dimension.
func appendNumbers(list []pgtype.Int8, raw []byte) ([]pgtype.Int8, bool) {
	const dimensions, count, elements = 0, 12, 20
	if len(raw) < count {
		return list, false
	}
	switch binary.BigEndian.Uint32(raw[dimensions:]) {
	case 0:
		return list, true
	case 1:
	default:
		return list, false
	}
	if len(raw) < elements {
		return list, false
	}
	n := binary.BigEndian.Uint32(raw[count:])
	raw = raw[elements:]
	for range n {
		if len(raw) < 4 {
			return list, false
		}
		length := int32(binary.BigEndian.Uint32(raw))
		raw = raw[4:]
		switch {
		case length == -1:
			list = append(list, pgtype.Int8{})
		case length == 8 && len(raw) >= 8:
			list = append(list, pgtype.Int8{Int64: int64(binary.BigEndian.Uint64(raw)), Valid: true})
			raw = raw[8:]
		default:
			return list, false
		}
	}
	return list, len(raw) == 0
}

func (r *row) isBinary(column int, oid uint32) bool {
	f := &r.fields[column]
	return f.Format == pgx.BinaryFormatCode && f.DataTypeOID == oid
}

// scanned has pgx decode a value.
func scanned[T any](r *row, column int) (value T) {
	f := &r.fields[column]
	if err := r.types.Scan(f.DataTypeOID, f.Format, r.values[column], &value); err != nil {
		r.fail(column, err)
	}
	return value
}

func (r *row) fail(column int, err error) {
	if r.err == nil {
		r.err = fmt.Errorf("column %s of the answer: %w", r.fields[column].Name, err)
	}
}

// chunks are allocations that several byte slices share, each as large as the last two
// up to maxChunk. Whoever keeps one of the slices keeps a chunk.
type chunks struct {
	free []byte
	size int
}

const minChunk, maxChunk = 1 << 10, 32 << 10

// copyOf returns a copy, which is not nil.
func (c *chunks) copyOf(b []byte) []byte {
	n := len(b)
	if n > maxChunk/8 {
		return bytes.Clone(b)
	}
	if n > len(c.free) || c.free == nil {
		c.size = min(max(2*c.size, minChunk, n), maxChunk)
		c.free = make([]byte, c.size)
	}
	copied := c.free[:n:n]
	c.free = c.free[n:]
	copy(copied, b)
	return copied
}
