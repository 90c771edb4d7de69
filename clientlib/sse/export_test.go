package sse

import "github.com/fanfare-io/fanfare/clientlib"

// FrameBlock is a frame as an event stream has it, in either format.
func FrameBlock(s clientlib.Stream, f *clientlib.Frame, json bool) []byte {
	as := plain
	if json {
		as = wrapped
	}
	var id []byte
	if !f.Ephemeral {
		id = appendID(nil, []clientlib.Position{f.Position})
	}
	return append(id, frameBlock(s, f, as)...)
}
