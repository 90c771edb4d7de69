package service

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/fanfare-io/fanfare/backlog"
)

// invalidText stands in a decoded message for a text that was not UTF-8. Every
// text of a request is refused with U+0000 in it, so that a client which sends
// these very bytes is refused as well.
const invalidText = "\x00invalid UTF-8"

// markInvalidText returns a copy of an encoded message in which every string
// that is not UTF-8 is replaced by invalidText, and whether there was one. Bytes
// that are no message of that type are not changed.
func markInvalidText(b []byte, message protoreflect.MessageDescriptor) (marked []byte, found bool) {
	out := make([]byte, 0, len(b))
	for len(b) > 0 {
		number, wireType, tagLength := protowire.ConsumeTag(b)
		if tagLength < 0 {
			return nil, false
		}
		valueLength := protowire.ConsumeFieldValue(number, wireType, b[tagLength:])
		if valueLength < 0 {
			return nil, false
		}
		record := b[:tagLength+valueLength]
		b = b[tagLength+valueLength:]
		field := message.Fields().ByNumber(number)
		if field == nil || wireType != protowire.BytesType {
			out = append(out, record...)
			continue
		}
		value, _ := protowire.ConsumeBytes(record[tagLength:])
		value, replaced := markInvalidField(value, field)
		if !replaced {
			out = append(out, record...)
			continue
		}
		found = true
		out = protowire.AppendTag(out, number, wireType)
		out = protowire.AppendBytes(out, value)
	}
	return out, found
}

func markInvalidField(value []byte, field protoreflect.FieldDescriptor) ([]byte, bool) {
	switch field.Kind() {
	case protoreflect.StringKind:
		if utf8.Valid(value) {
			return nil, false
		}
		return []byte(invalidText), true
	case protoreflect.MessageKind:
		return markInvalidText(value, field.Message())
	default:
		return nil, false
	}
}

// text is a string of a request with its field's name.
type text struct{ field, value string }

// checkText refuses what markInvalidText has marked.
func checkText(texts ...text) error {
	for _, t := range texts {
		if t.value == invalidText {
			return &backlog.LimitError{Field: t.field, Message: "is not valid UTF-8"}
		}
	}
	return nil
}
