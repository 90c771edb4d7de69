package service_test

import (
	"os"
	"testing"
)

// inLongForm reports whether tests have their long form, which measures what the
// short form only exercises, and checks the figures.
func inLongForm() bool { return os.Getenv("FANFARE_LONG") != "" }

// form is the size of something in the short or in the long form of a test.
func form[T any](short, inLong T) T {
	if inLongForm() {
		return inLong
	}
	return short
}

// alongside has a test that mostly waits run beside others that do, in its short
// form.
func alongside(t *testing.T) {
	t.Helper()
	if !inLongForm() {
		t.Parallel()
	}
}
