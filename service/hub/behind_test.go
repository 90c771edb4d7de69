package hub

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/fanfare-io/fanfare/backlog"
)

// behind asks the hub as a server does, which has read the stream.
func (r *rig) behind(name backlog.StreamName) uint64 {
	r.store.mu.Lock()
	state := r.store.stateLocked(name)
	r.store.mu.Unlock()
	return r.hub.Behind(&state)
}

func (r *rig) wantBehind(name backlog.StreamName, want uint64, when string) {
	r.t.Helper()
	if got := r.behind(name); got != want {
		r.t.Errorf("%s: %d behind, want %d", when, got, want)
	}
}

func TestTheSlowestSubscriptionSaysHowFarAStreamIsBehind(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		name := backlog.StreamName{Channel: "c"}
		r.wantBehind(name, 0, "a stream that nobody knows")
		r.publishMany(name, 0, 10)
		r.wantBehind(name, 0, "a stream without subscriptions")
		slow := r.subscribe(name, Oldest())
		r.wantBehind(name, 10, "nothing of ten frames was taken")
		fast := r.subscribe(name, Live())
		fast.caughtUp()
		slow.frames(10)
		slow.caughtUp()
		r.wantBehind(name, 0, "both have everything")
		r.publishMany(name, 10, 5)
		fast.frames(5)
		r.wantBehind(name, 5, "one of two has taken everything")
		r.bus.publishEphemeral(name, "e")
		r.wantBehind(name, 5, "an ephemeral frame is no durable one")
		slow.sub.Close()
		fast.until("the ephemeral frame", func() bool { return len(fast.ephemeral) == 1 })
		r.wantBehind(name, 0, "the slow one was closed")
	})
}

// Frames that were committed and not announced are not handed to anybody, however
// fast they read.
func TestAFrameThatIsNotAnnouncedIsBehind(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		name := backlog.StreamName{Channel: "c"}
		sub := r.subscribe(name, Live())
		sub.caughtUp()
		r.bus.hold()
		r.bus.publish(name, "0")
		r.wantBehind(name, 1, "the first frame is not announced")
		r.bus.release(false)
		sub.frames(1)
		r.wantBehind(name, 0, "it was announced")
		r.bus.hold()
		r.bus.publish(name, "1")
		r.bus.publish(name, "2")
		r.wantBehind(name, 2, "two are not announced")
		r.bus.release(false)
		sub.frames(3)
		r.wantBehind(name, 0, "they were announced")
	})
}

func TestWhatAGapSkipsIsNotBehind(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		name := backlog.StreamName{Channel: "c"}
		start := After(r.bus.publish(name, "0"))
		r.publishMany(name, 1, 9)
		r.store.trim(name, 3)
		sub := r.subscribe(name, start)
		r.wantBehind(name, 3, "six frames are gone")
		sub.gap(GapTrimmed)
		r.wantBehind(name, 3, "it knows that they are")
		sub.frames(3)
		sub.caughtUp()
		r.wantBehind(name, 0, "it has the rest")
	})
}

func TestBehindAcrossAClose(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		name := backlog.StreamName{Channel: "c"}
		r.publishMany(name, 0, 4)
		slow := r.subscribe(name, Oldest())
		r.bus.close(name)
		r.wantBehind(name, 4, "what came before the close")
		next := r.subscribe(name, Live())
		next.caughtUp()
		r.publishMany(name, 4, 3)
		r.wantBehind(name, 4, "the subscription of the closed numbering is the slowest")
		slow.frames(4)
		slow.caughtUp()
		slow.closed()
		r.wantBehind(name, 3, "the other is now")
		next.frames(3)
		r.wantBehind(name, 0, "it has everything")
	})
}

// Commits that the store has lost end a tail; who reads in it has the rest of it and
// what follows before it.
func TestBehindAcrossLostCommits(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		name := backlog.StreamName{Channel: "c"}
		r.publishMany(name, 0, 4)
		sub, other := r.subscribe(name, Oldest()), r.subscribe(name, Oldest())
		other.frames(4)
		other.caughtUp()
		r.bus.kill()
		r.store.lose(name, 2)
		r.store.restart()
		r.bus.listen()
		r.publishMany(name, 10, 3)
		gap := other.gap(GapEpochChanged)
		left := r.store.head(name).Sequence - gap.ResumeAfter.Sequence
		r.wantBehind(name, 4+left, "the one that has read nothing")
		sub.frames(4)
		sub.caughtUp()
		sub.gap(GapEpochChanged)
		sub.frames(4 + int(left))
		other.frames(4 + int(left))
		r.wantBehind(name, 0, "both have everything")
	})
}

// However subscriptions come, go, join and are split, the slowest is found: the
// roster has each once.
func TestBehindFindsTheSlowestOfMany(t *testing.T) {
	for seed := range uint64(20) {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			random := rand.New(rand.NewPCG(seed, 1))
			name := backlog.StreamName{Channel: "c"}
			var subs []*reader
			published := 0
			for step := range 300 {
				switch k := random.IntN(6); {
				case k == 0 || len(subs) == 0:
					subs = append(subs, r.subscribe(name, Oldest()))
				case k == 1:
					r.publishMany(name, published, 3)
					published += 3
				case k == 2:
					i := random.IntN(len(subs))
					subs[i].sub.Close()
					subs = append(subs[:i], subs[i+1:]...)
				case k == 3:
					a, b := subs[random.IntN(len(subs))], subs[random.IntN(len(subs))]
					if a.sub.Join(b.sub) {
						b.sub = a.sub.Split(1)
					}
				default:
					subs[random.IntN(len(subs))].sub.TryNext(1)
				}
				want := uint64(0)
				for _, s := range subs {
					want = max(want, uint64(published)-s.sub.Position().Sequence)
				}
				r.wantBehind(name, want, fmt.Sprintf("seed %d, step %d, %d subscriptions", seed, step, len(subs)))
			}
			resident := r.hub.resident(name)
			resident.mu.Lock()
			listed := len(resident.roster.list)
			resident.mu.Unlock()
			if listed != len(subs) {
				t.Errorf("%d are listed, want %d", listed, len(subs))
			}
		})
	}
}

// BenchmarkBehind asks about a stream with 100,000 subscriptions: when all wait at
// its end, and when each has a frame to take. locked-ns is how long its mutex was held
// at a time.
func BenchmarkBehind(b *testing.B) {
	const subscribers = 100_000
	for _, waiting := range []bool{true, false} {
		b.Run(fmt.Sprintf("waiting=%t", waiting), func(b *testing.B) {
			r := newRig(b, Config{})
			r.bus.publish(orders, "first")
			for range subscribers {
				drain(b, r.subscribe(orders, Live()).sub)
			}
			want := uint64(0)
			if !waiting {
				r.bus.publish(orders, "second")
				want = 1
			}
			state := r.store.stateLocked(orders)
			chunks := 0
			b.ResetTimer()
			for range b.N {
				if got := r.hub.Behind(&state); got != want {
					b.Fatalf("%d behind, want %d", got, want)
				}
				chunks += (subscribers + behindChunk - 1) / behindChunk
			}
			if !waiting {
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(chunks), "locked-ns")
			}
		})
	}
}
