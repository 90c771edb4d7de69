package clientlib_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"time"

	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/fanfare-io/fanfare/clientlib"
)

// Publish a frame, and read the stream from its oldest frame on.
func Example() {
	_, client, end := serve()
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	order := clientlib.Stream{Channel: "orders", Scope: "4711"}
	published, err := client.Publish(ctx, clientlib.NewFrame{Stream: order, Payload: []byte("paid"), ContentType: "text/plain"})
	if err != nil {
		log.Panic(err)
	}
	fmt.Println("published as number", published.Position.Sequence)

	subscription := client.Subscribe(ctx, order, clientlib.Oldest())
	defer subscription.Close()
	for event, err := range subscription.All(ctx) {
		if err != nil {
			log.Panic(err)
		}
		if frame, ok := event.(*clientlib.Frame); ok {
			fmt.Println(frame.Position.Sequence, string(frame.Payload))
			break
		}
	}
	// Output:
	// published as number 1
	// 1 paid
}

// One name that stands for all replicas, and what a program should decide for itself.
func ExampleNew() {
	address, _, end := serve()
	defer end()
	conn, err := grpc.NewClient(address, append(clientlib.DialOptions(), insecureConnection)...)
	if err != nil {
		log.Panic(err)
	}
	defer conn.Close()
	client := clientlib.New(conn,
		clientlib.WithBackoff(200*time.Millisecond, 10*time.Second),
		clientlib.WithAttemptTimeout(10*time.Second),
		clientlib.WithIdleTimeout(time.Minute),
		clientlib.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))),
	)
	defer client.Close()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err = client.Publish(ctx, clientlib.NewFrame{Stream: clientlib.Stream{Channel: "news"}, Payload: []byte("hello")})
	fmt.Println(err)
	// Output: <nil>
}

// Several addresses: one that is away does not matter.
func ExampleConnect() {
	address, _, end := serve()
	defer end()
	conn, err := clientlib.Connect([]string{"127.0.0.1:1", address}, insecureConnection)
	if err != nil {
		log.Panic(err)
	}
	defer conn.Close()
	client := clientlib.New(conn)
	defer client.Close()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err = client.Publish(ctx, clientlib.NewFrame{Stream: clientlib.Stream{Channel: "news"}, Payload: []byte("hello")})
	fmt.Println(err)
	// Output: <nil>
}

// A frame that is stored only if nobody else published meanwhile.
func ExampleClient_Publish_expected() {
	_, client, end := serve()
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	seat := clientlib.Stream{Channel: "seats", Scope: "12F"}
	book := func(name string) {
		_, err := client.Publish(ctx, clientlib.NewFrame{Stream: seat, Payload: []byte(name), Expected: &clientlib.Expected{Sequence: 0}})
		var refused *clientlib.Error
		if errors.As(err, &refused) && refused.Reason == clientlib.ReasonExpectationFailed {
			fmt.Println(name, "is too late, the head has sequence", refused.Position.Sequence)
			return
		}
		fmt.Println(name, "has the seat", err)
	}
	book("Ada")
	book("Grace")
	// Output:
	// Ada has the seat <nil>
	// Grace is too late, the head has sequence 1
}

// With a key of one's own a whole program can be run again.
func ExampleClient_Publish_key() {
	_, client, end := serve()
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	payment := clientlib.NewFrame{Stream: clientlib.Stream{Channel: "payments"}, Payload: []byte("10 €"), IdempotencyKey: "invoice 17"}
	for range 2 {
		published, err := client.Publish(ctx, payment)
		fmt.Println(published.Position.Sequence, published.Duplicate, err)
	}
	// Output:
	// 1 false <nil>
	// 1 true <nil>
}

// Without keys, and with ephemeral frames, it is for the caller to decide what an unknown
// outcome means.
func ExampleWithoutIdempotencyKeys() {
	_, client, end := serve(clientlib.WithoutIdempotencyKeys())
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	_, err := client.Publish(ctx, clientlib.NewFrame{Stream: clientlib.Stream{Channel: "cursors"}, Payload: []byte("3,4"), Ephemeral: true})
	if errors.Is(err, clientlib.ErrOutcomeUnknown) {
		err = nil // the next one comes in a moment
	}
	fmt.Println(err)
	// Output: <nil>
}

// Frames of several streams, all or none.
func ExampleClient_PublishBatch() {
	_, client, end := serve()
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	from, to := clientlib.Stream{Channel: "accounts", Scope: "1"}, clientlib.Stream{Channel: "accounts", Scope: "2"}
	results, err := client.PublishBatch(ctx, []clientlib.NewFrame{
		{Stream: from, Payload: []byte("-10")}, {Stream: to, Payload: []byte("+10")},
	})
	fmt.Println(len(results), err)
	// Output: 2 <nil>
}

// Many frames, without a round trip for each.
func ExampleClient_NewPublisher() {
	_, client, end := serve()
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	publisher := client.NewPublisher(ctx, clientlib.WithWindow(100, 1<<20))
	var pending []*clientlib.Pending
	for i := range 1000 {
		p, err := publisher.Publish(ctx, clientlib.NewFrame{Stream: clientlib.Stream{Channel: "samples"}, Payload: fmt.Append(nil, i)})
		if err != nil {
			log.Panic(err)
		}
		pending = append(pending, p)
	}
	if err := publisher.Close(); err != nil {
		log.Panic(err)
	}
	for _, p := range pending {
		if _, err := p.Wait(ctx); err != nil {
			fmt.Printf("%s with the key %s: %v\n", p.Frame().Payload, p.Frame().IdempotencyKey, err)
		}
	}
	last, err := pending[999].Wait(ctx)
	fmt.Println(last.Position.Sequence, err)
	// Output: 1000 <nil>
}

// All kinds of events.
func ExampleClient_Subscribe() {
	_, client, end := serve()
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	room := clientlib.Stream{Channel: "chat", Scope: "lobby"}
	for _, text := range []string{"hi", "anybody here?", "yes"} {
		if _, err := client.Publish(ctx, clientlib.NewFrame{Stream: room, Payload: []byte(text)}); err != nil {
			log.Panic(err)
		}
	}

	subscription := client.Subscribe(ctx, room, clientlib.Last(2), clientlib.WithReadAhead(64<<10))
	defer subscription.Close()
	for caughtUp := false; !caughtUp; {
		event, err := subscription.Next(ctx)
		if errors.Is(err, io.EOF) {
			return // the stream was closed
		}
		if err != nil {
			log.Panic(err) // trying again does not help
		}
		switch event := event.(type) {
		case *clientlib.Subscribed:
			fmt.Println("what is published from now on will come; the head is", event.Head.Sequence)
		case *clientlib.Frame:
			fmt.Println(event.Position.Sequence, string(event.Payload))
		case *clientlib.CaughtUp:
			fmt.Println("this was the backlog")
			caughtUp = true
		case *clientlib.Gap:
			fmt.Println("frames are missing:", event.Reason)
		case *clientlib.Status:
			fmt.Println("the server hears of new frames:", event.Listening)
		case *clientlib.Interrupted:
			fmt.Println("trying again in", event.RetryIn, "because of", event.Err)
		case *clientlib.Closed:
			fmt.Println("the stream was closed after", event.Last.Sequence)
		}
	}
	// Output:
	// what is published from now on will come; the head is 3
	// 2 anybody here?
	// 3 yes
	// this was the backlog
}

// A program that is run again goes on where it was: it stores the position when it has
// dealt with a frame.
func ExampleSubscription_Position() {
	_, client, end := serve()
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	jobs := clientlib.Stream{Channel: "jobs"}
	for i := range 5 {
		if _, err := client.Publish(ctx, clientlib.NewFrame{Stream: jobs, Payload: fmt.Append(nil, "job ", i+1)}); err != nil {
			log.Panic(err)
		}
	}

	stored := "" // in a file or a database
	runOnce := func(count int) {
		start := clientlib.Oldest()
		if stored != "" {
			position, err := clientlib.ParsePosition(stored)
			if err != nil {
				log.Panic(err)
			}
			start = clientlib.After(position)
		}
		subscription := client.Subscribe(ctx, jobs, start)
		defer subscription.Close()
		for event, err := range subscription.All(ctx) {
			if err != nil {
				log.Panic(err)
			}
			if frame, ok := event.(*clientlib.Frame); ok {
				fmt.Println(string(frame.Payload))
				stored = subscription.Position().String()
				if count--; count == 0 {
					return
				}
			}
		}
	}
	runOnce(2)
	fmt.Println("and again")
	runOnce(3)
	// Output:
	// job 1
	// job 2
	// and again
	// job 3
	// job 4
	// job 5
}

// Many subscriptions over one call.
func ExampleWithSession() {
	_, client, end := serve(clientlib.WithSession())
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	var subscriptions []*clientlib.Subscription
	for i := range 100 {
		s := client.Subscribe(ctx, clientlib.Stream{Channel: "sensors", Scope: fmt.Sprint(i)}, clientlib.Live())
		defer s.Close()
		subscriptions = append(subscriptions, s)
	}
	acknowledged := 0
	for _, s := range subscriptions {
		event, err := s.Next(ctx)
		if _, ok := event.(*clientlib.Subscribed); ok && err == nil {
			acknowledged++
		}
	}
	fmt.Println(acknowledged)
	// Output: 100
}

// Tokens come from elsewhere, and are asked for again when one was refused.
func ExampleWithTokenSource() {
	token := ""
	source := func(ctx context.Context, refresh bool) (string, error) {
		if token == "" || refresh {
			token = "from the identity provider"
		}
		return token, nil
	}
	_, client, end := serve(clientlib.WithTokenSource(source))
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := client.Publish(ctx, clientlib.NewFrame{Stream: clientlib.Stream{Channel: "news"}, Payload: []byte("hello")})
	fmt.Println(err)
	// Output: <nil>
}

// A trace that goes on where a frame is received.
func ExampleClient_FrameContext() {
	traces, meters := sdktrace.NewTracerProvider(), sdkmetric.NewMeterProvider()
	_, client, end := serve(
		clientlib.WithTracerProvider(traces),
		clientlib.WithMeterProvider(meters),
		clientlib.WithPropagator(propagation.TraceContext{}),
	)
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	ctx, span := traces.Tracer("example").Start(ctx, "request")
	news := clientlib.Stream{Channel: "news"}
	if _, err := client.Publish(ctx, clientlib.NewFrame{Stream: news, Payload: []byte("hello")}); err != nil {
		log.Panic(err)
	}
	span.End()
	for event := range client.Subscribe(ctx, news, clientlib.Oldest()).All(ctx) {
		if frame, ok := event.(*clientlib.Frame); ok {
			received := client.FrameContext(context.Background(), frame)
			fmt.Println(trace.SpanContextFromContext(received).TraceID() == span.SpanContext().TraceID())
			break
		}
	}
	// Output: true
}
