package service

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// fakeSession is a Session whose client takes what the test has it take.
type fakeSession struct {
	*fakeCall
	requests chan *fanfarev1.SessionRequest
	// took are all responses that the client took.
	took []*fanfarev1.SessionResponse
	// subs are what the client knows of subscriptions that have not ended.
	subs map[uint32]*fakeMember
}

// fakeMember is what a client knows of a subscription.
type fakeMember struct {
	stream backlog.StreamName
	// count is how many frames have come, as they should be.
	count int
	// notices are the names of those that came.
	notices []string
	// credit is what is left of it; nil without a limit.
	credit *int64
}

// sessionStream is a quotaStream with requests.
type sessionStream struct {
	*quotaStream
	requests chan *fanfarev1.SessionRequest
}

func (s *sessionStream) RecvMsg(message any) error {
	select {
	case r, ok := <-s.requests:
		if !ok {
			return io.EOF
		}
		proto.Merge(message.(proto.Message), r)
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// session begins a session.
func (w *deliveryWorld) session(c *connection) *fakeSession {
	ctx, cancel := w.callContext(c)
	s := &fakeSession{
		fakeCall: &fakeCall{world: w, stream: &quotaStream{t: w.t, ctx: ctx, quota: writeQuota}, cancel: cancel, ended: make(chan error, 1)},
		requests: make(chan *fanfarev1.SessionRequest, 100_000),
		subs:     make(map[uint32]*fakeMember),
	}
	call := &sessionStream{s.stream, s.requests}
	w.tasks.Go(func() {
		// As in a call, whose context ends with it.
		defer cancel()
		err := w.server.Session(&grpc.GenericServerStream[fanfarev1.SessionRequest, fanfarev1.SessionResponse]{ServerStream: call})
		call.returned = true
		s.ended <- err
	})
	w.t.Cleanup(func() {
		cancel()
		s.stream.takeEverything()
	})
	return s
}

// subscribe asks for everything of a stream.
func (s *fakeSession) subscribe(number uint32, name backlog.StreamName) {
	s.subscribeWith(number, name, nil)
}

func (s *fakeSession) subscribeWith(number uint32, name backlog.StreamName, credit *uint64) {
	m := &fakeMember{stream: name}
	if credit != nil {
		m.credit = new(int64(*credit))
	}
	s.subs[number] = m
	s.requests <- &fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Subscribe{Subscribe: &fanfarev1.SessionSubscribe{
		Number: number, Request: &fanfarev1.SubscribeRequest{Channel: name.Channel, Scope: name.Scope}, Credit: credit,
	}}}
}

func (s *fakeSession) unsubscribe(number uint32) {
	s.requests <- &fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Unsubscribe{Unsubscribe: &fanfarev1.SessionUnsubscribe{Number: number}}}
}

func (s *fakeSession) give(number uint32, credit uint64) {
	if m := s.subs[number]; m != nil && m.credit != nil {
		*m.credit += int64(credit)
	}
	s.requests <- &fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Credit{Credit: &fanfarev1.SessionCredit{Number: number, Bytes: credit}}}
}

// take has the client take up to n messages, and returns them.
func (s *fakeSession) take(n int) []*fanfarev1.SessionResponse {
	s.world.t.Helper()
	var taken []*fanfarev1.SessionResponse
	for _, message := range s.stream.write(n) {
		response := &fanfarev1.SessionResponse{}
		if err := proto.Unmarshal(message, response); err != nil {
			s.world.t.Fatal(err)
		}
		if err := s.check(response); err != nil {
			s.world.t.Fatalf("%v: %v", shortened(response), err)
		}
		taken = append(taken, response)
	}
	s.took = append(s.took, taken...)
	return taken
}

// takeAll has the client, in a bubble, take everything there is, and returns it.
func (s *fakeSession) takeAll() []*fanfarev1.SessionResponse {
	s.world.t.Helper()
	from := len(s.took)
	for synctest.Wait(); s.inFlight() > 0; synctest.Wait() {
		s.take(s.inFlight())
	}
	return s.took[from:]
}

func shortened(r *fanfarev1.SessionResponse) string {
	return fmt.Sprintf("%d frames, %v for %v", len(r.GetFrames()), r.GetNotice(), r.GetNumbers())
}

// check checks a response against what the client knows.
func (s *fakeSession) check(r *fanfarev1.SessionResponse) error {
	if len(r.GetNumbers()) == 0 {
		switch r.GetNotice().(type) {
		case *fanfarev1.SessionResponse_Progress, *fanfarev1.SessionResponse_Status, *fanfarev1.SessionResponse_Closing,
			*fanfarev1.SessionResponse_Authenticated:
			return nil
		}
		return errors.New("it has no numbers")
	}
	if sorted := slices.Clone(r.GetNumbers()); true {
		slices.Sort(sorted)
		if len(slices.Compact(sorted)) != len(r.GetNumbers()) {
			return errors.New("it has a number twice")
		}
	}
	for _, number := range r.GetNumbers() {
		m := s.subs[number]
		if m == nil {
			return fmt.Errorf("%d is not subscribed", number)
		}
		if err := s.checkMember(m, r); err != nil {
			return fmt.Errorf("%d: %w", number, err)
		}
		switch r.GetNotice().(type) {
		case *fanfarev1.SessionResponse_Unsubscribed, *fanfarev1.SessionResponse_Ended, *fanfarev1.SessionResponse_Closed:
			delete(s.subs, number)
		}
	}
	return nil
}

func (s *fakeSession) checkMember(m *fakeMember, r *fanfarev1.SessionResponse) error {
	if m.credit != nil && len(r.GetFrames()) > 0 {
		if *m.credit <= 0 {
			return fmt.Errorf("it had %d bytes of credit left", *m.credit)
		}
		*m.credit -= int64(proto.Size(&fanfarev1.SubscribeResponse{Frames: r.GetFrames()}))
	}
	for _, f := range r.GetFrames() {
		m.count++
		sequence := f.GetPosition().GetSequence()
		if sequence != uint64(m.count) || !bytes.Equal(f.GetPayload(), s.world.store.payload(sequence)) {
			return fmt.Errorf("frame %d has the position %v and %d bytes", m.count, f.GetPosition(), len(f.GetPayload()))
		}
	}
	if r.GetNotice() == nil {
		if len(m.notices) == 0 || len(r.GetFrames()) == 0 {
			return errors.New("frames before Subscribed, or nothing")
		}
		return nil
	}
	name := string(r.ProtoReflect().WhichOneof(r.ProtoReflect().Descriptor().Oneofs().Get(0)).Name())
	switch {
	case name == "ended" || name == "unsubscribed":
	case (len(m.notices) == 0) != (name == "subscribed"):
		return fmt.Errorf("%s after %v", name, m.notices)
	}
	m.notices = append(m.notices, name)
	return nil
}

// isWhole checks that a subscription has had the first n frames and no more, after
// Subscribed and with one CaughtUp.
func (s *fakeSession) isWhole(number uint32, n int) {
	s.world.t.Helper()
	m := s.subs[number]
	if m == nil {
		s.world.t.Fatalf("%d has ended", number)
	}
	if m.count != n || !slices.Equal(m.notices, []string{"subscribed", "caught_up"}) {
		s.world.t.Errorf("%d has had %d frames of %d, and %v", number, m.count, n, m.notices)
	}
}

// withFrames counts messages with frames.
func withFrames(responses []*fanfarev1.SessionResponse) (n int) {
	for _, r := range responses {
		if len(r.GetFrames()) > 0 {
			n++
		}
	}
	return n
}

// endsAfter checks how the call ends and how long it takes, in a bubble.
func (s *fakeSession) endsAfter(want time.Duration) *failure {
	s.world.t.Helper()
	began := time.Now()
	err := s.end()
	if took := time.Since(began); took != want {
		s.world.t.Errorf("it ended after %s, want %s", took, want)
	}
	if err == nil {
		return nil
	}
	return failureOf(err)
}
