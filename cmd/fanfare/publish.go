package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// publishOptions are the flags of fanfare publish.
type publishOptions struct {
	connection
	data, file             string
	lines                  bool
	eventType, contentType string
	headers                []string
	key                    string
	expected               uint64
	ephemeral              bool
	json                   bool
}

// done is what a frame is that was published.
func (o *publishOptions) done() string {
	if o.ephemeral {
		return "published"
	}
	return "stored"
}

func (p *program) publishCommand() *cobra.Command {
	var o publishOptions
	cmd := &cobra.Command{
		Use:   "publish CHANNEL SCOPE",
		Short: "Publish a frame, or each line of standard input as one",
		Long: `Publishes a frame and prints its position, EPOCH-SEQUENCE, after the commit.

Without --data or --file the payload is the whole of standard input. With
--lines each line of it is a frame: the line feed is stripped, everything else
is kept, empty lines too. After a line that fails no more are sent; those that
are on their way may still be stored. The positions of all lines that are stored
are printed, in the order of the lines, and the error names those lines, those
that are not stored, and those of which it is not known. A bar on the terminal
shows how far a long run is.

With --ephemeral nothing is stored: the frame reaches those who are subscribed,
among the stream's other frames, and nobody later. It has no position, so none is
printed; with --json it is null.`,
		Example: `  fanfare publish chat/messages lobby --data 'hello'
  fanfare publish images plan-7 --file plan.png --content-type image/png
  fanfare publish import run-12 --lines < rows.jsonl > positions
  jq -c '.[]' rows.json | fanfare publish import run-12 --lines
  fanfare publish orders 4711 --data paid --key payment-99       # safe to retry
  fanfare publish orders 4711 --data paid --expected 3           # only as number 4
  fanfare publish chat/typing lobby --data ann --ephemeral       # nothing is stored`,
		Args: streamArguments,
		RunE: action(func(cmd *cobra.Command, args []string) error {
			frame, err := o.frame(cmd, args)
			if err != nil {
				return err
			}
			surviveBrokenPipes()
			if o.lines {
				return p.publishLines(cmd.Context(), &o, frame)
			}
			return p.publishOne(cmd.Context(), &o, cmd, frame)
		}),
	}
	o.addFlags(cmd)
	o.addTimeoutFlag(cmd, defaultTimeout, "how long to wait for the answer; with --lines, for those that are missing when no more lines are sent")
	f := cmd.Flags()
	f.StringVar(&o.data, "data", "", "the payload, as text")
	f.StringVar(&o.file, "file", "", "the file that is the payload")
	f.BoolVar(&o.lines, "lines", false, "publish each line of standard input as a frame; not with --key or --expected")
	f.StringVar(&o.eventType, "event-type", "", "the frame's event type")
	f.StringVar(&o.contentType, "content-type", "", "the frame's content type, such as application/json")
	f.StringArrayVar(&o.headers, "header", nil, "a header, `NAME=VALUE`; may be repeated")
	f.StringVar(&o.key, "key", "", "idempotency key: publishing again under it stores nothing and prints the first position")
	f.Uint64Var(&o.expected, "expected", 0, "publish only if this is the sequence of the stream's newest frame; 0: it has none")
	f.BoolVar(&o.ephemeral, "ephemeral", false, "do not store: only for those who are subscribed; not with --key or --expected")
	f.BoolVar(&o.json, "json", false, "print a JSON object for each frame that is published")
	return cmd
}

// frame makes the frame to publish, without its payload.
func (o *publishOptions) frame(cmd *cobra.Command, args []string) (*fanfarev1.NewFrame, error) {
	stream := streamOf(args)
	frame := &fanfarev1.NewFrame{
		Channel:        stream.Channel,
		Scope:          stream.Scope,
		ContentType:    o.contentType,
		EventType:      o.eventType,
		IdempotencyKey: o.key,
		Ephemeral:      o.ephemeral,
	}
	if cmd.Flags().Changed("expected") {
		frame.ExpectedSequence = &o.expected
	}
	var err error
	if frame.Headers, err = parseHeaders(o.headers); err != nil {
		return nil, err
	}
	return frame, checkFrame(frame)
}

// fieldFlags are the flags of a frame's fields.
var fieldFlags = map[string]string{
	"content_type":      "content-type",
	"event_type":        "event-type",
	"headers":           "header",
	"idempotency_key":   "key",
	"expected_sequence": "expected",
}

// checkFrame refuses what every server refuses. How large a payload may be only
// the server knows.
func checkFrame(frame *fanfarev1.NewFrame) error {
	publication := backlog.Publication{
		Stream:         backlog.StreamName{Channel: frame.GetChannel(), Scope: frame.GetScope()},
		ContentType:    frame.GetContentType(),
		EventType:      frame.GetEventType(),
		Headers:        frame.GetHeaders(),
		IdempotencyKey: frame.GetIdempotencyKey(),
		Ephemeral:      frame.GetEphemeral(),
	}
	if frame.ExpectedSequence != nil {
		publication.Expected = &backlog.Expectation{Sequence: frame.GetExpectedSequence()}
	}
	return limitUsage(publication.Validate(math.MaxInt), fieldFlags)
}

func parseHeaders(entries []string) (map[string]string, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	headers := make(map[string]string, len(entries))
	for _, entry := range entries {
		name, value, found := strings.Cut(entry, "=")
		if !found || name == "" {
			return nil, usagef("--header %q is not NAME=VALUE", entry)
		}
		if _, twice := headers[name]; twice {
			return nil, usagef("--header %s is given twice", name)
		}
		headers[name] = value
	}
	return headers, nil
}

// publishOne publishes one frame and prints its position.
func (p *program) publishOne(ctx context.Context, o *publishOptions, cmd *cobra.Command, frame *fanfarev1.NewFrame) error {
	var err error
	if frame.Payload, err = p.payload(ctx, o, cmd); err != nil {
		return err
	}
	err = o.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		answer, err := fanfarev1.NewFanfareServiceClient(conn).Publish(ctx, &fanfarev1.PublishRequest{Frame: frame})
		if err != nil {
			return err
		}
		out := bufio.NewWriter(p.stdout)
		if err := cmp.Or(positionPrinter{out, o.json}.print(answer, 0), flush(out)); err != nil {
			return unprinted(err, answer)
		}
		switch {
		case o.json:
		case answer.GetDuplicate():
			fmt.Fprintln(p.stderr, "the key is known: nothing was stored, this is the position of the first publish")
		case answer.GetPosition() == nil:
			p.sayNotStored("")
		}
		return nil
	})
	switch {
	case o.ephemeral:
		return orUnanswered(err, "the frame may have been published, and a retry may deliver it twice")
	case o.key == "":
		return orUnanswered(err, "the frame may have been stored, and a retry may store it twice: only a retry with the same --key is safe")
	default:
		return orUnanswered(err, "the frame may have been stored; retry with the same --key to learn it")
	}
}

// sayNotStored tells people, who would miss the position, that there is none.
// what begins the sentence; it may be empty.
func (p *program) sayNotStored(what string) {
	if isTerminal(p.stderr) {
		fmt.Fprintln(p.stderr, p.display(p.stderr).paint(quietStyle, what+"published, not stored"))
	}
}

// unprinted adds to an error of standard output what became of the frame, which
// a retry without a key would store twice.
func unprinted(err error, answer *fanfarev1.PublishResponse) error {
	if answer.GetPosition() == nil {
		return fmt.Errorf("%w; the frame is published, not stored", err)
	}
	position := positionText(answer.GetPosition())
	if answer.GetDuplicate() {
		return fmt.Errorf("%w; the key is known: nothing was stored, the first publish is at %s", err, position)
	}
	return fmt.Errorf("%w; the frame is stored, at %s", err, position)
}

// payload reads the payload from where the flags say.
func (p *program) payload(ctx context.Context, o *publishOptions, cmd *cobra.Command) ([]byte, error) {
	switch {
	case cmd.Flags().Changed("data"):
		return []byte(o.data), nil
	case cmd.Flags().Changed("file"):
		file, err := os.Open(o.file)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		return readPayload(file)
	default:
		if isTerminal(p.stdin) {
			fmt.Fprintln(p.stderr, "reading the payload from the terminal; end it with Ctrl-D, or give --data")
		}
		return interruptible(ctx, func() ([]byte, error) { return readPayload(p.stdin) })
	}
}

// readPayload reads everything, within reason.
func readPayload(r io.Reader) ([]byte, error) {
	payload, err := io.ReadAll(io.LimitReader(r, maxMessageBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reading the payload: %w", err)
	}
	if len(payload) > maxMessageBytes {
		return nil, fmt.Errorf("the payload has more than %d bytes", maxMessageBytes)
	}
	return payload, nil
}

// interruptible returns what read does, or an error as soon as ctx ends. A read
// of standard input cannot be cancelled: it is then left to the process's end.
func interruptible[T any](ctx context.Context, read func() (T, error)) (T, error) {
	c := make(chan received[T], 1)
	go func() {
		value, err := read()
		c <- received[T]{value, err}
	}()
	select {
	case r := <-c:
		return r.message, r.err
	case <-ctx.Done():
		var none T
		return none, errors.New("interrupted while reading standard input; nothing was published")
	}
}

// positionPrinter prints what became of published frames.
type positionPrinter struct {
	out  io.Writer
	json bool
}

// publishedJSON is what publish prints for a frame with --json.
type publishedJSON struct {
	Type string `json:"type"`
	// Position is nil for an ephemeral frame.
	Position  *string `json:"position"`
	Duplicate bool    `json:"duplicate"`
	// Line counts from 1, with --lines.
	Line uint64 `json:"line,omitempty"`
}

// print prints one answer; line is 0 without --lines. Of an ephemeral frame there
// is nothing to print but as JSON.
func (p positionPrinter) print(answer *fanfarev1.PublishResponse, line uint64) error {
	var position *string
	if answer.GetPosition() != nil {
		position = new(positionText(answer.GetPosition()))
	}
	var err error
	switch {
	case p.json:
		err = newJSONLines(p.out).write(publishedJSON{"published", position, answer.GetDuplicate(), line})
	case position != nil:
		_, err = fmt.Fprintln(p.out, *position)
	}
	if err != nil {
		return &outputError{err}
	}
	return nil
}

func flush(out *bufio.Writer) error {
	if err := out.Flush(); err != nil {
		return &outputError{err}
	}
	return nil
}
