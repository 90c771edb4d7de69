package service_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// publishTimeout is a caller's deadline.
const publishTimeout = 20 * time.Second

// byCall publishes frame by frame. With keys it retries until it knows.
func (p *chaosPublisher) byCall(ctx context.Context, keys bool) error {
	for p.left > 0 {
		f := p.next()
		if keys {
			f.IdempotencyKey = fmt.Sprint(p.name, p.number)
			if _, err := p.untilAnswered(ctx, f); err != nil {
				return err
			}
			continue
		}
		if _, err := p.call(ctx, f); err != nil {
			pauseFor(ctx, 10*time.Millisecond) // the frame is given up
		}
	}
	return ctx.Err()
}

// untilAnswered publishes a frame with a key until it is confirmed.
func (p *chaosPublisher) untilAnswered(ctx context.Context, f *fanfarev1.NewFrame) (*fanfarev1.PublishResponse, error) {
	for {
		answer, err := p.call(ctx, f)
		if err == nil {
			return answer, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		pauseFor(ctx, 20*time.Millisecond)
	}
}

// call publishes once and records what was said.
func (p *chaosPublisher) call(ctx context.Context, f *fanfarev1.NewFrame) (*fanfarev1.PublishResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	attempt := p.recorder.Publishing(p.name, f)
	answer, err := p.client().Publish(ctx, &fanfarev1.PublishRequest{Frame: f})
	switch {
	case err == nil:
		attempt.Confirmed(position(answer.GetPosition()), answer.GetDuplicate())
	case refused(err):
		attempt.Refused()
	}
	return answer, err
}

// refused reports whether an error says that nothing was stored.
func refused(err error) bool {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason() != "OUTCOME_UNKNOWN" && info.GetReason() != "INTERNAL"
		}
	}
	return false
}

// byStream publishes through PublishStream, 32 frames to a call.
func (p *chaosPublisher) byStream(ctx context.Context) error {
	for p.left > 0 {
		attempts := map[uint64]*servicetest.Attempt{}
		err := p.oneStream(ctx, attempts)
		if err != nil && ctx.Err() != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if !errors.Is(err, io.EOF) {
			pauseFor(ctx, 10*time.Millisecond)
		}
	}
	return nil
}

// oneStream sends up to 32 frames and records the answers; what is not answered
// stays unknown. It returns io.EOF when all went well.
func (p *chaosPublisher) oneStream(ctx context.Context, attempts map[uint64]*servicetest.Attempt) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	call, err := p.client().PublishStream(ctx)
	if err != nil {
		return err
	}
	for number := uint64(0); number < 32 && p.left > 0; number++ {
		f := p.next()
		attempts[number] = p.recorder.Publishing(p.name, f)
		if err := call.Send(&fanfarev1.PublishStreamRequest{Number: number, Frame: f}); err != nil {
			break
		}
	}
	if err := call.CloseSend(); err != nil {
		return err
	}
	for {
		answer, err := call.Recv()
		if err != nil {
			return err
		}
		attempt := attempts[answer.GetNumber()]
		switch outcome := answer.GetOutcome().(type) {
		case *fanfarev1.PublishStreamResponse_Published:
			attempt.Confirmed(position(outcome.Published.GetPosition()), outcome.Published.GetDuplicate())
		case *fanfarev1.PublishStreamResponse_Error:
			if code := codes.Code(outcome.Error.GetCode()); code == codes.Unavailable || code == codes.ResourceExhausted {
				attempt.Refused()
			}
		}
	}
}

// bySQL publishes in transactions of its own, of varying length, a fifth of
// which it rolls back.
func (p *chaosPublisher) bySQL(ctx context.Context) error {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}()
	for p.left > 0 && ctx.Err() == nil {
		if conn == nil || conn.IsClosed() {
			var err error
			if conn, err = pgx.Connect(ctx, p.db.URL); err != nil {
				conn = nil
				pauseFor(ctx, 20*time.Millisecond) // the server restarts
				continue
			}
		}
		p.transaction(ctx, conn)
	}
	return ctx.Err()
}

// work is what one transaction publishes. Mostly it goes through the streams in
// one order, as applications should; the rest deadlocks now and then.
func (p *chaosPublisher) work() []*fanfarev1.NewFrame {
	var frames []*fanfarev1.NewFrame
	for n := 1 + p.rng.IntN(5); n > 0 && p.left > 0; n-- {
		frames = append(frames, p.next())
	}
	if p.rng.IntN(20) > 0 {
		slices.SortStableFunc(frames, func(a, b *fanfarev1.NewFrame) int { return strings.Compare(a.GetScope(), b.GetScope()) })
	}
	return frames
}

// transaction publishes up to five frames, holds its locks for a while and
// commits or rolls back.
func (p *chaosPublisher) transaction(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return
	}
	var attempts []*servicetest.Attempt
	var positions []backlog.Position
	rollBack := func() {
		_ = tx.Rollback(ctx)
		for _, a := range attempts {
			a.RolledBack()
		}
	}
	for _, f := range p.work() {
		attempts = append(attempts, p.recorder.Publishing(p.name, f))
		var at backlog.Position
		err := tx.QueryRow(ctx, "select epoch, sequence from fanfare.publish($1, $2, $3)", f.GetChannel(), f.GetScope(), f.GetPayload()).
			Scan(&at.Epoch, &at.Sequence)
		if err != nil {
			// A deadlock with another transaction, or the server has gone.
			rollBack()
			return
		}
		positions = append(positions, at)
	}
	if p.rng.IntN(3) == 0 {
		pauseFor(ctx, time.Duration(p.rng.IntN(20))*time.Millisecond) // the application's own work
	}
	if p.rng.IntN(5) == 0 {
		rollBack()
		return
	}
	if tx.Commit(ctx) != nil {
		return // nobody knows
	}
	for i, a := range attempts {
		a.Confirmed(positions[i], false)
	}
}

func pauseFor(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
