package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

const (
	defaultAddress = "127.0.0.1:7420"
	defaultTimeout = 30 * time.Second

	// maxMessageBytes bounds what a command takes from a server, and as a payload
	// or a line from its input. It is far above what --max-frame-bytes may be, so
	// that the server's limit is the one that is met.
	maxMessageBytes = 16 << 20
)

// connection is where a client command connects to.
type connection struct {
	server   string
	token    clientToken
	timeout  time.Duration
	progress callProgress
}

func (c *connection) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.server, "server", defaultAddress, "address of the server: host:port or unix:///PATH")
	c.token.addFlags(cmd)
}

func (c *connection) addTimeoutFlag(cmd *cobra.Command, timeout time.Duration, usage string) {
	cmd.Flags().DurationVar(&c.timeout, "timeout", timeout, usage+"; 0 waits for ever")
}

// dial returns a connection, which is made when it is first used.
func (c *connection) dial() (*grpc.ClientConn, error) {
	if c.timeout < 0 {
		return nil, usagef("--timeout must not be negative")
	}
	if err := checkServer(c.server); err != nil {
		return nil, err
	}
	options, err := c.token.dialOptions()
	if err != nil {
		return nil, err
	}
	options = append(options,
		grpc.WithStatsHandler(&c.progress),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)))
	conn, err := grpc.NewClient(c.server, options...)
	if err != nil {
		return nil, usagef("--server %q is not an address: %v", c.server, err)
	}
	return conn, nil
}

// call connects, and calls do with a context that ends after the timeout. do's
// error is made readable.
func (c *connection) call(ctx context.Context, do func(context.Context, *grpc.ClientConn) error) error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	if c.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	return c.explain(ctx, do(ctx, conn))
}

var errInterrupted = errors.New("interrupted")

// unansweredError is the error of a call that reached a server and ended
// without its answer: what was asked for may have been done.
type unansweredError struct{ message string }

func (e *unansweredError) Error() string { return e.message }

// orUnanswered adds to the error of a call that nobody answered what may have
// become of it.
func orUnanswered(err error, consequence string) error {
	var unanswered *unansweredError
	if errors.As(err, &unanswered) {
		return fmt.Errorf("%w; %s", err, consequence)
	}
	return err
}

// explain turns the status of a call into what a person at a shell needs: the
// server's message and what to do. Other errors stay as they are. It may connect
// once more, to find out what listens at the address.
func (c *connection) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) {
		return c.interrupted()
	}
	st, isStatus := status.FromError(err)
	if !isStatus {
		return err
	}
	reason := errorReason(st)
	switch {
	case st.Code() == codes.Unavailable && c.progress.unanswered():
		return &unansweredError{fmt.Sprintf("the connection to %s was lost", c.server)}
	case st.Code() == codes.Unavailable && reason == "" && !c.progress.underWay.Load():
		return c.absent(ctx, transportCause(st.Message()))
	case st.Code() == codes.Unimplemented:
		return fmt.Errorf("the server at %s is not a Fanfare server, or an older one: %s", c.server, st.Message())
	case st.Code() == codes.DeadlineExceeded:
		return c.late()
	case st.Code() == codes.Canceled:
		return c.interrupted()
	case st.Code() == codes.Unauthenticated && reason != "":
		return fmt.Errorf("%s %s; give one with --%s or %s", st.Message(), codeText(st.Code(), reason), tokenFileFlag, variableName(tokenFlag))
	default:
		return fmt.Errorf("%s %s", st.Message(), codeText(st.Code(), reason))
	}
}

// absent is the error of a call for which no connection came about.
func (c *connection) absent(ctx context.Context, cause string) error {
	if found := whatListens(ctx, c.server); found != "" {
		return fmt.Errorf("what listens at %s %s; --server takes the address that fanfare serve prints, %s by default", c.server, found, defaultAddress)
	}
	err := fmt.Errorf("no server answers at %s: %s; start one with fanfare serve, or name it with --server", c.server, cause)
	if advice := portAdvice(c.server); advice != "" {
		return fmt.Errorf("%w; %s", err, advice)
	}
	return err
}

// interrupted is the error of a call that a signal ended.
func (c *connection) interrupted() error {
	if c.progress.underWay.Load() {
		return &unansweredError{errInterrupted.Error()}
	}
	return errInterrupted
}

// late is the error of a call that took longer than the timeout. Whether the
// client or the server noticed first makes no difference.
func (c *connection) late() error {
	if c.progress.underWay.Load() {
		return &unansweredError{fmt.Sprintf("the server at %s did not answer in time (--timeout %s)", c.server, c.timeout)}
	}
	return fmt.Errorf("no connection to %s was made in time (--timeout %s)", c.server, c.timeout)
}

// codeText is how errors show a code and the server's reason, if there is one.
func codeText(code codes.Code, reason string) string {
	if reason == "" {
		return fmt.Sprintf("(%s)", code)
	}
	return fmt.Sprintf("(%s, %s)", code, reason)
}

// errorReason is the server's reason, or "" for a status that no Fanfare server
// made, such as one of the transport.
func errorReason(st *status.Status) string {
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.Reason
		}
	}
	return ""
}

// transportCause drops gRPC's wrapping from a transport's error.
func transportCause(message string) string {
	if i := strings.LastIndex(message, "desc = "); i >= 0 {
		message = message[i+len("desc = "):]
	}
	return strings.TrimPrefix(strings.Trim(message, `"`), "transport: Error while dialing: ")
}

// streamArguments requires exactly CHANNEL and SCOPE, both a valid name.
func streamArguments(_ *cobra.Command, args []string) error {
	if len(args) != 2 {
		return usagef("CHANNEL and SCOPE are needed, and nothing else; got %s (an empty scope is '')", counted(len(args), "argument"))
	}
	return limitUsage(streamOf(args).Validate(), nil)
}

// counted is a number of things: "1 argument", "2 arguments".
func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// limitUsage makes a usage error of a limit that an argument or a flag does not
// keep. flags names the flags by the protocol's fields; a field without one is
// an argument.
func limitUsage(err error, flags map[string]string) error {
	var limit *backlog.LimitError
	if !errors.As(err, &limit) {
		return err
	}
	if flag, ok := flags[limit.Field]; ok {
		return usagef("--%s %s", flag, limit.Message)
	}
	return usagef("%s", limit)
}

func streamOf(args []string) backlog.StreamName {
	return backlog.StreamName{Channel: args[0], Scope: args[1]}
}

// positionText is a position of the protocol in its text form. The absent one
// is 0-0.
func positionText(p *fanfarev1.Position) string {
	return backlog.Position{Epoch: p.GetEpoch(), Sequence: p.GetSequence()}.String()
}
