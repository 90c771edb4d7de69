package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// subscribeOptions are the flags of fanfare subscribe.
type subscribeOptions struct {
	connection
	from  string
	last  uint64
	count uint64
	json  bool
}

func (p *program) subscribeCommand() *cobra.Command {
	var o subscribeOptions
	cmd := &cobra.Command{
		Use:   "subscribe CHANNEL SCOPE",
		Short: "Print a stream's frames as they are published",
		Long: `Prints the frames of a stream: first those of the backlog, then each one as it
is published, until Ctrl-C, --count frames, the close of the stream, or the end
of a reader that standard output is piped to.

Without --json each payload goes to standard output, followed by a newline, and
notices go to standard error. With --json each frame and notice is one object on
a line of standard output, with its type (subscribed, frame, caught_up, gap,
progress, status, closed, closing) and its position. An ephemeral frame has none,
but "ephemeral": true.

On a terminal control characters of payloads are shown as escapes, such as \x1b;
files and pipes get every byte. While a long replay goes into a file or a pipe, a
bar on the terminal shows how far it is.

When the server ends the subscription because of its age (--max-stream-age of
serve) or because its token has expired, which is then read again, the command waits
as long as it is told and goes on where it was: no durable frame is missed or printed
twice. When the server goes away the command
fails, and says on standard error with which --from it can be continued, on this
server or another.`,
		Example: `  fanfare subscribe chat/messages lobby
  fanfare subscribe chat/messages lobby --from live
  fanfare subscribe orders 4711 --last 10 --count 10 --json
  fanfare subscribe orders 4711 --from 6121518418436913241-17    # what follows it`,
		Args: streamArguments,
		RunE: action(func(cmd *cobra.Command, args []string) error {
			request, err := o.request(cmd, args)
			if err != nil {
				return err
			}
			return p.subscribe(cmd.Context(), &o, request)
		}),
	}
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "oldest", "where to begin: oldest, live, or after a position, `EPOCH-SEQUENCE`")
	f.Uint64Var(&o.last, "last", 0, "begin with the newest N frames; not with --from")
	f.Uint64Var(&o.count, "count", 0, "end after N frames; 0: never")
	f.BoolVar(&o.json, "json", false, "print a JSON object for each frame and notice")
	return cmd
}

// request makes the request that the flags ask for.
func (o *subscribeOptions) request(cmd *cobra.Command, args []string) (*fanfarev1.SubscribeRequest, error) {
	stream := streamOf(args)
	request := &fanfarev1.SubscribeRequest{Channel: stream.Channel, Scope: stream.Scope}
	switch {
	case cmd.Flags().Changed("last"):
		request.Start = &fanfarev1.SubscribeRequest_Last{Last: o.last}
	case o.from == "oldest":
		request.Start = &fanfarev1.SubscribeRequest_Oldest{Oldest: true}
	case o.from == "live":
		request.Start = &fanfarev1.SubscribeRequest_Live{Live: true}
	default:
		after, err := backlog.ParsePosition(o.from)
		if err != nil {
			return nil, &usageError{fmt.Sprintf("--from is oldest, live or a position: %v", err), startHint(o.from)}
		}
		request.Start = &fanfarev1.SubscribeRequest_After{
			After: &fanfarev1.Position{Epoch: after.Epoch, Sequence: after.Sequence},
		}
	}
	return request, nil
}

// startHint says what a start probably meant that is none.
func startHint(text string) string {
	if text != "" && strings.Trim(text, "0123456789") == "" {
		return "a sequence alone is no position: publish, streams and subscribe print EPOCH-SEQUENCE;"
	}
	return didYouMean(closest(text, []string{"oldest", "live"}))
}

// What ErrorInfo says of a call that was ended for its age, and of one whose token has
// expired.
const (
	reasonMaxStreamAge = "MAX_STREAM_AGE"
	reasonTokenExpired = "TOKEN_EXPIRED"
)

// errReaderGone ends a subscription whose output nobody reads any more.
var errReaderGone = errors.New("nobody reads standard output any more")

// subscribe prints until the end of the stream, the wanted number of frames, the
// end of ctx, or that of the output's reader, which are all a good end.
func (p *program) subscribe(ctx context.Context, o *subscribeOptions, request *fanfarev1.SubscribeRequest) error {
	conn, err := o.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	callCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer watchReader(p.stdout, func() { cancel(errReaderGone) })()
	client := fanfarev1.NewFanfareServiceClient(conn)
	call, err := client.Subscribe(callCtx, request)
	if context.Cause(callCtx) == errReaderGone {
		return nil
	}
	if err != nil {
		return o.explain(ctx, err)
	}
	meter := p.meterOfReplay()
	out := bufio.NewWriterSize(p.stdout, 64<<10)
	printer := &framePrinter{
		out:     out,
		notices: meter.guard(p.stderr),
		display: p.display(p.stdout), noticeDisplay: p.display(p.stderr),
		json:   o.json,
		wanted: o.count,
		meter:  replayMeter{meter: meter},
	}
	err = meter.during(callCtx, func() error { return printer.follow(callCtx, client, request, call) })
	if context.Cause(callCtx) == errReaderGone {
		return nil
	}
	if flushing := flush(out); flushing != nil {
		err = flushing
	}
	if errors.Is(err, syscall.EPIPE) {
		return nil // a write met the reader's end first
	}
	if err == nil || ctx.Err() != nil {
		return nil
	}
	if printer.resumable && resumable(err) {
		fmt.Fprintf(p.stderr, "continue with --from %s\n", positionText(printer.last))
	}
	return o.explain(ctx, err)
}

// meterOfReplay is the meter of a subscription; nil where frames scroll by.
func (p *program) meterOfReplay() *meter {
	if isTerminal(p.stdout) {
		return nil
	}
	return p.newMeter()
}

// resumable reports whether a subscription that ended with err can be continued
// with its last position.
func resumable(err error) bool {
	var output *outputError
	return !errors.As(err, &output) && status.Code(err) != codes.InvalidArgument
}

// framePrinter prints what a subscription brings.
type framePrinter struct {
	out     *bufio.Writer
	notices io.Writer
	// display is that of out, noticeDisplay that of notices.
	display, noticeDisplay display
	json                   bool
	// wanted is how many frames to print, 0 meaning all.
	wanted, printed uint64
	// last is the last position seen, once resumable is true.
	last      *fanfarev1.Position
	resumable bool
	// taken is true once the server has answered the current call.
	taken bool
	meter replayMeter
}

// follow prints what a call brings, and where the server ends it for its age or because
// its token has expired, what the next one brings.
func (p *framePrinter) follow(ctx context.Context, client fanfarev1.FanfareServiceClient, request *fanfarev1.SubscribeRequest, call fanfarev1.FanfareService_SubscribeClient) error {
	for {
		p.taken = false
		err := p.printAll(receive(call.Recv, ctx.Done()))
		retryIn, again := endedInOrder(err)
		if !again || !p.resumable || !p.taken {
			return err
		}
		if err := p.out.Flush(); err != nil {
			return &outputError{err}
		}
		select {
		case <-time.After(retryIn):
		case <-ctx.Done():
			return err
		}
		request.Start = &fanfarev1.SubscribeRequest_After{After: p.last}
		if call, err = client.Subscribe(ctx, request); err != nil {
			return err
		}
	}
}

// endedInOrder reports whether a call ended because it was as old as the server lets one
// become, or its token was, and how long to wait before the next.
func endedInOrder(err error) (retryIn time.Duration, again bool) {
	st, isStatus := status.FromError(err)
	if err == nil || !isStatus {
		return 0, false
	}
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			again = d.GetReason() == reasonMaxStreamAge || d.GetReason() == reasonTokenExpired
		case *errdetails.RetryInfo:
			retryIn = d.GetRetryDelay().AsDuration()
		}
	}
	return retryIn, again
}

// printAll prints until the call or the wanted number of frames ends: nil at
// the close of the stream too.
func (p *framePrinter) printAll(responses <-chan received[*fanfarev1.SubscribeResponse]) error {
	for {
		response, err := nextFlushed(responses, p.out)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		p.taken = true
		for _, frame := range response.GetFrames() {
			if err := p.printFrame(frame); err != nil {
				return &outputError{err}
			}
			if p.printed++; p.printed == p.wanted {
				return nil
			}
		}
		p.meter.show(response, p.remaining())
		if err := p.printNotice(response); err != nil {
			return &outputError{err}
		}
	}
}

// remaining is how many frames are still to be printed, at most.
func (p *framePrinter) remaining() uint64 {
	if p.wanted == 0 {
		return math.MaxInt64
	}
	return p.wanted - p.printed
}

func (p *framePrinter) printFrame(frame *fanfarev1.Frame) error {
	if !frame.GetEphemeral() {
		p.moveTo(frame.GetPosition())
	}
	if p.json {
		return p.display.jsonLines(p.out).write(newFrameJSON(frame))
	}
	if _, err := p.out.Write(p.display.cleanPayload(frame.GetPayload())); err != nil {
		return err
	}
	return p.out.WriteByte('\n')
}

func (p *framePrinter) printNotice(response *fanfarev1.SubscribeResponse) error {
	notice := newNotice(response)
	if notice == nil {
		return nil // frames, or a notice of a newer server
	}
	if notice.position != nil {
		p.moveTo(notice.position)
	}
	if p.json {
		return p.display.jsonLines(p.out).write(notice.object)
	}
	if notice.text == "" {
		return nil
	}
	// What was printed before the notice must be seen before it.
	if err := p.out.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(p.notices, notice.shown(p.noticeDisplay))
	return err
}

// moveTo notes the last position seen, in a frame or a notice.
func (p *framePrinter) moveTo(position *fanfarev1.Position) {
	p.last, p.resumable = position, true
}
