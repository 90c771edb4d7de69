package hub

// Subscriptions of a stream that stand at the same place are handed the same from
// then on. Whoever has several of them needs one only: the others join it, and leave
// it, or take a subscription of their own at the same place, when they are to go
// another way. All are counted as subscribers of the stream.

// Join has s stand for other, too, if other is a subscription of the same stream at
// the same place: other is then closed, without a call of its hook. It reports
// whether it did. What s has handed over counts as handed over to both; so nothing
// may be left of that to be passed on.
func (s *Subscription) Join(other *Subscription) bool {
	if s == other || s.stream != other.stream {
		return false
	}
	s.stream.mu.Lock()
	defer s.stream.mu.Unlock()
	if !s.isAtLocked(other) {
		return false
	}
	s.joined += other.closeLocked()
	return true
}

// isAtLocked reports whether two subscriptions are handed the same from now on.
func (s *Subscription) isAtLocked(other *Subscription) bool {
	t := s.tail
	switch {
	case s.err != nil || other.err != nil || t == nil:
		return false
	case s.subscribed != nil || other.subscribed != nil || s.turn != nil || other.turn != nil || s.judging || other.judging:
		return false // it has been told something that is its own
	case t != other.tail || s.cursor != other.cursor || s.had != other.had || s.status != other.status:
		return false
	case s.caughtUp != other.caughtUp || !s.caughtUp && s.mark != other.mark:
		return false
	case s.began == other.began || s.hub.cfg.AnnouncesNothing:
		return true
	default:
		// An ephemeral frame that was committed before one of them began, and is late, is
		// for the other only. None may be left, and none comes any more once the bus has
		// announced where that one began: having read so far is not enough.
		return s.had == t.ephemerals.last && t.heard >= max(s.began, other.began)
	}
}

// Leave ends one of those that s stands for; s itself goes on.
func (s *Subscription) Leave() {
	s.stream.mu.Lock()
	s.joined--
	s.stream.mu.Unlock()
	s.hub.release(s.stream, 1)
}

// Split returns a subscription at the same place that stands for n of those that s
// stood for. The wake hook is not called before it has been asked for something.
func (s *Subscription) Split(n int) *Subscription {
	s.stream.mu.Lock()
	defer s.stream.mu.Unlock()
	s.joined -= n
	other := &Subscription{
		hub:        s.hub,
		stream:     s.stream,
		tail:       s.tail,
		subscribed: s.subscribed,
		cursor:     s.cursor,
		had:        s.had,
		mark:       s.mark,
		caughtUp:   s.caughtUp,
		closed:     s.closed,
		status:     s.status,
		page:       s.page,
		err:        s.err,
		began:      s.began,
		joined:     n - 1,
	}
	if s.listed > 0 {
		s.stream.roster.add(other)
	}
	if s.turn != nil {
		turn := *s.turn
		other.turn = &turn
	}
	if other.tail != nil {
		other.tail.readers++
	}
	if other.page != nil {
		other.page.readers++
	}
	if s.judging {
		other.unreadableLocked()
	}
	return other
}
