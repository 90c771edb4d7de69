package backlog

import "testing"

// Rows that somebody deleted are a hole, wherever they were: the frames after the last
// hole are kept, and the position before them is that of no row. At the beginning
// nothing but the position tells of the hole.
func TestKeepContiguous(t *testing.T) {
	head := Position{Epoch: 7, Sequence: 9}
	before := Position{Epoch: 7, Sequence: 4}
	for _, tt := range []struct {
		name   string
		stored []uint64 // of those after 4
		first  uint64   // 10: none
		before Position
	}{
		{"nothing missing", []uint64{5, 6, 7, 8, 9}, 5, before},
		{"the oldest missing", []uint64{7, 8, 9}, 7, Position{Sequence: 6}},
		{"one in between missing", []uint64{5, 6, 8, 9}, 8, Position{Sequence: 7}},
		{"the oldest and one in between missing", []uint64{6, 8, 9}, 8, Position{Sequence: 7}},
		{"the newest missing", []uint64{5, 6, 7, 8}, 10, head},
		{"all missing", nil, 10, head},
	} {
		l := Loaded{State: StreamState{Head: head}, Before: before}
		for _, sequence := range tt.stored {
			l.Frames = append(l.Frames, Frame{Position: Position{Epoch: 7, Sequence: sequence}})
		}
		l.KeepContiguous()
		if n := uint64(len(l.Frames)); n != head.Sequence+1-tt.first || (n > 0 && l.Frames[0].Position.Sequence != tt.first) || l.Before != tt.before {
			t.Errorf("%s: %d frames after %v: %v", tt.name, n, l.Before, l.Frames)
		}
	}
}
