package hub

// waiters are subscriptions that wait for the same thing. They are guarded by
// their stream's mutex.
type waiters struct {
	list []*Subscription
}

// add puts a subscription in, which must not wait elsewhere.
func (w *waiters) add(s *Subscription) {
	s.waitsIn, s.waitsAt = w, int32(len(w.list))
	w.list = append(w.list, s)
}

// remove takes a subscription out that is in.
func (w *waiters) remove(s *Subscription) {
	last := len(w.list) - 1
	moved := w.list[last]
	w.list[s.waitsAt], moved.waitsAt = moved, s.waitsAt
	w.list[last] = nil
	w.list = w.list[:last]
	s.waitsIn = nil
}

// wake takes all out and collects their hooks.
func (w *waiters) wake(hooks *hooks) {
	for i, s := range w.list {
		s.waitsIn = nil
		hooks.add(s)
		w.list[i] = nil
	}
	w.list = w.list[:0]
}

// hooks are wake hooks collected under a stream's mutex, to be called without
// it.
type hooks struct {
	list []func()
}

func (h *hooks) add(s *Subscription) {
	if s.hook != nil {
		h.list = append(h.list, s.hook)
	}
}

// call calls all of them, once.
func (h *hooks) call() {
	for i, f := range h.list {
		f()
		h.list[i] = nil
	}
	h.list = h.list[:0]
}
