// Command goagent is the agent of the Go client for the conformance cases: it takes
// commands on standard input and tells events on standard output, one JSON object a
// line. README.md beside it says which.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fanfare-io/fanfare/clientlib"
)

// maxLine bounds a command: a frame of some MiB in base64.
const maxLine = 16 << 20

func main() { os.Exit(run(context.Background(), os.Stdin, os.Stdout, os.Stderr)) }

func run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithCancel(ctx)
	a := &agent{out: stdout, subscriptions: map[string]*clientlib.Subscription{}}
	err := a.serve(ctx, stdin)
	cancel()
	a.close()
	if err != nil {
		fmt.Fprintln(stderr, "goagent:", err)
		return 1
	}
	return 0
}

// agent plays the commands.
type agent struct {
	conn   *grpc.ClientConn
	client *clientlib.Client
	tasks  sync.WaitGroup
	// subscriptions are by id. Only the goroutine that takes commands uses them.
	subscriptions map[string]*clientlib.Subscription

	mu  sync.Mutex // guards what follows
	out io.Writer
	// tokens are those that the source of the client has left.
	tokens []string
}

// serve takes commands until quit or the end of input.
func (a *agent) serve(ctx context.Context, stdin io.Reader) error {
	lines := bufio.NewScanner(stdin)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return fmt.Errorf("command %.200q: %w", lines.Text(), err)
		}
		if c.Op == "quit" {
			return nil
		}
		if err := a.do(ctx, c); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (a *agent) do(ctx context.Context, c command) error {
	switch c.Op {
	case "connect":
		return a.connect(c)
	case "tokens":
		a.mu.Lock()
		a.tokens = c.Tokens.texts
		a.mu.Unlock()
	case "publish":
		a.tasks.Go(func() { a.publish(ctx, c) })
	case "publish_batch":
		a.tasks.Go(func() { a.publishBatch(ctx, c) })
	case "subscribe":
		start, err := c.Start.start()
		if err != nil {
			return err
		}
		s := a.client.Subscribe(ctx, c.stream(), start)
		a.subscriptions[c.ID] = s
		a.tasks.Go(func() { a.follow(ctx, c.ID, s) })
	case "unsubscribe":
		if s := a.subscriptions[c.ID]; s != nil {
			delete(a.subscriptions, c.ID)
			return s.Close()
		}
	default:
		a.tell(failure{ID: c.ID, Event: "error", Code: "UNIMPLEMENTED"})
	}
	return nil
}

func (a *agent) connect(c command) (err error) {
	if a.client != nil {
		return errors.New("connect came twice")
	}
	a.conn, err = clientlib.Connect(c.Targets, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	var options []clientlib.Option
	if c.Session {
		options = append(options, clientlib.WithSession())
	}
	if c.Tokens.wanted {
		options = append(options, clientlib.WithTokenSource(a.token))
	}
	a.client = clientlib.New(a.conn, options...)
	a.tell(map[string]any{"event": "connected", "language": "go", "features": []string{"session"}})
	return nil
}

// token is a source of tokens: the next one if that is wanted and there is one.
func (a *agent) token(_ context.Context, refresh bool) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if refresh && len(a.tokens) > 1 {
		a.tokens = a.tokens[1:]
	}
	if len(a.tokens) == 0 {
		return "", errors.New("there are no tokens")
	}
	return a.tokens[0], nil
}

func (a *agent) close() {
	if a.client == nil {
		return
	}
	_ = a.client.Close()
	a.tasks.Wait()
	_ = a.conn.Close()
}

func (a *agent) publish(ctx context.Context, c command) {
	result, err := a.client.Publish(ctx, c.newFrame())
	if err != nil {
		a.tell(failureOf(c.ID, err))
		return
	}
	a.tell(publishedOf(c.ID, result))
}

func (a *agent) publishBatch(ctx context.Context, c command) {
	frames := make([]clientlib.NewFrame, len(c.Frames))
	for i, f := range c.Frames {
		frames[i] = f.newFrame()
	}
	results, err := a.client.PublishBatch(ctx, frames)
	if err != nil {
		a.tell(failureOf(c.ID, err))
		return
	}
	told := publishedBatch{ID: c.ID, Event: "published_batch"}
	for _, r := range results {
		told.Results = append(told.Results, resultOf(r))
	}
	a.tell(told)
}

// follow tells a subscription's events to its end.
func (a *agent) follow(ctx context.Context, id string, s *clientlib.Subscription) {
	for e, err := range s.All(ctx) {
		if err != nil {
			a.tell(failureOf(id, err))
			return
		}
		a.tell(eventOf(id, e))
	}
	a.tell(notice{ID: id, Event: "ended"})
}

// tell writes an event. Where nobody reads them any more, the end of input comes next.
func (a *agent) tell(event any) {
	line, err := json.Marshal(event)
	if err != nil {
		panic(err) // all are made of strings, numbers and booleans
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	_, _ = a.out.Write(append(line, '\n'))
}
