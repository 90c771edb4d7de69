package main

import (
	"slices"
	"testing"
	"time"
)

func TestQuantilesAreValuesThatWereMeasured(t *testing.T) {
	var took []time.Duration
	for i := 200; i >= 1; i-- {
		took = append(took, time.Duration(i)*time.Microsecond)
	}
	f := newFigures(400, 2*time.Second, took)
	if f.P50 != 100 || f.P99 != 198 || f.Publishes != 400 || f.PerSecond != 200 || f.Seconds != 2 {
		t.Errorf("200 calls of 1 to 200 µs for 400 publishes in 2 s give %+v", f)
	}
	for _, c := range []struct {
		values []time.Duration
		q      float64
		want   time.Duration
	}{{nil, 0.5, 0}, {[]time.Duration{7}, 0.5, 7}, {[]time.Duration{7}, 0.99, 7}, {[]time.Duration{1, 2}, 0, 1}, {[]time.Duration{1, 2, 3}, 0.5, 2}, {[]time.Duration{1, 2, 3}, 1, 3}} {
		if got := quantile(c.values, c.q); got != c.want {
			t.Errorf("quantile %v of %v is %d, want %d", c.q, c.values, got, c.want)
		}
	}
}

// Streams with ids that follow each other would fill the index at its end alone,
// which costs less than what Fanfare's random ids do.
func TestStreamIDsAreSpreadAndNeverTwice(t *testing.T) {
	var ids []int64
	for i := range int64(100_000) {
		ids = append(ids, scatter(i))
	}
	ascending := 0
	for i := 1; i < len(ids); i++ {
		if ids[i] > ids[i-1] {
			ascending++
		}
	}
	if ascending < len(ids)/10 || ascending > len(ids)*9/10 {
		t.Errorf("%d of %d ids are above the one before", ascending, len(ids))
	}
	slices.Sort(ids)
	if ids[0] < 0 || len(slices.Compact(ids)) != 100_000 {
		t.Errorf("ids are given twice or negative")
	}
}

func TestFramesOfAStreamAreNumberedFromOne(t *testing.T) {
	few, fresh := numbers{streams: 3}, numbers{}
	next := map[int64]int64{}
	for range 12 {
		stream, sequence := few.take()
		if next[stream]++; sequence != next[stream] {
			t.Fatalf("frame %d of stream %d has number %d", next[stream], stream, sequence)
		}
		if _, sequence := fresh.take(); sequence != 1 {
			t.Fatalf("the first frame of a new stream has number %d", sequence)
		}
	}
	if len(next) != 3 {
		t.Errorf("%d streams, want 3", len(next))
	}
}
