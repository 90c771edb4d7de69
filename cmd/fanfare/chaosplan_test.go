package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// chaosKind is a kind of fault. docs/reliability.md describes each.
type chaosKind struct {
	name string
	// lasts is how long it takes effect; of faults of a moment it is 0.
	least, most time.Duration
	inject      func(c *chaosRun, f chaosFault) error
	// uses names what nothing else may disturb meanwhile; replicaParts are those of
	// the fault's replica.
	uses, replicaParts []string
}

// What faults use.
const (
	usesServer  = "server"
	usesProcess = "process"
	usesPool    = "pool"
	usesListen  = "listen"
	usesClients = "clients"
)

// chaosFault is one fault of a plan.
type chaosFault struct {
	kind chaosKind
	// at is when it is due, since its round began.
	at      time.Duration
	replica int
	lasts   time.Duration
	// pick chooses among what the fault may hit.
	pick uint64
}

func (f chaosFault) String() string {
	return fmt.Sprintf("%s at %s, replica %d, for %s", f.kind.name, f.at.Round(time.Millisecond), f.replica, f.lasts.Round(time.Millisecond))
}

// chaosRound is a time with every kind of fault, in which faults overlap, and then
// a window with only those that must not concern others.
type chaosRound struct {
	faults    []chaosFault
	isolating []chaosFault
	window    time.Duration
}

const (
	chaosRoundLength = time.Minute
	chaosWindow      = 9 * time.Second
	// chaosQuiet is about how long it takes, after the last fault, until everything
	// is well again.
	chaosQuiet = 6 * time.Second
)

// planChaos is a pure function: the same seed and length give the same faults at
// the same times. One waits, though, while another uses what it needs, and a
// window waits until all is well.
func planChaos(seed uint64, length time.Duration) []chaosRound {
	rng := rand.New(rand.NewPCG(seed, 0))
	rounds := make([]chaosRound, max(1, int(length/chaosRoundLength)))
	each := length / time.Duration(len(rounds))
	for i := range rounds {
		rounds[i] = planRound(rng, max(each-chaosWindow-chaosQuiet, 5*time.Second))
	}
	return rounds
}

// planRound spreads the kinds, each once, in random order over a time.
func planRound(rng *rand.Rand, length time.Duration) chaosRound {
	r := chaosRound{window: chaosWindow}
	kinds := chaosKinds()
	rng.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	for _, kind := range kinds {
		r.faults = append(r.faults, planFault(rng, kind, length))
	}
	slices.SortStableFunc(r.faults, func(a, b chaosFault) int { return int(a.at - b.at) })
	for _, kind := range isolatingKinds() {
		f := planFault(rng, kind, 1)
		f.at, f.lasts = 0, chaosWindow
		r.isolating = append(r.isolating, f)
	}
	return r
}

func planFault(rng *rand.Rand, kind chaosKind, within time.Duration) chaosFault {
	f := chaosFault{kind: kind, replica: rng.IntN(2), pick: rng.Uint64(), at: time.Duration(rng.Int64N(int64(within)))}
	f.lasts = kind.least
	if kind.most > kind.least {
		f.lasts += time.Duration(rng.Int64N(int64(kind.most - kind.least)))
	}
	return f
}

// What a seed means does not depend on anything else, every kind is in every round,
// and in the time it has.
func TestChaosPlan(t *testing.T) {
	text := func(seed uint64, length time.Duration) string { return fmt.Sprint(planChaos(seed, length)) }
	if plan, again := text(5, 10*time.Minute), text(5, 10*time.Minute); plan != again {
		t.Error("one seed has two plans")
	}
	if text(5, time.Minute) == text(6, time.Minute) {
		t.Error("two seeds have one plan")
	}
	rounds := planChaos(5, 10*time.Minute)
	if len(rounds) != 10 {
		t.Errorf("10 minutes have %d rounds", len(rounds))
	}
	for i, r := range rounds {
		planned := map[string]bool{}
		for _, f := range r.faults {
			planned[f.kind.name] = true
			if f.at < 0 || f.at > chaosRoundLength-chaosWindow || f.lasts < f.kind.least || f.lasts > f.kind.most || f.replica > 1 {
				t.Errorf("round %d has %s", i, f)
			}
		}
		if len(planned) != len(chaosKinds()) || len(r.isolating) != len(isolatingKinds()) {
			t.Errorf("round %d has %d kinds, and %d that isolate", i, len(planned), len(r.isolating))
		}
	}
}
