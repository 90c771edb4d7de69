package main

import (
	"io"
	"log/slog"
)

// newLogger makes the logger that --log-level and --log-format ask for.
func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	options := &slog.HandlerOptions{}
	var threshold slog.Level
	if err := threshold.UnmarshalText([]byte(level)); err != nil {
		return nil, usagef("--log-level %q is not debug, info, warn or error", level)
	}
	options.Level = threshold
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	default:
		return nil, usagef("--log-format %q is not text or json", format)
	}
}
