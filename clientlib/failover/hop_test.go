package failover_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/clientlib/failover"
)

// hopRounds is how often the two ways are measured, in turns, with how many frames
// by each; most is how much longer frames may take by the hub than by an own
// connection, at the median of the rounds. Elsewhere things run at the same time in the short form.
func hopRounds() (rounds, frames int, most float64) {
	if inLongForm() {
		return 21, 400, 1.15
	}
	return 3, 30, 4
}

// What the hub costs: how long a frame takes from before its publishing to its
// subscriber, one after the other, by the hub and by a server in the process, on the
// same database. Both listen all the time.
func TestTheHopAddsLittle(t *testing.T) {
	database, path := migrated(t), socketIn(t)
	serveHub(t, database, path)
	ways := [2]*hopWay{
		newHopWay("hub", newWorker(t, path, database)),
		newHopWay("own", newWorker(t, path, database, func(cfg *failover.Config) { cfg.Mode = failover.OwnOnly })),
	}
	rounds, frames, most := hopRounds()
	medianOfEach(ways, frames) // plans, pools and the scheduler get warm
	var hubs, owns []time.Duration
	var ratios []float64
	for range rounds {
		m := medianOfEach(ways, frames)
		hubs, owns = append(hubs, m[0]), append(owns, m[1])
		ratios = append(ratios, float64(m[0])/float64(m[1]))
	}
	slices.Sort(hubs)
	slices.Sort(owns)
	slices.Sort(ratios)
	middle := rounds / 2
	t.Logf("from publish to receive, p50 of %d frames, median of %d rounds: by the hub %s (%s to %s), by an own connection %s (%s to %s); ratio %.3f (quartiles %.3f to %.3f)",
		frames, rounds, hubs[middle], hubs[0], hubs[rounds-1], owns[middle], owns[0], owns[rounds-1],
		ratios[middle], ratios[rounds/4], ratios[rounds*3/4])
	if ratios[middle] > most {
		t.Errorf("the hub takes %.3f times as long, at most %.2f is meant", ratios[middle], most)
	}
	ways[0].worker.mustUseHub()
}

// medianOfEach publishes and receives frames by each way, in turns.
func medianOfEach(ways [2]*hopWay, frames int) (medians [2]time.Duration) {
	var taken [2][]time.Duration
	for n := range frames {
		for i := range ways {
			i = (i + n) % 2
			taken[i] = append(taken[i], ways[i].once())
		}
	}
	for i := range ways {
		slices.Sort(taken[i])
		medians[i] = taken[i][frames/2]
	}
	return medians
}

// hopWay publishes and receives by one way.
type hopWay struct {
	worker *worker
	reader *reader
	sent   int
}

// newHopWay has a worker use a stream of its own.
func newHopWay(scope string, w *worker) *hopWay {
	w.scope = scope
	return &hopWay{worker: w, reader: w.subscribe(nil)}
}

// once publishes a frame and receives it.
func (w *hopWay) once() time.Duration {
	w.worker.t.Helper()
	w.sent++
	payload := fmt.Sprint(w.sent)
	began := time.Now()
	w.worker.publish(payload)
	w.reader.want(payload)
	return time.Since(began)
}

// Symptom: with each message that it received a worker sent a ping, and with each ping woke
// the hub once more. Cause: grpc measures by pings what a network holds, to let its windows
// grow.
func TestMessagesCauseNoPings(t *testing.T) {
	t.Parallel()
	path, database := socketIn(t), migrated(t)
	frames := &frameCounter{Listener: listenAt(t, path)}
	serveOn(t, database, frames)
	w := newWorker(t, path, database)
	r := w.subscribe(nil)
	const messages = 50
	for i := range messages {
		w.publish(fmt.Sprint(i))
		r.want(fmt.Sprint(i))
	}
	w.mustUseHub()
	if n := frames.count(http2Data); n < messages {
		t.Errorf("only %d publishes were counted", n)
	}
	if n := frames.count(http2Ping); n > 5 {
		t.Errorf("%d pings came with %d messages", n, messages)
	}
}
