package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// maxLinesInFlight bounds the lines that were sent and not answered. It keeps
// the server's batches full, and what may follow a refused line small.
const maxLinesInFlight = 512

// lineRun is one publish --lines. It sends and receives at the same time: many
// lines are on their way, and their answers come in their order.
type lineRun struct {
	call     fanfarev1.FanfareService_PublishStreamClient
	template *fanfarev1.NewFrame
	// window holds one entry for each line in flight.
	window chan struct{}
	// refused is closed when a line was refused: no further one is sent.
	refused chan struct{}
}

// publishLines publishes each line of standard input as a frame like template,
// in order, and prints the positions in that order.
func (p *program) publishLines(ctx context.Context, o *publishOptions, template *fanfarev1.NewFrame) error {
	conn, err := o.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	call, err := fanfarev1.NewFanfareServiceClient(conn).PublishStream(ctx)
	if err != nil {
		return o.explain(err)
	}
	run := &lineRun{
		call:     call,
		template: template,
		window:   make(chan struct{}, maxLinesInFlight),
		refused:  make(chan struct{}),
	}
	sending := make(chan error, 1)
	go func() { sending <- run.send(ctx, p.stdin) }()
	printed, err := run.print(ctx, p.stdout, o)
	cancel()
	return o.lineError(printed, err, <-sending)
}

// lineError is the error of a run whose receiver and sender ended with the
// given ones. A call that broke leaves lines of which nobody knows whether they
// were published.
func (o *publishOptions) lineError(printed int, receiving, sending error) error {
	var refused *refusedLine
	var output *outputError
	switch {
	case receiving == nil:
		return sending
	case errors.As(receiving, &refused), errors.As(receiving, &output):
		return receiving
	default:
		return fmt.Errorf("%w; %d lines are known to be published, the next ones may be", o.explain(receiving), printed)
	}
}

// send reads lines and sends them until the input ends, a line was refused, or
// the call is over. The reading is apart, since it cannot be interrupted.
func (r *lineRun) send(ctx context.Context, input io.Reader) error {
	reader := bufio.NewReaderSize(input, 64<<10)
	lines := receive(func() ([]byte, error) { return readLine(reader) }, ctx.Done())
	for number := uint64(1); ; number++ {
		line, err := r.nextLine(ctx, lines)
		if err != nil || line == nil {
			// io.EOF: the call is over, the receiver gets its status.
			if closing := r.call.CloseSend(); closing != nil && closing != io.EOF {
				return closing
			}
			if err == nil || err == io.EOF {
				return nil
			}
			return fmt.Errorf("line %d: %w", number, err)
		}
		frame := proto.CloneOf(r.template)
		frame.Payload = line
		if r.call.Send(&fanfarev1.PublishStreamRequest{Number: number, Frame: frame}) != nil {
			return nil // the receiver gets the status
		}
	}
}

// nextLine returns the next line when it may be sent; nil if no more lines are
// wanted.
func (r *lineRun) nextLine(ctx context.Context, lines <-chan received[[]byte]) ([]byte, error) {
	var line []byte
	select {
	case next, open := <-lines:
		if !open || next.err != nil {
			return nil, next.err
		}
		line = next.message
	case <-r.refused:
		return nil, nil
	case <-ctx.Done():
		return nil, nil
	}
	select {
	case r.window <- struct{}{}:
		return line, nil
	case <-r.refused:
		return nil, nil
	case <-ctx.Done():
		return nil, nil
	}
}

// readLine returns the next line without its line feed, not nil, or io.EOF. The
// last line needs no line feed; one at the very end begins no further line.
func readLine(r *bufio.Reader) ([]byte, error) {
	line := []byte{}
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case err == io.EOF && len(line) > 0:
			return line, nil
		case err != bufio.ErrBufferFull:
			return nil, err
		case len(line) > maxMessageBytes:
			return nil, fmt.Errorf("has more than %d bytes", maxMessageBytes)
		}
	}
}

// print prints the answers until the call ends, and returns how many lines were
// published. Of refused lines it reports the first, after the answers to those
// that were on their way behind it.
func (r *lineRun) print(ctx context.Context, stdout io.Writer, o *publishOptions) (printed int, err error) {
	out := bufio.NewWriter(stdout)
	answers := receive(r.call.Recv, ctx.Done())
	printer := positionPrinter{out, o.json}
	var refused *refusedLine
	for {
		answer, err := nextFlushed(answers, out)
		if err != nil {
			if flushing := flush(out); flushing != nil {
				return printed, flushing
			}
			return printed, endOfAnswers(err, refused)
		}
		<-r.window
		switch failed := answer.GetError(); {
		case failed == nil:
			if err := printer.print(answer.GetPublished(), answer.GetNumber()); err != nil {
				return printed, err
			}
			printed++
			if refused != nil {
				refused.publishedAfter++
			}
		case refused == nil:
			refused = &refusedLine{line: answer.GetNumber(), err: failed}
			close(r.refused)
		}
	}
}

// endOfAnswers is the error of a call that ended with err.
func endOfAnswers(err error, refused *refusedLine) error {
	switch {
	case refused != nil:
		return refused
	case err == io.EOF:
		return nil
	default:
		return err
	}
}

// refusedLine is the first line that was not published.
type refusedLine struct {
	line uint64
	err  *fanfarev1.Error
	// publishedAfter counts lines after it that were on their way.
	publishedAfter int
}

func (e *refusedLine) Error() string {
	message := fmt.Sprintf("line %d: %s (%s)", e.line, e.err.GetMessage(), codes.Code(e.err.GetCode()))
	if e.publishedAfter > 0 {
		message += fmt.Sprintf("; %d lines after it were on their way and are published", e.publishedAfter)
	}
	return message
}
