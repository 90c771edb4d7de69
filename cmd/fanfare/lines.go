package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// maxLinesInFlight bounds the lines that were sent and not answered. It keeps
// the server's batches full, and what may follow a refused line small.
const maxLinesInFlight = 512

// errAnswersLate ends a call whose answers did not come within the timeout after
// the last line was sent.
var errAnswersLate = errors.New("answers are missing")

// errStrayAnswer: a server answers what it was not asked.
var errStrayAnswer = errors.New("the server answered a line that waits for no answer")

// lineRun is one publish --lines. It sends and receives at the same time: many
// lines are on their way.
type lineRun struct {
	call     fanfarev1.FanfareService_PublishStreamClient
	template *fanfarev1.NewFrame
	// window holds one entry for each line that was sent and is not settled: the
	// bytes of the input that it took.
	window chan int64
	// failed is closed at the first answer that is an error, and when standard
	// output is lost: no further line is sent.
	failed chan struct{}
	// outcomes are those of the answers that came.
	outcomes *lineOutcomes
	out      *bufio.Writer
	printer  positionPrinter
	// unwritten is why positions are not printed any more; nil while they are.
	unwritten error
	// meter shows the lines that are settled, or the settledBytes that they took if
	// byBytes is true.
	meter        *meter
	byBytes      bool
	settledBytes int64
}

// publishLines publishes each line of standard input as a frame like template,
// in order, and prints the positions in that order.
func (p *program) publishLines(ctx context.Context, o *publishOptions, template *fanfarev1.NewFrame) error {
	conn, err := o.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	call, err := fanfarev1.NewFanfareServiceClient(conn).PublishStream(ctx)
	if err != nil {
		return o.explain(ctx, err)
	}
	meter := p.lineMeter()
	// Large enough for the positions of all lines on their way: it is written when
	// there is nothing to wait for, at the end of a line.
	out := bufio.NewWriterSize(meter.guard(p.stdout), 64<<10)
	run := &lineRun{
		call:     call,
		template: template,
		window:   make(chan int64, maxLinesInFlight),
		failed:   make(chan struct{}),
		outcomes: newLineOutcomes(o.done()),
		out:      out,
		printer:  positionPrinter{out, o.json},
		meter:    meter,
	}
	run.byBytes = beginLines(meter, p.stdin)
	begun := time.Now()
	var sent sentLines
	var sender sync.WaitGroup
	sender.Go(func() {
		sent = run.send(ctx, p.stdin)
		limitWait(ctx, o.timeout, cancel)
	})
	err = meter.during(ctx, func() error { return run.receive(ctx) })
	late := context.Cause(ctx) == errAnswersLate
	cancel(nil)
	sender.Wait()
	if late {
		err = o.late()
	}
	err = run.finish(ctx, err, sent, o)
	if err == nil && o.ephemeral && !o.json && sent.count > 0 {
		p.sayNotStored(counted(int(sent.count), "line") + " ")
	}
	if took := time.Since(begun); err == nil && meter != nil && took >= meterDelay {
		fmt.Fprintf(p.stderr, "%s published in %s, %.0f a second\n", counted(int(sent.count), "line"), took.Round(10*time.Millisecond), float64(sent.count)/took.Seconds())
	}
	return err
}

// lineMeter is the meter of a run; nil where lines are typed.
func (p *program) lineMeter() *meter {
	if isTerminal(p.stdin) {
		return nil
	}
	return p.newMeter()
}

// beginLines begins to show the lines of an input, and reports whether they are
// shown by their bytes: what is left of a regular file is known.
func beginLines(m *meter, input io.Reader) (byBytes bool) {
	if left := bytesLeft(input); left > 0 {
		m.begin(left, inBytes)
		return true
	}
	m.begin(0, inLines)
	return false
}

// bytesLeft is how much of a regular file is still to be read; 0 of other inputs.
func bytesLeft(input io.Reader) int64 {
	file, ok := input.(*os.File)
	if !ok {
		return 0
	}
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	offset, err := file.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0
	}
	return info.Size() - offset
}

// limitWait cancels with errAnswersLate if ctx does not end within the timeout;
// 0 waits for ever.
func limitWait(ctx context.Context, timeout time.Duration, cancel context.CancelCauseFunc) {
	if timeout == 0 {
		return
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-timer.C:
		cancel(errAnswersLate)
	case <-ctx.Done():
	}
}

// sentLines says how a sender ended.
type sentLines struct {
	// count is the number of lines that were sent: lines 1 to count.
	count uint64
	// all is true if the input ended there.
	all bool
	// err is why the next line could not be read.
	err error
}

// send reads lines and sends them until the input ends, a line failed, or the
// call is over. The reading is apart, since it cannot be interrupted.
func (r *lineRun) send(ctx context.Context, input io.Reader) (sent sentLines) {
	reader := bufio.NewReaderSize(input, 64<<10)
	lines := receive(func() ([]byte, error) { return readLine(reader) }, ctx.Done())
	for {
		line, err := r.nextLine(ctx, lines)
		if err != nil || line == nil {
			if sent.all = err == io.EOF; !sent.all {
				sent.err = err
			}
			// Its error is that the call is over: the receiver gets the status.
			_ = r.call.CloseSend()
			return sent
		}
		frame := proto.CloneOf(r.template)
		frame.Payload = line
		if r.call.Send(&fanfarev1.PublishStreamRequest{Number: sent.count + 1, Frame: frame}) != nil {
			return sent // the receiver gets the status
		}
		sent.count++
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
	case <-r.failed:
		return nil, nil
	case <-ctx.Done():
		return nil, nil
	}
	select {
	case r.window <- int64(len(line)) + 1:
		return line, nil
	case <-r.failed:
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

// receive takes answers and prints positions until the call ends, whose error it
// returns: io.EOF at the good end. Without standard output it goes on, to learn
// what became of the lines that are on their way.
func (r *lineRun) receive(ctx context.Context) error {
	answers := receive(r.call.Recv, ctx.Done())
	stop := sync.OnceFunc(func() { close(r.failed) })
	for {
		answer, err := nextFlushed(answers, r.out)
		if output := (*outputError)(nil); errors.As(err, &output) {
			r.loseOutput(err)
			stop()
			continue
		}
		if err != nil {
			return err
		}
		settled, err := r.outcomes.add(answer)
		if err != nil {
			return err
		}
		if answer.GetError() != nil {
			stop()
		}
		if !r.leaveWindow(len(settled)) {
			return errStrayAnswer
		}
		if err := r.print(settled); err != nil {
			r.loseOutput(err)
			stop()
		}
	}
}

// loseOutput notes that nothing can be printed any more, and why.
func (r *lineRun) loseOutput(err error) {
	r.unwritten = cmp.Or(r.unwritten, err)
	r.out.Reset(io.Discard)
}

// leaveWindow makes room for as many lines as were settled; false if not so many
// are on their way.
func (r *lineRun) leaveWindow(lines int) bool {
	for range lines {
		select {
		case size := <-r.window:
			r.settledBytes += size
		default:
			return false
		}
	}
	if r.byBytes {
		r.meter.reach(r.settledBytes)
	} else {
		r.meter.reach(int64(r.outcomes.next - 1))
	}
	return true
}

// print prints the positions of those lines that were stored.
func (r *lineRun) print(settled []*fanfarev1.PublishStreamResponse) error {
	for _, answer := range settled {
		if answer.GetError() != nil {
			continue
		}
		if err := r.printer.print(answer.GetPublished(), answer.GetNumber()); err != nil {
			return err
		}
	}
	return nil
}

// finish prints what had to wait for answers that never came, and returns the
// error of the whole run; nil if every line of the input was published. ending is
// how the call ended.
func (r *lineRun) finish(ctx context.Context, ending error, sent sentLines, o *publishOptions) error {
	// A server that drains answers everything that it has admitted. In all other
	// cases what was not answered may have been stored.
	refused := errorReason(status.Convert(ending)) == drainingReason
	rest := r.outcomes.end(sent.count, refused)
	if err := cmp.Or(r.print(rest), flush(r.out)); err != nil {
		r.loseOutput(err)
	}
	var causes []string
	if r.unwritten != nil {
		causes = append(causes, r.unwritten.Error())
	}
	if first := r.outcomes.first; first != nil {
		causes = append(causes, first.text())
	}
	if ending != io.EOF {
		causes = append(causes, o.explain(ctx, ending).Error())
	} else if len(causes) == 0 && (!r.outcomes.missing.empty() || !sent.all && sent.err == nil) {
		causes = append(causes, fmt.Sprintf("the server at %s ended the call early", o.server))
	}
	if sent.err != nil {
		causes = append(causes, fmt.Sprintf("line %d was not sent: %v", sent.count+1, sent.err))
	}
	if len(causes) == 0 {
		return nil
	}
	return errors.New(strings.Join(slices.Concat(causes, r.outcomes.texts(sent), r.outcomes.advice(sent)), "; "))
}
