package main

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"testing"
)

// readLines reads all lines with readLine.
func readLines(t testing.TB, input []byte, bufferBytes int) [][]byte {
	t.Helper()
	r := bufio.NewReaderSize(bytes.NewReader(input), bufferBytes)
	var lines [][]byte
	for {
		line, err := readLine(r)
		if err == io.EOF {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		if line == nil {
			t.Fatal("a line is nil, which would end the input")
		}
		lines = append(lines, line)
	}
}

func TestReadLine(t *testing.T) {
	long := strings.Repeat("x", 100)
	for _, c := range []struct {
		input string
		want  []string
	}{
		{"", nil},
		{"\n", []string{""}},
		{"\n\n", []string{"", ""}},
		{"a", []string{"a"}},
		{"a\n", []string{"a"}},
		{"a\r\nb\r", []string{"a\r", "b\r"}},
		{"a\n\nb\n", []string{"a", "", "b"}},
		{"\x00\xff\n", []string{"\x00\xff"}},
		{long + "\n" + long, []string{long, long}},
	} {
		var got []string
		for _, line := range readLines(t, []byte(c.input), 16) {
			got = append(got, string(line))
		}
		if strings.Join(got, "|") != strings.Join(c.want, "|") || len(got) != len(c.want) {
			t.Errorf("lines of %q are %q, want %q", c.input, got, c.want)
		}
	}
}

func TestReadLineTooLong(t *testing.T) {
	r := bufio.NewReader(io.LimitReader(endless{}, 2*maxMessageBytes))
	if _, err := readLine(r); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a line without end: %v", err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// Lines joined with line feeds are the input, but for a last line feed.
func FuzzReadLine(f *testing.F) {
	for _, seed := range []string{"", "\n", "a\r\n\nb", "0123456789abcdef\n0123456789abcdef0"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		joined := bytes.Join(readLines(t, input, 16), []byte("\n"))
		if !bytes.Equal(joined, bytes.TrimSuffix(input, []byte("\n"))) {
			t.Errorf("lines of %q joined are %q", input, joined)
		}
	})
}
