package sqlitebacklog

import "context"

// lanes bound how many reads of each kind run at a time. Who pages waits for who
// pages, and neither a load, which everybody waits for who subscribes, nor a ping,
// which says whether the store answers, waits for them.
//
// In memory all share the writer's connection, and database/sql gives it to those
// who wait in random order. There each lane lets one through, so that a
// transaction waits for a few reads at most, however many there are.
type lanes struct {
	pages lane // ReadPage, and the janitor's search
	loads lane // Load and ListStreams
	pings lane
}

// loadsAtOnce is how many loads and lists run at a time. The hub combines loads,
// and one connection reads some hundred streams in a few milliseconds.
const loadsAtOnce = 2

func newLanes(cfg *Config) lanes {
	if cfg.inMemory() {
		return lanes{pages: make(lane, 1), loads: make(lane, 1), pings: make(lane, 1)}
	}
	return lanes{pages: make(lane, cfg.ReadConns), loads: make(lane, loadsAtOnce), pings: make(lane, 1)}
}

// conns is how many connections the reads of all lanes need.
func (l *lanes) conns() int { return cap(l.pages) + cap(l.loads) + cap(l.pings) }

// lane has a token for each read that runs. Who waits is let through in the order
// of arrival, as senders on a channel are.
type lane chan struct{}

// enter waits for a place until ctx ends, and then returns its error.
func (l lane) enter(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l lane) leave() { <-l }
