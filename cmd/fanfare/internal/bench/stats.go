package bench

import (
	"slices"
	"time"
)

// Spread describes measurements of one thing.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	// Q1 and Q3 are the quartiles: half of the measurements are between them.
	Q1 float64 `json:"q1"`
	Q3 float64 `json:"q3"`
}

// spreadOf describes at least one measurement.
func spreadOf(values []float64) Spread {
	sorted := slices.Sorted(slices.Values(values))
	return Spread{
		Median: Quantile(sorted, 0.5),
		Min:    sorted[0],
		Max:    sorted[len(sorted)-1],
		Q1:     Quantile(sorted, 0.25),
		Q3:     Quantile(sorted, 0.75),
	}
}

// Quantile returns the value below which the share q of the sorted values is,
// interpolated between two of them. There must be one.
func Quantile[T float64 | time.Duration](sorted []T, q float64) T {
	at := q * float64(len(sorted)-1)
	below := int(at)
	if below == len(sorted)-1 {
		return sorted[below]
	}
	return sorted[below] + T((at-float64(below))*float64(sorted[below+1]-sorted[below]))
}

// ratios divides each measurement by the reference's of the same round.
func ratios(values, references []float64) []float64 {
	divided := make([]float64, len(values))
	for i, value := range values {
		divided[i] = value / references[i]
	}
	return divided
}
