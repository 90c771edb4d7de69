package conformance_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// published is a frame as it must arrive. Its position is empty if it is ephemeral.
type published struct {
	position               string
	payload                []byte
	contentType, eventType string
	headers                map[string]string
	ephemeral              bool
}

// run is a case under way.
type run struct {
	t       *testing.T
	fleet   *fleet
	agent   *agent
	channel string
	// published are the frames of each scope; the first is number 1. publishers are
	// loads in the background.
	mu         sync.Mutex // guards published and closed
	published  map[string][]published
	publishers sync.WaitGroup
	// renewsInTime is true if the client can show a token before the last one expires, on
	// the call that it has, so that nothing is interrupted.
	renewsInTime bool
	scopes       map[string]string // of subscriptions, by id
	closed       map[string]bool   // scopes that were closed after their newest frame
	away         map[string]bool   // subscriptions that could not begin, by id
	commands     int
}

func (r *run) do(s step) {
	r.t.Helper()
	switch {
	case s.Publish != nil:
		r.publish(*s.Publish)
	case s.PublishBatch != nil:
		r.publishBatch(*s.PublishBatch)
	case s.Load != nil:
		r.load(*s.Load)
	case s.AwaitLoad:
		r.publishers.Wait()
	case s.Close != nil:
		r.retrying(func(ctx context.Context, c fanfarev1.FanfareServiceClient) error {
			_, err := c.CloseStream(ctx, &fanfarev1.CloseStreamRequest{Channel: r.channel, Scope: s.Close.Scope})
			return err
		})
		r.mu.Lock()
		r.closed[s.Close.Scope] = true
		r.mu.Unlock()
	case s.Backlog != nil:
		r.bound(s.Backlog.Frames)
	case s.Subscribe != nil:
		r.subscribe(*s.Subscribe)
	case s.Unsubscribe != nil:
		r.agent.send(message{"op": "unsubscribe", "id": *s.Unsubscribe})
	case s.Expect != nil:
		r.expect(*s.Expect)
	case s.Kill != nil:
		r.fleet.kill(r.fleet.named(*s.Kill, r.channel))
	case s.Drain != nil:
		r.fleet.drain(r.fleet.named(*s.Drain, r.channel))
	case s.Start:
		r.fleet.start()
	default:
		r.t.Fatal("a step without anything to do")
	}
}

// bound is applied at once by both replicas: they read what a subscription may
// replay from the database.
func (r *run) bound(frames uint64) {
	r.t.Helper()
	r.retrying(func(ctx context.Context, c fanfarev1.FanfareServiceClient) error {
		_, err := c.SetPolicy(ctx, &fanfarev1.SetPolicyRequest{Policy: &fanfarev1.Policy{Channel: r.channel, Backlog: &frames}})
		return err
	})
}

// retrying asks a running replica until it answers.
func (r *run) retrying(call func(context.Context, fanfarev1.FanfareServiceClient) error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	err := tried(ctx, func() error {
		err := call(ctx, r.fleet.running()[0].client)
		if status.Code(err) != codes.Unavailable { // a replica that has just started
			return backoff.Permanent(err)
		}
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// tried tries something again and again until ctx ends.
func tried(ctx context.Context, try func() error) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, try() },
		backoff.WithBackOff(backoff.NewConstantBackOff(10*time.Millisecond)))
	return err
}

func (r *run) frame(p publishStep) message {
	m := message{
		"channel": r.channel, "scope": p.Scope, "payload": base64.StdEncoding.EncodeToString(p.Payload),
		"content_type": p.ContentType, "event_type": p.EventType, "headers": p.Headers,
		"idempotency_key": p.Key, "ephemeral": p.Ephemeral,
	}
	if p.Headers == nil {
		m["headers"] = map[string]string{}
	}
	if p.Expected != nil {
		m["expected_sequence"] = *p.Expected
	}
	return m
}

func (r *run) nextCommand() string {
	r.commands++
	return "command-" + strconv.Itoa(r.commands)
}

func (r *run) publish(p publishStep) {
	r.t.Helper()
	m := r.frame(p)
	m["op"], m["id"] = "publish", r.nextCommand()
	r.agent.send(m)
	answer := r.agent.next(m.text("id"))
	if r.refused(answer, p.Error) {
		return
	}
	if got := answer.text("event"); got != "published" {
		r.t.Fatalf("the answer to a publish is %v", answer)
	}
	r.record(p, answer)
}

func (r *run) publishBatch(b batchStep) {
	r.t.Helper()
	id := r.nextCommand()
	var frames []message
	for _, f := range b.Frames {
		frames = append(frames, r.frame(f))
	}
	r.agent.send(message{"op": "publish_batch", "id": id, "frames": frames})
	answer := r.agent.next(id)
	if r.refused(answer, b.Error) {
		return
	}
	results, _ := answer["results"].([]any)
	if answer.text("event") != "published_batch" || len(results) != len(b.Frames) {
		r.t.Fatalf("the answer to a batch of %d frames is %v", len(b.Frames), answer)
	}
	for i, f := range b.Frames {
		result, _ := results[i].(map[string]any)
		r.record(f, result)
	}
}

// refused reports whether the server has refused something, as it must.
func (r *run) refused(answer message, want string) bool {
	r.t.Helper()
	if want == "" {
		return false
	}
	if got := errorOf(answer); got != want {
		r.t.Fatalf("refused with %s, want %s: %v", got, want, answer)
	}
	return true
}

func errorOf(m message) string {
	if m.text("event") != "error" {
		return "nothing"
	}
	return m.text("code") + "/" + m.text("reason")
}

func (r *run) record(p publishStep, answer message) {
	r.t.Helper()
	position, duplicate := answer.text("position"), answer["duplicate"]
	if duplicate != (p.DuplicateOf > 0) {
		r.t.Fatalf("published with duplicate = %v: %v", duplicate, answer)
	}
	if p.DuplicateOf > 0 {
		if want := r.at(p.Scope, p.DuplicateOf).position; position != want {
			r.t.Fatalf("a duplicate of %s has the position %s", want, position)
		}
		return
	}
	if (position == "") != p.Ephemeral {
		r.t.Fatalf("published with position %q: %v", position, answer)
	}
	r.add(p.Scope, published{position, p.Payload, p.ContentType, p.EventType, p.Headers, p.Ephemeral})
}

func (r *run) add(scope string, f published) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.published[scope] = append(r.published[scope], f)
	r.closed[scope] = false
}

// at returns the frame with a number.
func (r *run) at(scope string, number int) published {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if number < 1 || number > len(r.published[scope]) {
		r.t.Fatalf("frame %d of scope %q was not published", number, scope)
	}
	return r.published[scope][number-1]
}

// load publishes frames one after another, whatever happens to replicas.
func (r *run) load(l loadStep) {
	r.t.Helper()
	publish := func() {
		pace := time.NewTicker(max(time.Duration(l.Every), 1))
		defer pace.Stop()
		for i := range l.Frames {
			<-pace.C
			if err := r.loadOne(l, i); err != nil {
				r.t.Errorf("load of scope %q: %v", l.Scope, err)
				return
			}
		}
	}
	if !l.Background {
		publish()
		return
	}
	r.publishers.Go(publish)
}

func (r *run) loadOne(l loadStep, i int) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), patience)
	defer cancel()
	body := pattern(max(l.Bytes, 1), i)
	request := &fanfarev1.PublishRequest{Frame: &fanfarev1.NewFrame{
		Channel: r.channel, Scope: l.Scope, Payload: body,
		IdempotencyKey: fmt.Sprintf("load-%d-%p", i, &body[0]),
	}}
	attempt := -1
	return tried(ctx, func() error {
		// Both in turn: one of them may be away.
		attempt++
		once, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		answer, err := r.fleet.replicas[attempt%len(r.fleet.replicas)].client.Publish(once, request)
		if err != nil {
			return err
		}
		p := answer.GetPosition()
		r.add(l.Scope, published{position: fmt.Sprintf("%d-%d", p.GetEpoch(), p.GetSequence()), payload: body})
		return nil
	})
}

func (r *run) subscribe(s subscribeStep) {
	r.t.Helper()
	r.scopes[s.ID] = s.Scope
	r.settle(s.Scope)
	r.agent.send(message{"op": "subscribe", "id": s.ID, "channel": r.channel, "scope": s.Scope, "start": r.start(s)})
}

// start is the start of a subscription, with a position for the number of a frame.
func (r *run) start(s subscribeStep) map[string]any {
	r.t.Helper()
	start := make(map[string]any)
	if err := strictly(s.Start, &start); err != nil {
		r.t.Fatal(err)
	}
	start = maps.Clone(start)
	if after, ok := start["after"].(string); ok {
		start["after"] = r.position(s.Scope, after)
	}
	return start
}

// settle waits until every replica has heard of the newest frame of a scope: what was
// published through one reaches the others a moment later, and a subscription that
// begins before that has caught up earlier than a case says.
func (r *run) settle(scope string) {
	r.t.Helper()
	newest := r.newest(scope)
	if newest == "" {
		return
	}
	for _, replica := range r.fleet.running() {
		ctx, cancel := context.WithTimeout(r.t.Context(), patience)
		stream, err := replica.client.Subscribe(ctx, &fanfarev1.SubscribeRequest{
			Channel: r.channel, Scope: scope, Start: &fanfarev1.SubscribeRequest_Last{Last: 1},
		})
		for seen := ""; err == nil && seen != newest; {
			var response *fanfarev1.SubscribeResponse
			if response, err = stream.Recv(); len(response.GetFrames()) > 0 {
				p := response.GetFrames()[len(response.GetFrames())-1].GetPosition()
				seen = fmt.Sprintf("%d-%d", p.GetEpoch(), p.GetSequence())
			}
		}
		cancel()
		if err != nil && status.Code(err) != codes.Unavailable { // it has just started
			r.t.Fatalf("the newest frame of scope %q at %s: %v", scope, replica.address, err)
		}
	}
}

// newest returns the position of the newest durable frame of a scope, unless the
// stream has been closed since.
func (r *run) newest(scope string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range slices.Backward(r.published[scope]) {
		if !f.ephemeral && !r.closed[scope] {
			return f.position
		}
	}
	return ""
}
