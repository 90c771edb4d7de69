package listener

import (
	"errors"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/fanfare-io/fanfare/backlog"
)

func sameMemory(a, b string) bool { return unsafe.StringData(a) == unsafe.StringData(b) }

func authenticator(floor uint64) *Authenticator {
	a := NewAuthenticator()
	a.SetKeys([]Key{{ID: 3, Secret: []byte("other")}, testKey})
	a.Connected(Connected{Listening: backlog.Listening{Number: 1, Origin: 5}, OldestTransaction: floor})
	return a
}

// signed is a notification as a publisher makes it.
func signed(pid uint32, transaction, index uint64) Notification {
	e := sample()
	e.PID, e.Transaction, e.Index = pid, transaction, index
	return Notification{PID: pid, Payload: EncodeEnvelope(testKey, e)}
}

func TestAuthenticEnvelopes(t *testing.T) {
	a := authenticator(100)
	for _, step := range []struct {
		name        string
		pid         uint32
		transaction uint64
		index       uint64
		want        error
	}{
		{"first", 1, 100, 1, nil},
		{"next of the transaction", 1, 100, 2, nil},
		{"again", 1, 100, 2, ErrReplayed},
		{"earlier of the transaction", 1, 100, 1, ErrReplayed},
		{"other process, older transaction", 2, 100, 1, nil},
		{"next transaction", 1, 105, 1, nil},
		{"transaction before", 1, 104, 9, ErrReplayed},
		{"before the connection", 3, 99, 1, ErrReplayed},
		{"a number was left out", 1, 105, 7, nil},
	} {
		if _, err := a.Open(signed(step.pid, step.transaction, step.index)); !errors.Is(err, step.want) {
			t.Errorf("%s: %v, want %v", step.name, err, step.want)
		}
	}
}

func TestForgedEnvelopes(t *testing.T) {
	good := signed(1, 100, 1)
	a := authenticator(1)
	if _, err := a.Open(Notification{PID: 2, Payload: good.Payload}); !errors.Is(err, ErrForged) {
		t.Errorf("from another process: %v, want ErrForged", err)
	}
	for range 2000 {
		b := []byte(good.Payload)
		i := rand.IntN(len(b))
		b[i] ^= byte(1 + rand.IntN(255))
		if _, err := a.Open(Notification{PID: 1, Payload: string(b)}); err == nil {
			t.Fatalf("accepted with byte %d changed", i)
		}
	}
	for i := range len(good.Payload) {
		if _, err := a.Open(Notification{PID: 1, Payload: good.Payload[:i]}); err == nil {
			t.Fatalf("accepted when cut to %d bytes", i)
		}
	}
	unknown := Notification{PID: sample().PID, Payload: EncodeEnvelope(Key{ID: 99, Secret: testKey.Secret}, sample())}
	if _, err := a.Open(unknown); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("unknown key: %v", err)
	}
	swapped := sample()
	swapped.PID = 1
	if _, err := a.Open(Notification{PID: 1, Payload: EncodeEnvelope(Key{ID: testKey.ID, Secret: []byte("guess")}, swapped)}); !errors.Is(err, ErrForged) {
		t.Errorf("other secret: %v", err)
	}
	// None of that has moved a mark.
	if _, err := a.Open(good); err != nil {
		t.Fatalf("the genuine one: %v", err)
	}
}

// What was seen on the connection before is refused on the next one to the same
// server; after a switch to another server transaction ids may be lower.
func TestMarksAcrossConnections(t *testing.T) {
	a := authenticator(100)
	if _, err := a.Open(signed(1, 500, 1)); err != nil {
		t.Fatal(err)
	}
	a.Connected(Connected{Listening: backlog.Listening{Number: 2, Origin: 5}, OldestTransaction: 100})
	if _, err := a.Open(signed(1, 500, 1)); !errors.Is(err, ErrReplayed) {
		t.Fatalf("replayed on the next connection: %v, want ErrReplayed", err)
	}
	a.Connected(Connected{Listening: backlog.Listening{Number: 3, Origin: 6}, OldestTransaction: 50})
	if _, err := a.Open(signed(1, 60, 1)); err != nil {
		t.Fatalf("of another server: %v", err)
	}
}

// Whatever is forgotten to bound memory is never accepted a second time.
func TestForgottenMarksRefuse(t *testing.T) {
	a := authenticator(1)
	a.limit = 8
	all := make([]Notification, 100)
	for i := range all {
		all[i] = signed(uint32(i+1), uint64(1000+i), 1)
		if _, err := a.Open(all[i]); err != nil {
			t.Fatalf("envelope %d: %v", i, err)
		}
		if len(a.marks) > a.limit {
			t.Fatalf("%d marks, the limit is %d", len(a.marks), a.limit)
		}
	}
	for i, n := range all {
		if _, err := a.Open(n); !errors.Is(err, ErrReplayed) {
			t.Fatalf("envelope %d again: %v, want ErrReplayed", i, err)
		}
	}
}

func FuzzAuthenticator(f *testing.F) {
	good := signed(1, 100, 1)
	f.Add(uint32(1), good.Payload)
	f.Add(uint32(2), good.Payload)
	f.Fuzz(func(t *testing.T, pid uint32, payload string) {
		a := authenticator(1)
		if _, err := a.Open(Notification{PID: pid, Payload: payload}); err == nil && (pid != 1 || payload != good.Payload) {
			t.Fatalf("accepted %q from %d", payload, pid)
		}
	})
}
