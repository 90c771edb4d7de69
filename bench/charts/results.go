package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// spread is the median of measurements, their limits and their quartiles.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Q1     float64 `json:"q1"`
	Q3     float64 `json:"q3"`
}

// line is one that fanfare bench --json prints.
type line struct {
	Scenario     string  `json:"scenario"`
	Case         string  `json:"case"`
	What         string  `json:"what"`
	Unit         string  `json:"unit"`
	Values       spread  `json:"values"`
	ComparedWith string  `json:"compared_with"`
	References   *spread `json:"references"`
	Ratio        *spread `json:"ratio"`
	// Target is nil if there is none; of the ratio, or of the value if there is no
	// ratio.
	Target  *float64 `json:"target"`
	AtLeast bool     `json:"at_least"`
	Met     *bool    `json:"met"`
	Rounds  int      `json:"rounds"`
}

// judged is what the target is about.
func (l line) judged() spread {
	if l.Ratio != nil {
		return *l.Ratio
	}
	return l.Values
}

// place is where lines were measured.
type place struct {
	name  string
	lines []line
}

// names are those of places, by the names of their files.
var names = map[string]string{
	"sqlite":               "embedded store",
	"postgresql":           "PostgreSQL",
	"postgresql-slow-disk": "PostgreSQL, slower disk",
}

func readPlaces(paths []string) ([]place, error) {
	var places []place
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
		p := place{name: name}
		if known := names[name]; known != "" {
			p.name = known
		}
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		decoder := json.NewDecoder(f)
		for {
			var l line
			err := decoder.Decode(&l)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			p.lines = append(p.lines, l)
		}
		places = append(places, p)
	}
	return places, nil
}
