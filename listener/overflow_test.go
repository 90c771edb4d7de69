package listener

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Symptom: a transaction with very many notifications overflowed the inbox several
// times within half a second, and each time wrote the same line. They get one line at
// once and then one a second that counts, also beside notifications that are refused,
// whose lines have used up what the others may have.
func TestOverflowsDoNotFloodTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &logBuffer{}
		bus := NewBus(nil, busChannel, (&ring{}).load, slog.New(slog.NewTextHandler(logs, nil)))
		const text = "too many notifications waited"
		overflow := func(n int) {
			for range n {
				bus.passEvent(t.Context(), &sink{}, item{kind: itemOverflow})
			}
		}
		for range 2 * throttleBurst {
			bus.log("refused a notification")
		}
		overflow(5)
		if n := logs.count(text); n != 1 {
			t.Errorf("5 overflows made %d lines", n)
		}
		elapse(time.Second)
		overflow(1)
		lines := logs.lines()
		if last := lines[len(lines)-1]; logs.count(text) != 2 || !strings.Contains(last, text) || !strings.Contains(last, "suppressed=4") {
			t.Errorf("after a second the last line is %s", last)
		}
		if n := bus.Stats().Overflows; n != 6 {
			t.Errorf("%d overflows were counted", n)
		}
	})
}
