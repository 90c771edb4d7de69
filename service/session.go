package service

import (
	"context"
	"errors"
	"io"
	"maps"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/hub"
)

const (
	// maxNumbers bounds the numbers of one message of a Session, so that they are few
	// beside what grpc accepts at once. What is for more subscriptions is sent again for
	// the others.
	maxNumbers = 1024
	// maxAnswers is how many subscriptions may wait for the word that they have ended
	// before further requests are received.
	maxAnswers = 1024
)

// session is one Session. Its subscriptions are grouped in cohorts, each of which asks
// the hub for those of its members together. One goroutine receives requests, which is
// bounded work; everything is sent in the turns of the outlet: first that
// subscriptions have ended, then what the cohorts have, in turn one message of each.
type session struct {
	outlet
	requests grpc.BidiStreamingServer[fanfarev1.SessionRequest, fanfarev1.SessionResponse]
	ready    cohortQueue
	// room has an entry if there may be room for answers.
	room chan struct{}

	// What follows is guarded by outlet.mu.

	members census[uint32, *member]
	// live are cohorts that others of the same stream may join.
	live census[backlog.StreamName, *cohort]
	// answers are notices that go before everything else, for so many subscriptions.
	answers  []*fanfarev1.SessionResponse
	answered int
	// taken is what a cohort was handed and is not sent yet; nothing if its cohort is
	// nil.
	taken taken
	// sending is what the next message is.
	sending sending
	// silent is true if the client was told that the server does not listen. Those that
	// began since it was last told something, which is what told counts, were not.
	silent bool
	told   uint32
	// beating is true if a heartbeat is due, halfClosed if the client has said that it
	// wants nothing more.
	beating, halfClosed bool
}

type sending uint8

const (
	sendsNotice sending = iota // of the session
	sendsAnswer
	sendsTaken
)

// taken is what the hub handed a cohort.
type taken struct {
	cohort *cohort
	hub.Delivery
	// toAll is true if it is sent to all subscriptions.
	toAll bool
}

// Session implements FanfareService.
func (s *Server) Session(stream fanfarev1.FanfareService_SessionServer) error {
	session, err := s.beginSession(stream)
	if err != nil {
		return err
	}
	return session.serve()
}

// beginSession begins a call, to be served.
func (s *Server) beginSession(stream fanfarev1.FanfareService_SessionServer) (*session, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	session := &session{requests: stream, room: make(chan struct{}, 1)}
	session.open(s, stream, session)
	s.loops.Go(func() {
		if err := recovering(session.receive); err != nil {
			session.fail(err)
		}
	})
	return session, nil
}

// serve returns how the call ends, when it does.
func (s *session) serve() error {
	err := s.wait()
	s.closeAll()
	s.server.leave(s.stream.Context(), s.flight)
	return err
}

// closeAll ends the session, if it has not ended, and its subscriptions.
func (s *session) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(nil)
	s.server.calls.Add(-int64(len(s.members.all)))
	for _, m := range s.members.all {
		m.cohort.sub.Close()
	}
	s.members, s.live, s.answers, s.taken = census[uint32, *member]{}, census[backlog.StreamName, *cohort]{}, nil, taken{}
}

// fail ends the session.
func (s *session) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(failureOf(err))
}

// receive takes requests until the client half-closes, which is nil, or the call
// ends.
func (s *session) receive() error {
	ctx := s.stream.Context()
	for {
		request, err := s.requests.Recv()
		if errors.Is(err, io.EOF) {
			s.halfClose()
			return nil
		}
		switch {
		case err != nil:
		case request.GetAuthenticate() != nil:
			err = s.reauthenticate(ctx, request.GetAuthenticate())
		default:
			err = s.take(request)
		}
		if err == nil {
			err = s.awaitRoom(ctx)
		}
		if err != nil {
			return err
		}
	}
}

func (s *session) halfClose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.halfClosed = true
	s.wake()
}

// awaitRoom waits while too many answers do.
func (s *session) awaitRoom(ctx context.Context) error {
	for s.isFull() {
		select {
		case <-s.room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (s *session) isFull() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answered >= maxAnswers
}

// nextLocked implements source.
func (s *session) nextLocked() bool {
	for {
		s.forgetLocked()
		switch {
		case len(s.answers) > 0:
			s.messageLocked(s.answers[0])
			s.sending = sendsAnswer
			return true
		case s.taken.cohort != nil:
			s.takenLocked()
			return true
		case s.parting != nil:
			s.noticeLocked(closingSession(s.parting.retryIn))
			s.final = true
			return true
		case s.halfClosed:
			s.endLocked(nil)
			return false
		case s.beating:
			s.noticeLocked(progressSession())
			return true
		}
		c := s.ready.pop()
		if c == nil {
			return false
		}
		s.askLocked(c)
	}
}

func (s *session) noticeLocked(notice *fanfarev1.SessionResponse) {
	s.messageLocked(notice)
	s.sending = sendsNotice
}

// takenLocked makes what was taken the next message.
func (s *session) takenLocked() {
	t := &s.taken
	if t.Notice == nil {
		s.framesLocked(t.Frames)
	} else {
		s.messageLocked(noticeProto(t.Notice))
	}
	if !t.toAll {
		s.out.numbers = t.cohort.numbers()
	}
	s.sending = sendsTaken
}

// askLocked asks the hub what there is for a cohort.
func (s *session) askLocked(c *cohort) {
	if c.isEmpty() {
		return // it has ended since it was queued
	}
	d, ok, err := c.next()
	switch {
	case err != nil:
		s.endCohortLocked(c, err)
	case !ok:
	default:
		s.taken = taken{cohort: c, Delivery: d}
		if status, ok := d.Notice.(hub.Status); ok && !s.tellLocked(status) {
			s.goOnLocked()
		}
	}
}

// tellLocked reports whether the status that was taken is to be sent. What all are told
// of at about the same time is sent once, for all.
func (s *session) tellLocked(status hub.Status) bool {
	silent := !status.Listening
	if s.silent != silent {
		s.silent = silent
		s.told++
		s.taken.toAll = true
		return true
	}
	return silent && s.taken.cohort.told == s.told
}

// sentLocked implements source.
func (s *session) sentLocked(time.Time) bool {
	switch s.sending {
	case sendsAnswer:
		s.answered -= answerWeight(s.answers[0])
		s.answers[0] = nil
		if s.answers = s.answers[1:]; len(s.answers) == 0 {
			s.answers = nil
		}
		select {
		case s.room <- struct{}{}:
		default:
		}
	case sendsTaken:
		s.goOnLocked()
	default:
		s.beating = false
	}
	return true
}

// goOnLocked has the cohort go on whose message was sent.
func (s *session) goOnLocked() {
	c, d := s.taken.cohort, s.taken.Delivery
	s.taken = taken{}
	switch d.Notice.(type) {
	case nil:
		c.spend(int64(s.bytes))
	case hub.Subscribed:
		c.told = s.told
		s.joinLocked(c, false)
	case hub.Closed:
		s.dropCohortLocked(c)
	case hub.Status:
		c.told = s.told - 1 // nobody of it has to be told of this one
	}
	s.settleLocked(c)
	switch {
	case c.isEmpty():
	case d.AtEnd:
		s.joinLocked(c, true)
	default:
		s.ready.push(c)
	}
}

// beganLocked implements source.
func (s *session) beganLocked() bool { return true }

func (s *session) dropLocked() { s.taken = taken{} }

func (s *session) beatLocked() { s.beating = true }

func (s *session) slowLocked() *failure { return slowSession(s.server.cfg.WriteTimeout) }

// endOf is how the call ends when a send fails.
func (s *session) endOf(err error) error {
	if ctx := s.stream.Context(); ctx.Err() != nil {
		return failureOf(ctx.Err())
	}
	return readFailureOf(err)
}

// answerLocked has an answer sent before everything else. Several Unsubscribed share a
// message.
func (s *session) answerLocked(answer *fanfarev1.SessionResponse) {
	s.answered += answerWeight(answer)
	if n := len(s.answers); n > 0 && answer.GetUnsubscribed() != nil {
		last := s.answers[n-1]
		if last.GetUnsubscribed() != nil && len(last.GetNumbers()) < maxNumbers {
			last.Numbers = append(last.Numbers, answer.GetNumbers()...)
			return
		}
	}
	s.answers = append(s.answers, answer)
	s.wake()
}

// answerWeight is for how many subscriptions an answer is; one that is for all counts,
// too.
func answerWeight(answer *fanfarev1.SessionResponse) int {
	return max(1, len(answer.GetNumbers()))
}

// census is a map that gives back what it used when it had more entries.
type census[K comparable, V any] struct {
	all map[K]V
	// most is how many there were since all was made.
	most int
}

func (c *census[K, V]) set(key K, value V) {
	if c.all == nil {
		c.all = make(map[K]V)
	}
	c.all[key] = value
	c.most = max(c.most, len(c.all))
}

func (c *census[K, V]) remove(key K) {
	const few = 64
	delete(c.all, key)
	if n := len(c.all); c.most > few && n < c.most/4 {
		all := make(map[K]V, n)
		maps.Copy(all, c.all)
		c.all, c.most = all, n
	}
}

// cohortQueue has the cohorts that may have something, in rounds.
type cohortQueue struct {
	mu    sync.Mutex // guards woken
	woken []*cohort
	// round are those of this round, from the first that has not had its turn. It
	// belongs to whoever has the turn of the outlet.
	round []*cohort
	first int
}

// push has a cohort take part in the next round.
func (q *cohortQueue) push(c *cohort) {
	if c.queued.Swap(true) {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.woken = append(q.woken, c)
}

// pop returns the next cohort, nil if there is none.
func (q *cohortQueue) pop() *cohort {
	if q.first == len(q.round) && !q.swap() {
		return nil
	}
	c := q.round[q.first]
	q.round[q.first] = nil
	q.first++
	c.queued.Store(false)
	return c
}

// swap begins the next round, unless nobody takes part.
func (q *cohortQueue) swap() bool {
	const few = 64
	q.mu.Lock()
	defer q.mu.Unlock()
	q.round, q.woken, q.first = q.woken, q.round[:0], 0
	if len(q.round) > 0 {
		return true
	}
	if cap(q.round) > few || cap(q.woken) > few {
		q.round, q.woken = nil, nil
	}
	return false
}
