package transcode

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

var errNoMemory = errors.New("as much is held for calls over HTTP as may be")

// memory bounds what is held for all calls together, and for those of one client: of that
// at most half, so that no client alone can have the others refused. A client is an IPv4
// address, or the /64 of an IPv6 address, all of which one network has; all who come through
// one proxy are one, and all whose address is none of the two.
type memory struct {
	bytes  int64
	all    *semaphore.Weighted
	mu     sync.Mutex // guards what follows
	shares map[netip.Prefix]*share
}

// share is what one client may hold.
type share struct {
	*semaphore.Weighted
	budgets int
}

func newMemory(bytes int64) *memory {
	return &memory{bytes: bytes, all: semaphore.NewWeighted(bytes), shares: map[netip.Prefix]*share{}}
}

// budget is for one request. It must be given back. Whoever needs more than there is waits
// for as long as patience.
func (m *memory) budget(r *http.Request, patience time.Duration) *budget {
	client := clientOf(r.RemoteAddr)
	m.mu.Lock()
	defer m.mu.Unlock()
	own := m.shares[client]
	if own == nil {
		own = &share{Weighted: semaphore.NewWeighted(m.bytes / 2)}
		m.shares[client] = own
	}
	own.budgets++
	return &budget{memory: m, client: client, own: own, patience: patience}
}

// clientOf is the client at an address with a port.
func clientOf(address string) netip.Prefix {
	addrPort, err := netip.ParseAddrPort(address)
	if err != nil {
		return netip.Prefix{}
	}
	addr := addrPort.Addr().Unmap()
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	return netip.PrefixFrom(addr.WithZone(""), bits).Masked()
}

// budget is what one request has taken of the memory for all.
type budget struct {
	memory   *memory
	client   netip.Prefix
	own      *share
	patience time.Duration

	mu    sync.Mutex // guards what follows: the body of a stream is read beside its call
	taken int64
	over  bool
}

// body reads to the end, as far as there is memory for it.
func (b *budget) body(ctx context.Context, in io.Reader) ([]byte, error) {
	var body bytes.Buffer
	for {
		// The buffer doubles, and holds both while it does.
		if err := b.take(ctx, 3*int64(max(body.Len(), bytes.MinRead))); err != nil {
			return nil, err
		}
		body.Grow(bytes.MinRead)
		room := body.AvailableBuffer()
		n, err := in.Read(room[:cap(room)])
		body.Write(room[:n])
		switch {
		case errors.Is(err, io.EOF):
			return body.Bytes(), nil
		case err != nil:
			return nil, err
		}
	}
}

// take has the request hold so many bytes, or more. It waits for others to give some back.
// Only one may take at a time. The error is errNoMemory.
func (b *budget) take(ctx context.Context, bytes int64) error {
	b.mu.Lock()
	more := bytes - b.taken
	b.mu.Unlock()
	if more <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, b.patience)
	defer cancel()
	if b.own.Acquire(ctx, more) != nil {
		return errNoMemory
	}
	if b.memory.all.Acquire(ctx, more) != nil {
		b.own.Release(more)
		return errNoMemory
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		b.releaseLocked(more)
		return errNoMemory
	}
	b.taken += more
	return nil
}

// shrink gives back what is taken above so many bytes.
func (b *budget) shrink(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if more := b.taken - bytes; more > 0 {
		b.releaseLocked(more)
		b.taken = bytes
	}
}

func (b *budget) releaseLocked(bytes int64) {
	b.own.Release(bytes)
	b.memory.all.Release(bytes)
}

// giveBack gives back what is taken. Nothing more can be taken.
func (b *budget) giveBack() {
	b.mu.Lock()
	was := b.over
	// Together: what is taken between the two would never be given back.
	b.over = true
	b.releaseLocked(b.taken)
	b.taken = 0
	b.mu.Unlock()
	if was {
		return
	}
	b.memory.mu.Lock()
	defer b.memory.mu.Unlock()
	if b.own.budgets--; b.own.budgets == 0 {
		delete(b.memory.shares, b.client)
	}
}
