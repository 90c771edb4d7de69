package clientlib_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/fanfare-io/fanfare/clientlib"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// What a program can do about a publish that failed.
func ExampleError() {
	_, client, end := serve()
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	advice := func(err error) string {
		var e *clientlib.Error
		switch {
		case err == nil:
			return "published"
		case errors.Is(err, clientlib.ErrOutcomeUnknown): // the reason is ReasonOutcomeUnknown
			return "look whether it was published"
		case errors.Is(err, clientlib.ErrClosed):
			return "use another client"
		case !errors.As(err, &e):
			return "nothing was sent"
		}
		switch e.Reason {
		case clientlib.ReasonInvalidField:
			return "mend " + e.Field
		case clientlib.ReasonKeyConflict, clientlib.ReasonPartlyDuplicate:
			return "take other keys: these were used for other frames"
		case clientlib.ReasonExpectationFailed:
			return fmt.Sprint("decide again, the head has sequence ", e.Position.Sequence)
		case clientlib.ReasonPublishQueueFull, clientlib.ReasonLimitReached, clientlib.ReasonDraining:
			return fmt.Sprint("publish it later, in ", e.RetryIn)
		default:
			return "tell somebody"
		}
	}
	news := clientlib.Stream{Channel: "news"}
	for _, frame := range []clientlib.NewFrame{
		{Stream: news, IdempotencyKey: "first"},
		{Stream: news, IdempotencyKey: "first", Payload: []byte("another")},
		{Stream: news, Expected: &clientlib.Expected{Sequence: 7}},
		{Stream: news, EventType: "two\nlines"},
	} {
		_, err := client.Publish(ctx, frame)
		fmt.Println(advice(err))
	}
	client.Close()
	_, err := client.Subscribe(ctx, news, clientlib.Live()).Next(ctx)
	fmt.Println(advice(err))
	// Output:
	// published
	// take other keys: these were used for other frames
	// decide again, the head has sequence 1
	// mend frame.event_type
	// use another client
}

// Where frames are missing, a program that needs all of them loads what they led to from
// elsewhere.
func ExampleGap() {
	address, client, end := serve()
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	news := clientlib.Stream{Channel: "news"}
	for range 2 {
		if _, err := client.Publish(ctx, clientlib.NewFrame{Stream: news}); err != nil {
			log.Panic(err)
		}
	}
	closeStream(ctx, address, news) // and the next frame begins another numbering
	if _, err := client.Publish(ctx, clientlib.NewFrame{Stream: news, Payload: []byte("anew")}); err != nil {
		log.Panic(err)
	}

	stored := clientlib.Position{Epoch: 1, Sequence: 2} // by another program, long ago
	subscription := client.Subscribe(ctx, news, clientlib.After(stored))
	defer subscription.Close()
	for event, err := range subscription.All(ctx) {
		if err != nil {
			log.Panic(err) // ErrNotContiguous, if a server delivers holes without a Gap
		}
		switch event := event.(type) {
		case *clientlib.Gap:
			switch event.Reason {
			case clientlib.EphemeralMaybeMissed:
				fmt.Println("no durable frame is missing")
			case clientlib.Trimmed:
				fmt.Println("frames up to", event.Oldest, "are not kept any more")
			case clientlib.EpochChanged, clientlib.Ahead:
				fmt.Println("another numbering, which goes on after", event.ResumeAfter.Sequence)
			default:
				fmt.Println("something is missing:", event.Reason)
			}
		case *clientlib.Frame:
			fmt.Printf("%d %s\n", event.Position.Sequence, event.Payload)
			return
		}
	}
	// Output:
	// another numbering, which goes on after 0
	// 1 anew
}

// What interrupts a subscription is over by itself; which of it is worth a look?
func ExampleInterrupted() {
	worthALook := func(interrupted *clientlib.Interrupted) bool {
		var e *clientlib.Error
		if !errors.As(interrupted.Err, &e) {
			return true
		}
		switch e.Reason {
		case clientlib.ReasonDraining, clientlib.ReasonMaxStreamAge:
			return false // as servers do in the course of their lives
		case clientlib.ReasonSlowSubscriber:
			return true // this program does not keep up
		default:
			return !errors.Is(e, clientlib.ErrNotContiguous) || interrupted.RetryIn > time.Second
		}
	}
	fmt.Println(worthALook(&clientlib.Interrupted{Err: &clientlib.Error{Reason: clientlib.ReasonDraining}}))
	fmt.Println(worthALook(&clientlib.Interrupted{Err: &clientlib.Error{Reason: clientlib.ReasonSlowSubscriber}}))
	// Output:
	// false
	// true
}

// closeStream closes a stream by the generated stubs.
func closeStream(ctx context.Context, address string, s clientlib.Stream) {
	conn, err := clientlib.Connect([]string{address}, insecureConnection)
	if err != nil {
		log.Panic(err)
	}
	defer conn.Close()
	request := &fanfarev1.CloseStreamRequest{Channel: s.Channel, Scope: s.Scope}
	if _, err := fanfarev1.NewFanfareServiceClient(conn).CloseStream(ctx, request); err != nil {
		log.Panic(err)
	}
}
