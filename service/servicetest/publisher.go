package servicetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Publisher publishes frames in every way that there is, and records each with
// what it was told. Like a program with one thread it does one thing at a time.
type Publisher struct {
	Name     string
	Recorder *Recorder
	// Client returns who to call next.
	Client func() fanfarev1.FanfareServiceClient
	// Timeout bounds each call and transaction.
	Timeout time.Duration
	// Confirmed, if not nil, is called for each frame that was.
	Confirmed func()
}

// Publish publishes a frame once.
func (p *Publisher) Publish(ctx context.Context, f *fanfarev1.NewFrame) (*fanfarev1.PublishResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	attempt := p.Recorder.Publishing(p.Name, f)
	answer, err := p.Client().Publish(ctx, &fanfarev1.PublishRequest{Frame: f})
	switch {
	case err == nil:
		p.confirm(attempt, answer)
	case nothingStored(err):
		attempt.Refused()
	}
	return answer, err
}

// PublishUntilAnswered publishes a frame with a key until it is confirmed, until
// ctx ends, or an error is one that a retry does not help against. It rests longer
// the longer that takes.
func (p *Publisher) PublishUntilAnswered(ctx context.Context, f *fanfarev1.NewFrame) (*fanfarev1.PublishResponse, error) {
	for rest := 10 * time.Millisecond; ; rest = min(2*rest, 200*time.Millisecond) {
		answer, err := p.Publish(ctx, f)
		if err == nil || ctx.Err() != nil || !Passes(err) {
			return answer, err
		}
		pause(ctx, rand.N(rest))
	}
}

// PublishBatch publishes frames together, all or nothing.
func (p *Publisher) PublishBatch(ctx context.Context, frames []*fanfarev1.NewFrame) error {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	attempts := p.publishing(frames)
	answer, err := p.Client().PublishBatch(ctx, &fanfarev1.PublishBatchRequest{Frames: frames})
	for i, a := range attempts {
		switch {
		case err == nil:
			p.confirm(a, answer.GetResults()[i])
		case nothingStored(err):
			a.Refused()
		}
	}
	return err
}

func (p *Publisher) publishing(frames []*fanfarev1.NewFrame) []*Attempt {
	attempts := make([]*Attempt, len(frames))
	for i, f := range frames {
		attempts[i] = p.Recorder.Publishing(p.Name, f)
	}
	return attempts
}

// PublishBurst publishes frames through one PublishStream call, without waiting
// for each. What is not answered stays unknown. It returns how the call ended.
func (p *Publisher) PublishBurst(ctx context.Context, frames []*fanfarev1.NewFrame) error {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	call, err := p.Client().PublishStream(ctx)
	if err != nil {
		return err
	}
	attempts := make([]*Attempt, len(frames))
	for i, f := range frames {
		attempts[i] = p.Recorder.Publishing(p.Name, f)
		// What it returns, Recv tells better.
		_ = call.Send(&fanfarev1.PublishStreamRequest{Number: uint64(i), Frame: f})
	}
	_ = call.CloseSend()
	for range attempts {
		answer, err := call.Recv()
		if err != nil {
			return err
		}
		if err := p.answered(attempts[answer.GetNumber()], answer); !Passes(err) {
			return err
		}
	}
	return nil
}

func (p *Publisher) answered(a *Attempt, answer *fanfarev1.PublishStreamResponse) error {
	if published := answer.GetPublished(); published != nil {
		p.confirm(a, published)
		return nil
	}
	refusal := answer.GetError()
	err := statusError(refusal)
	if nothingStored(err) {
		a.Refused()
	}
	return err
}

// statusError is the error of a call that failed as an item did.
func statusError(e *fanfarev1.Error) error {
	s := status.New(codes.Code(e.GetCode()), e.GetMessage())
	name := fanfarev1.ErrorReason_name[int32(e.GetReason())]
	detailed, err := s.WithDetails(&errdetails.ErrorInfo{Reason: name[len("ERROR_REASON_"):]})
	if err != nil {
		return s.Err()
	}
	return detailed.Err()
}

// PublishInTransaction publishes frames by SQL in one transaction, which does the
// application's own work before it is committed or, if commit is false, rolled
// back. It returns what failed; conn may be broken then.
func (p *Publisher) PublishInTransaction(ctx context.Context, conn *pgx.Conn, frames []*fanfarev1.NewFrame, work time.Duration, commit bool) error {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	attempts, positions, err := p.publishBySQL(ctx, tx, frames)
	if err == nil {
		pause(ctx, work)
	}
	if err != nil || !commit {
		_ = tx.Rollback(ctx) // a connection that broke has rolled back, too
		for _, a := range attempts {
			a.RolledBack()
		}
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return err // nobody knows
	}
	for i, a := range attempts {
		p.confirmAt(a, positions[i], false)
	}
	return nil
}

// publishBySQL publishes until one fails: a deadlock with another transaction, or
// the server has gone.
func (p *Publisher) publishBySQL(ctx context.Context, tx pgx.Tx, frames []*fanfarev1.NewFrame) (attempts []*Attempt, positions []backlog.Position, err error) {
	for _, f := range frames {
		attempts = append(attempts, p.Recorder.Publishing(p.Name, f))
		var at backlog.Position
		if f.GetEphemeral() {
			_, err = tx.Exec(ctx, "select fanfare.publish_ephemeral($1, $2, $3)", f.GetChannel(), f.GetScope(), f.GetPayload())
		} else {
			err = tx.QueryRow(ctx, "select epoch, sequence from fanfare.publish($1, $2, $3)", f.GetChannel(), f.GetScope(), f.GetPayload()).
				Scan(&at.Epoch, &at.Sequence)
		}
		if err != nil {
			return attempts, nil, fmt.Errorf("publish by SQL: %w", err)
		}
		positions = append(positions, at)
	}
	return attempts, positions, nil
}

func (p *Publisher) confirm(a *Attempt, answer *fanfarev1.PublishResponse) {
	p.confirmAt(a, positionOf(answer.GetPosition()), answer.GetDuplicate())
}

func (p *Publisher) confirmAt(a *Attempt, at backlog.Position, duplicate bool) {
	a.Confirmed(at, duplicate)
	if p.Confirmed != nil {
		p.Confirmed()
	}
}

// Passes reports whether an error is one of those that a server, or a database,
// which dies or starts causes, and that a client lives with. nil is.
func Passes(err error) bool {
	switch status.Code(err) {
	case codes.OK, codes.Unavailable, codes.ResourceExhausted, codes.Canceled, codes.DeadlineExceeded:
		return true
	case codes.Unknown:
		return reasonOf(err) == "OUTCOME_UNKNOWN"
	default:
		return false
	}
}

// nothingStored reports whether the server said so; a connection that broke says
// nothing.
func nothingStored(err error) bool {
	reason := reasonOf(err)
	return reason != "" && reason != "OUTCOME_UNKNOWN" && reason != "INTERNAL"
}

// reasonOf is the reason of an error that has one.
func reasonOf(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}
