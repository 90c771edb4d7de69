package listener

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"slices"

	"github.com/fanfare-io/fanfare/backlog"
)

// Errors of judging an envelope.
var (
	// ErrUnknownKey: the envelope names a key that the Authenticator does not
	// have.
	ErrUnknownKey = errors.New("the envelope is signed with an unknown key")
	// ErrForged: the digest is wrong, or the notification came from another server
	// process than the envelope says.
	ErrForged = errors.New("the envelope is not authentic")
	// ErrReplayed: the envelope is not newer than the last one of its server
	// process, or older than the connection.
	ErrReplayed = errors.New("the envelope was notified before")
)

// Refusals that the Bus treats in ways of their own. The first is certain; what the
// others refuse may be genuine.
var (
	// errOtherProcess: whatever the keys are, the envelope was made elsewhere.
	errOtherProcess = fmt.Errorf("%w: it is of another server process", ErrForged)
	// errForgotten: nothing is known of the process, and the transaction is too old
	// to tell whether the envelope is new.
	errForgotten = fmt.Errorf("%w, or its transaction is older than can be judged", ErrReplayed)
	// errUnreadableEntry: an authentic envelope has an entry that cannot be read.
	errUnreadableEntry = fmt.Errorf("%w: it is authentic, but has an entry that cannot be read", ErrUnreadable)
)

// Key is a secret that publishers sign envelopes with.
type Key struct {
	ID     int64
	Secret []byte
}

// maxMarks bounds how many server processes an Authenticator remembers, about
// 1 MiB.
const maxMarks = 16384

// Authenticator tells envelopes that publishers wrote from those that anybody
// else who may NOTIFY made up or repeated. It is for one goroutine.
//
// A transaction id is never given twice, and the transactions of one server
// process get ascending ones. So an envelope must be above the last one of its
// process, even if the process id has passed to another session.
type Authenticator struct {
	signers map[int64]*signer
	origin  uint64
	// floor: envelopes of transactions below it are refused, whatever their
	// process.
	floor uint64
	marks map[uint32]mark
	limit int
}

// mark is the place of the last envelope of a server process.
type mark struct{ transaction, index uint64 }

// NewAuthenticator returns one that has no keys.
func NewAuthenticator() *Authenticator {
	return &Authenticator{marks: map[uint32]mark{}, limit: maxMarks}
}

// SetKeys replaces all keys.
func (a *Authenticator) SetKeys(keys []Key) {
	a.signers = make(map[int64]*signer, len(keys))
	for _, k := range keys {
		a.signers[k.ID] = newSigner(k.Secret)
	}
}

// HasKeys reports whether there is any key.
func (a *Authenticator) HasKeys() bool { return len(a.signers) > 0 }

// Connected prepares for a new connection. What the processes of the same server
// have notified stays known. Another server (a promoted standby) may give lower
// transaction ids.
func (a *Authenticator) Connected(c Connected) {
	if c.Listening.Origin != a.origin || c.Listening.Origin == 0 {
		clear(a.marks)
		a.floor = 0
	}
	a.origin = c.Listening.Origin
	a.floor = max(a.floor, c.OldestTransaction)
}

// Open judges a notification and reads it. Errors are ErrUnknownVersion,
// ErrUnreadable, ErrUnknownKey, ErrForged and ErrReplayed. After ErrUnknownKey
// and ErrForged the same notification may be judged again with other keys.
func (a *Authenticator) Open(n Notification) (Envelope, error) { return a.open(n, nil) }

// open is Open that reads only what is announced of streams that are heard, if hears
// is not nil.
func (a *Authenticator) open(n Notification, hears func(backlog.StreamName) bool) (Envelope, error) {
	h, err := parseHeader(n.Payload)
	if err != nil {
		return Envelope{}, err
	}
	if h.PID != n.PID {
		return Envelope{}, errOtherProcess
	}
	signer := a.signers[h.KeyID]
	if signer == nil {
		return Envelope{}, ErrUnknownKey
	}
	if !signer.signed(h.prefix, h.rest, h.digest) {
		return Envelope{}, ErrForged
	}
	if err := a.advance(h.PID, mark{h.Transaction, h.Index}); err != nil {
		return Envelope{}, err
	}
	e, err := h.open(hears)
	if err != nil {
		return Envelope{}, errUnreadableEntry
	}
	return e, nil
}

// advance moves the mark of a process, unless next is not above it.
func (a *Authenticator) advance(pid uint32, next mark) error {
	last, known := a.marks[pid]
	switch {
	case known && !next.above(last):
		return ErrReplayed
	case next.transaction < a.floor:
		return errForgotten
	case !known && len(a.marks) >= a.limit:
		a.forget()
	}
	a.marks[pid] = next
	return nil
}

func (m mark) above(other mark) bool {
	if m.transaction != other.transaction {
		return m.transaction > other.transaction
	}
	return m.index > other.index
}

// forget drops the older half of the marks. What they refused the floor refuses
// from now on, and with it what transactions as old have yet to notify: that
// takes one that stays open while thousands of sessions come, publish and go.
func (a *Authenticator) forget() {
	transactions := make([]uint64, 0, len(a.marks))
	for _, m := range a.marks {
		transactions = append(transactions, m.transaction)
	}
	slices.Sort(transactions)
	middle := transactions[len(transactions)/2]
	for pid, m := range a.marks {
		if m.transaction <= middle {
			delete(a.marks, pid)
		}
	}
	a.floor = max(a.floor, middle+1)
}

// signer makes digests: HMAC-SHA-256, RFC 2104. It is for one goroutine.
type signer struct {
	mac hash.Hash
	// text is what is signed: a hash takes no strings.
	text []byte
	sum  [sha256.Size]byte
	hex  [2 * sha256.Size]byte
	// given is a digest that is compared.
	given [2 * sha256.Size]byte
}

func newSigner(secret []byte) *signer { return &signer{mac: hmac.New(sha256.New, secret)} }

// digest signs an envelope without its digest.
func (s *signer) digest(prefix, rest string) string { return string(s.sign(prefix, rest)) }

// sign is digest; the result is valid until the next call.
func (s *signer) sign(prefix, rest string) []byte {
	s.mac.Reset()
	s.text = append(append(s.text[:0], prefix...), rest...)
	_, _ = s.mac.Write(s.text) // a hash never fails
	hex.Encode(s.hex[:], s.mac.Sum(s.sum[:0]))
	return s.hex[:]
}

// signed reports whether digest is that of the envelope.
func (s *signer) signed(prefix, rest, digest string) bool {
	n := copy(s.given[:], digest)
	return n == len(digest) && hmac.Equal(s.sign(prefix, rest), s.given[:n])
}
