package clientlib

import (
	"context"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// run makes one call after the other while there are members, until the client is
// closed or a server has no Session.
func (s *session) run(ctx context.Context) {
	r := s.client.newRecovery()
	for s.awaitMember(ctx) {
		e := s.call(ctx, &r)
		interrupted := s.endCall()
		if ctx.Err() != nil {
			break
		}
		if e.Code == codes.Unimplemented {
			s.client.logger.Info("the server has no Session; each subscription makes a call of its own")
			s.fallBack()
			return
		}
		if e.RetryIn == 0 {
			e.RetryIn = s.retryIn
		}
		pause, final := r.after(e)
		if final {
			s.endAll(e, false)
			continue
		}
		s.client.telemetry.interrupted(e)
		r.log("session interrupted", e, pause, "subscriptions", len(interrupted))
		s.tell(interrupted, e, pause)
		wait(ctx, pause)
	}
	s.endAll(context.Cause(ctx), true)
}

// awaitMember waits for one, and reports whether that came before the end.
func (s *session) awaitMember(ctx context.Context) bool {
	for ctx.Err() == nil {
		if !s.empty() {
			return true
		}
		select {
		case <-s.joined:
		case <-ctx.Done():
		}
	}
	return false
}

// tell puts an interruption into the queues of members.
func (s *session) tell(members []*member, e *Error, pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range members {
		m.queue.put(item{event: &Interrupted{Err: e, RetryIn: pause}, position: m.track.position})
	}
}

// call is one Session. It returns why it ended.
func (s *session) call(ctx context.Context, r *recovery) *Error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx, err := r.access.authorize(ctx)
	if err != nil {
		return errorOf(err)
	}
	idle := newWatch(s.client.idleTimeout, func() { cancel(errIdle) })
	defer idle.stop()
	call, err := s.client.stub.Session(ctx, grpc.MaxCallRecvMsgSize(maxMessageBytes))
	if err != nil {
		return errorOf(err)
	}
	s.beginCall()
	var tasks sync.WaitGroup
	tasks.Go(func() { s.send(ctx, call) })
	if r.access.tokens.source != nil {
		tasks.Go(func() { s.renewTokens(ctx, &r.access) })
	}
	defer func() {
		cancel(nil)
		tasks.Wait()
	}()
	for {
		idle.start()
		response, err := call.Recv()
		idle.stop()
		if err != nil {
			return errorOf(endOf(ctx, err))
		}
		if e := s.dispatch(response, r); e != nil {
			return e
		}
	}
}

// send sends what there is until ctx ends or sending fails: then receiving does, too,
// and knows why.
func (s *session) send(ctx context.Context, call grpc.BidiStreamingClient[fanfarev1.SessionRequest, fanfarev1.SessionResponse]) {
	for {
		if request := s.next(); request != nil {
			if call.Send(request) != nil {
				return
			}
			continue
		}
		select {
		case <-s.work:
		case <-ctx.Done():
			return
		}
	}
}

// dispatch hands a response to the members that it is for. An error ends the call.
func (s *session) dispatch(response *fanfarev1.SessionResponse, r *recovery) *Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case response.GetClosing() != nil:
		s.retryIn = response.GetClosing().GetRetryIn().AsDuration()
		return nil
	case response.GetProgress() != nil:
		return nil
	case response.GetAuthenticated() != nil:
		s.authenticatedLocked(response.GetAuthenticated().GetExpires())
		return nil
	case response.GetUnsubscribed() != nil:
		s.unsubscribedLocked(response.GetNumbers())
		return nil
	case response.GetEnded() != nil:
		return s.refusedLocked(response, r)
	}
	for _, m := range s.addresseesLocked(response.GetNumbers()) {
		s.deliverLocked(m, response)
	}
	if response.GetClosed() != nil {
		s.freeLocked(response.GetNumbers())
	}
	if response.GetSubscribed() != nil {
		r.acknowledge()
	}
	if len(response.GetFrames()) > 0 {
		r.progress()
	}
	return nil
}

// deliverLocked hands a response to a member.
func (s *session) deliverLocked(m *member, response *fanfarev1.SessionResponse) {
	if m.phase == asking && response.GetSubscribed() != nil {
		s.asked--
		m.phase = active
		signal(s.work)
	}
	items, err := m.track.take(response)
	m.took(&m.recovery, items)
	if m.queue.creditDue() && !m.credited { // what was dropped counts, too
		m.credited = true
		s.credits = append(s.credits, m)
		signal(s.work)
	}
	switch {
	case m.track.closed:
		s.endedLocked(m)
		s.finishLocked(m, io.EOF)
	case err != nil:
		s.abandonLocked(m)
		s.interruptLocked(m, errorOf(err))
	}
}

// freeLocked frees numbers of members that left: Closed came before the server heard of
// that.
func (s *session) freeLocked(numbers []uint32) {
	for _, n := range numbers {
		if s.numbers[n] == nil {
			delete(s.numbers, n)
		}
	}
}

// unsubscribedLocked frees the numbers of members that left. One that the server took
// away unasked subscribes again.
func (s *session) unsubscribedLocked(numbers []uint32) {
	for _, n := range numbers {
		if m := s.numbers[n]; m != nil {
			s.endedLocked(m)
			s.interruptLocked(m, &Error{Code: codes.Unavailable, Message: "the server ended the subscription unasked"})
			continue
		}
		delete(s.numbers, n)
	}
}

// refusedLocked handles Ended: of a subscription, or of all because of the token.
func (s *session) refusedLocked(response *fanfarev1.SessionResponse, r *recovery) *Error {
	for _, n := range response.GetNumbers() {
		m := s.numbers[n]
		if m == nil {
			delete(s.numbers, n)
			continue
		}
		e := itemError(response.GetEnded().GetError())
		if e.Code == codes.Unauthenticated && r.access.tokens.source != nil {
			return e
		}
		if e.Code == codes.PermissionDenied {
			signal(s.denied)
		}
		s.endedLocked(m)
		s.interruptLocked(m, e)
	}
	return nil
}

// interruptLocked has a member subscribe again after a pause, if that can help.
func (s *session) interruptLocked(m *member, e *Error) {
	if m.track.hopeless() {
		s.finishLocked(m, e)
		return
	}
	pause, final := m.recovery.after(e)
	if final {
		s.finishLocked(m, e)
		return
	}
	m.interrupted(&m.recovery, e, pause)
	s.pauseLocked(m, pause)
}
