package main

import (
	"math"
	"slices"
	"time"
)

// figures are what publish and latency print.
type figures struct {
	Publishes int     `json:"publishes"`
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"per_second"`
	// P50 and P99 are of one publish, in microseconds.
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
}

// newFigures sorts took.
func newFigures(publishes int, elapsed time.Duration, took []time.Duration) figures {
	slices.Sort(took)
	return figures{
		Publishes: publishes,
		Seconds:   elapsed.Seconds(),
		PerSecond: float64(publishes) / elapsed.Seconds(),
		P50:       microseconds(quantile(took, 0.5)),
		P99:       microseconds(quantile(took, 0.99)),
	}
}

// quantile is the smallest of the sorted values that is at least as large as the
// share q of all; 0 of none.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
