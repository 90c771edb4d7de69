package service_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// chaosPublisher is one publisher.
type chaosPublisher struct {
	servicetest.Publisher
	chaos  *chaos
	rng    *rand.Rand
	left   int
	number int
}

// next makes the next frame: of a random stream and size, mostly inline, some
// announced by pointers. On half of the streams some frames are ephemeral.
func (p *chaosPublisher) next() *fanfarev1.NewFrame {
	p.number++
	p.left--
	p.chaos.sent.Add(1)
	pad := p.rng.IntN(300)
	if p.rng.IntN(10) == 0 {
		pad = p.rng.IntN(20_000)
	}
	payload := fmt.Sprintf("%s/%d ", p.Name, p.number) + strings.Repeat("x", pad)
	i := p.rng.IntN(chaosStreams)
	f := newFrame(chaosStream(i), payload)
	f.Ephemeral = i%2 == 0 && p.rng.IntN(4) == 0
	return f
}

func (p *chaosPublisher) several(most int) []*fanfarev1.NewFrame {
	var frames []*fanfarev1.NewFrame
	for n := 1 + p.rng.IntN(most); n > 0 && p.left > 0; n-- {
		frames = append(frames, p.next())
	}
	return frames
}

// until publishes once and again while frames are left and ctx has not ended.
// Whatever fails is given up.
func (p *chaosPublisher) until(ctx context.Context, once func() error) error {
	for p.left > 0 && ctx.Err() == nil {
		if once() != nil {
			pauseFor(ctx, 10*time.Millisecond)
		}
	}
	return ctx.Err()
}

// byCall publishes frame by frame. With keys it retries until it knows, but for
// ephemeral frames, which have none.
func (p *chaosPublisher) byCall(ctx context.Context, keys bool) error {
	return p.until(ctx, func() error {
		f := p.next()
		if keys && !f.Ephemeral {
			f.IdempotencyKey = fmt.Sprint(p.Name, p.number)
			_, err := p.PublishUntilAnswered(ctx, f)
			return err
		}
		_, err := p.Publish(ctx, f)
		return err
	})
}

// byStream publishes through PublishStream, up to 32 frames to a call, and now and
// then a batch.
func (p *chaosPublisher) byStream(ctx context.Context) error {
	return p.until(ctx, func() error {
		if p.rng.IntN(4) == 0 {
			return p.PublishBatch(ctx, p.several(8))
		}
		return p.PublishBurst(ctx, p.several(32))
	})
}

// bySQL publishes in transactions of its own, of varying length, a fifth of which
// it rolls back.
func (p *chaosPublisher) bySQL(ctx context.Context) error {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}()
	return p.until(ctx, func() (err error) {
		if conn == nil || conn.IsClosed() {
			if conn, err = pgx.Connect(ctx, p.chaos.db.URL); err != nil {
				return err // the server restarts
			}
		}
		var work time.Duration
		if p.rng.IntN(3) == 0 {
			work = time.Duration(p.rng.IntN(20)) * time.Millisecond
		}
		return p.PublishInTransaction(ctx, conn, p.work(), work, p.rng.IntN(5) > 0)
	})
}

// work is what one transaction publishes. Mostly it goes through the streams in one
// order, as applications should; the rest deadlocks now and then.
func (p *chaosPublisher) work() []*fanfarev1.NewFrame {
	frames := p.several(5)
	if p.rng.IntN(20) > 0 {
		slices.SortStableFunc(frames, func(a, b *fanfarev1.NewFrame) int { return strings.Compare(a.GetScope(), b.GetScope()) })
	}
	return frames
}

func pauseFor(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
