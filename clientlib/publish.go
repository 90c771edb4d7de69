package clientlib

import (
	"context"
	"crypto/rand"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Publish publishes one frame and returns after it was stored or, if it is ephemeral,
// announced.
//
// A durable frame without an idempotency key gets one: 128 random bits. With a key a
// publish is tried again whatever became of the last try, without one only where nothing
// was stored for certain; in between are pauses as [WithBackoff] has them, or longer
// where the server asks for it. That goes on until ctx ends, so give it a deadline; the
// error is then both ctx's and the last *[Error]. [Client.Close] ends it, too, in a pause
// at once and else after the try under way, with [ErrClosed]. Other errors are at once: an
// *[Error] with what the server said, and what a token source failed with. One that is
// [ErrOutcomeUnknown] leaves open whether the frame was published.
func (c *Client) Publish(ctx context.Context, frame NewFrame) (Published, error) {
	ctx, task := c.telemetry.publish(ctx, []NewFrame{frame})
	var result Published
	p, err := c.prepare(ctx, "frame", frame)
	if err == nil {
		err = c.retry(ctx, p.safe(), func(ctx context.Context, options ...grpc.CallOption) error {
			answer, err := c.stub.Publish(ctx, &fanfarev1.PublishRequest{Frame: p.frame}, options...)
			result = p.published(answer)
			return err
		})
	}
	task.end(ctx, err)
	if err != nil {
		return Published{}, err
	}
	return result, nil
}

// PublishBatch publishes frames of any streams in one transaction, all or none, and
// returns what became of each, in their order. At most 1,000 frames and 4 MiB. Keys,
// retries and errors are those of [Client.Publish]; frames of a batch with keys that are
// partly known are FAILED_PRECONDITION with the reason PARTLY_DUPLICATE.
func (c *Client) PublishBatch(ctx context.Context, frames []NewFrame) ([]Published, error) {
	ctx, task := c.telemetry.publish(ctx, frames)
	results, err := c.publishBatch(ctx, frames)
	task.end(ctx, err)
	return results, err
}

func (c *Client) publishBatch(ctx context.Context, frames []NewFrame) ([]Published, error) {
	batch := make([]prepared, len(frames))
	request := &fanfarev1.PublishBatchRequest{Frames: make([]*fanfarev1.NewFrame, len(frames))}
	for i, f := range frames {
		p, err := c.prepare(ctx, "frames["+strconv.Itoa(i)+"]", f)
		if err != nil {
			return nil, err
		}
		batch[i], request.Frames[i] = p, p.frame
	}
	results := make([]Published, len(frames))
	err := c.retry(ctx, allSafe(batch), func(ctx context.Context, options ...grpc.CallOption) error {
		answer, err := c.stub.PublishBatch(ctx, request, options...)
		for i, result := range answer.GetResults() {
			if i < len(results) {
				results[i] = batch[i].published(result)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

// prepared is a frame as each try sends it.
type prepared struct {
	frame *fanfarev1.NewFrame
	// madeKey is true if the key is the library's.
	madeKey bool
}

// prepare gives a frame, which is at path in its request, its key and trace context. The
// error is that of a text that cannot be sent.
func (c *Client) prepare(ctx context.Context, path string, f NewFrame) (prepared, error) {
	if e := f.checkText(path); e != nil {
		return prepared{frame: f.proto()}, e
	}
	c.telemetry.inject(ctx, &f)
	made := f.IdempotencyKey == "" && !f.Ephemeral && !c.noKeys
	if made {
		f.IdempotencyKey = rand.Text()
	}
	return prepared{frame: f.proto(), madeKey: made}, nil
}

// safe reports whether the frame may be sent again though it may have been stored. That
// holds with an expectation, too: the server looks at the key first.
func (p prepared) safe() bool { return p.frame.GetIdempotencyKey() != "" }

// allSafe is safe of a batch. Its ephemeral frames are not announced again if the
// durable ones are known.
func allSafe(batch []prepared) bool {
	durable := false
	for _, p := range batch {
		if p.frame.GetEphemeral() {
			continue
		}
		if durable = true; !p.safe() {
			return false
		}
	}
	return durable
}

// published is the answer to a frame. One that is a duplicate under a key of the
// library's was stored by an earlier try.
func (p prepared) published(answer *fanfarev1.PublishResponse) Published {
	return Published{
		Position:  positionOf(answer.GetPosition()),
		Duplicate: answer.GetDuplicate() && !p.madeKey,
	}
}

// retry tries a publish until it succeeds, fails for good, ctx ends or the client is
// closed.
func (c *Client) retry(ctx context.Context, safe bool, try func(context.Context, ...grpc.CallOption) error) error {
	if c.isClosed() {
		return ErrClosed
	}
	access, pauses := access{tokens: &c.tokenCache}, c.newPauses()
	// unknown is true once a try may have stored the frame.
	unknown := false
	for {
		e, err := c.attempt(ctx, safe, &access, try)
		if e == nil && err != nil && unknown {
			return errorOf(err).outcomeUnknown()
		}
		if e == nil {
			return err
		}
		unknown = unknown || e.mayHaveStored()
		told := e
		if unknown && !e.tellsOfTheStore() {
			told = e.outcomeUnknown()
		}
		pause := time.Duration(0)
		switch {
		case ctx.Err() != nil, access.renew(e):
		case e.storedNothing(), safe && (e.mayHaveStored() || e.unsent):
			pause = pauses.next(e.RetryIn)
		default:
			return told
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		case <-c.closing:
		}
		switch {
		case ctx.Err() != nil:
			return ended(context.Cause(ctx), told)
		case c.isClosed():
			return ended(ErrClosed, told)
		}
	}
}

// attempt is one try. Without e there is nothing to try again, and err is nil or what
// else is wrong.
func (c *Client) attempt(ctx context.Context, safe bool, access *access, try func(context.Context, ...grpc.CallOption) error) (e *Error, err error) {
	if safe {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.attemptTimeout)
		defer cancel()
	}
	if ctx, err = access.authorize(ctx); err != nil {
		return nil, err
	}
	server := &peer.Peer{}
	if err = try(ctx, answerOptions(server)...); err == nil {
		return nil, nil
	}
	return c.failed(err, server), nil
}

// answerOptions have a publish say which server got it, and take its answer whatever the
// connection's limit is: grpc's error for one that is larger would look like a refusal of
// what was stored.
func answerOptions(server *peer.Peer) []grpc.CallOption {
	return []grpc.CallOption{grpc.Peer(server), grpc.MaxCallRecvMsgSize(maxMessageBytes)}
}

// failed is the error of a publish. grpc says which server got a call; if none did, the
// frame was not sent. Other kinds of connections may not say it.
func (c *Client) failed(err error, server *peer.Peer) *Error {
	e := errorOf(err)
	if _, says := c.conn.(*grpc.ClientConn); says && server.Addr == nil && e.Reason == "" {
		switch e.Code {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled,
			codes.Internal: // such as headers that are larger than the server takes
			e.unsent = true
		}
	}
	return e
}
