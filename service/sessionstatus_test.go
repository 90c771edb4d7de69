package service

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/hub"
)

// Symptom: subscriptions of a session were not told that the server listened no longer,
// or that it did again, if a sibling was unsubscribed at that moment. The status goes to
// all once, through the cohort that the hub told of it first. It waited for the client to
// take something, and was forgotten with that cohort; the others were taken to be told.
func TestStatusSurvivesWhoBroughtIt(t *testing.T) {
	for survivor := range uint32(3) { // any of them may have brought it
		synctest.Test(t, func(t *testing.T) {
			w := newDeliveryWorldOn(t, hub.Config{StatusNotices: true}, nil)
			s := w.session(newConnection(noConn{}))
			for number := range uint32(3) {
				s.subscribe(number+1, backlog.StreamName{Channel: "c", Scope: fmt.Sprint(number)})
			}
			busy := backlog.StreamName{Channel: "busy"}
			s.subscribe(9, busy)
			s.takeAll()
			w.publishEach(busy, maxInFlight) // the client takes nothing for a moment
			w.lose()
			synctest.Wait()
			for _, number := range []uint32{1, 2, 3, 9} {
				if number != survivor+1 {
					s.unsubscribe(number)
				}
			}
			told := 0
			for _, r := range s.takeAll() {
				if status := r.GetStatus(); status != nil && !status.GetListening() {
					told++
				}
			}
			if told != 1 {
				t.Errorf("%d was told %d times that the server does not listen", survivor+1, told)
			}
		})
	}
}

// Whatever else happens, every subscription believes what is the case whenever the client
// has taken everything.
func TestModelOfTheStatus(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			m := &statusModel{world: newDeliveryWorldOn(t, hub.Config{StatusNotices: true}, nil), believed: make(map[uint32]bool)}
			m.session = m.world.session(newConnection(noConn{}))
			random := rand.New(rand.NewPCG(seed, 0))
			for range 20 {
				for range 1 + random.IntN(30) {
					m.step(random)
					if random.IntN(2) == 0 {
						synctest.Wait()
					}
				}
				m.learn(m.session.takeAll())
				for number, listens := range m.believed {
					if listens != !m.away {
						t.Fatalf("seed %d: %d believes that the server listens: %v; it does: %v", seed, number, listens, !m.away)
					}
				}
			}
		})
	}
}

// statusModel is a session, and what its subscriptions believe.
type statusModel struct {
	world    *deliveryWorld
	session  *fakeSession
	used     uint32
	believed map[uint32]bool
	// away is true while the server does not listen; outages counts how often it was.
	away    bool
	outages uint64
}

func (m *statusModel) step(random *rand.Rand) {
	w, s := m.world, m.session
	name := backlog.StreamName{Channel: "c", Scope: fmt.Sprint(random.IntN(4))}
	switch number := 1 + random.Uint32N(m.used+1); random.IntN(10) {
	case 0:
		m.used++
		s.subscribe(m.used, name)
	case 1:
		m.used++
		s.subscribeWith(m.used, name, new(random.Uint64N(100)))
	case 2, 3:
		s.unsubscribe(number)
	case 4:
		if m.away = !m.away; m.away {
			w.lose()
		} else {
			m.outages++
			w.listen(m.outages + 1)
		}
	case 5, 6:
		if !m.away {
			w.publish(name, 1)
		}
	case 7:
		s.give(number, random.Uint64N(100))
	default:
		m.learn(s.take(random.IntN(3)))
	}
}

// learn takes what the client was told into account. A subscription begins only while
// the server listens, or is told otherwise.
func (m *statusModel) learn(responses []*fanfarev1.SessionResponse) {
	for _, r := range responses {
		switch r.GetNotice().(type) {
		case *fanfarev1.SessionResponse_Subscribed:
			for _, number := range r.GetNumbers() {
				m.believed[number] = true
			}
		case *fanfarev1.SessionResponse_Status:
			for number := range m.believed {
				if len(r.GetNumbers()) == 0 {
					m.believed[number] = r.GetStatus().GetListening()
				}
			}
			for _, number := range r.GetNumbers() {
				m.believed[number] = r.GetStatus().GetListening()
			}
		case *fanfarev1.SessionResponse_Unsubscribed, *fanfarev1.SessionResponse_Ended:
			for _, number := range r.GetNumbers() {
				delete(m.believed, number)
			}
		}
	}
}
