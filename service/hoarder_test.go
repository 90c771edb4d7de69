package service_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// hoarder is a client that gives no window back, of the connection or of a call.
// RFC 9113, section 5.2.2, leaves that to the receiver, and there are libraries
// that hold a connection's window until every call has been read.
type hoarder struct {
	t       *testing.T
	writing sync.Mutex // guards what framer writes
	framer  *http2.Framer
	// gone is closed when the server has closed the connection, or the test ended.
	gone chan struct{}

	reading sync.Mutex // guards what follows
	// received is how many bytes of messages calls were sent, by their ids; ended has
	// the statuses of those that have ended.
	received map[uint32]int
	ended    map[uint32]string
}

func newHoarder(t *testing.T, address string) *hoarder {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	h := &hoarder{
		t:        t,
		framer:   http2.NewFramer(conn, conn),
		gone:     make(chan struct{}),
		received: map[uint32]int{},
		ended:    map[uint32]string{},
	}
	h.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	if err := h.framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(h.read)
	t.Cleanup(func() {
		_ = conn.Close()
		reading.Wait()
	})
	return h
}

// read answers what keeps the connection alive, and notes what came, until it ends.
func (h *hoarder) read() {
	defer close(h.gone)
	for {
		f, err := h.framer.ReadFrame()
		if err != nil {
			return
		}
		switch f := f.(type) {
		case *http2.PingFrame:
			if !f.IsAck() {
				h.writing.Lock()
				_ = h.framer.WritePing(true, f.Data)
				h.writing.Unlock()
			}
		case *http2.DataFrame:
			h.reading.Lock()
			h.received[f.StreamID] += len(f.Data())
			h.reading.Unlock()
		case *http2.MetaHeadersFrame:
			if f.StreamEnded() {
				h.reading.Lock()
				h.ended[f.StreamID] = statusOf(f)
				h.reading.Unlock()
			}
		}
	}
}

// statusOf is the grpc-status of trailers.
func statusOf(f *http2.MetaHeadersFrame) string {
	for _, field := range f.RegularFields() {
		if field.Name == "grpc-status" {
			return field.Value
		}
	}
	return ""
}

// answered is how many calls have ended well with a message of at least so many
// bytes.
func (h *hoarder) answered(bytes int) (n int) {
	h.reading.Lock()
	defer h.reading.Unlock()
	for id, status := range h.ended {
		if status == "0" && h.received[id] >= bytes {
			n++
		}
	}
	return n
}

// release opens the windows of the connection and of all its calls.
func (h *hoarder) release() {
	h.t.Helper()
	const window, most = 1<<16 - 1, 1<<31 - 1
	h.writing.Lock()
	defer h.writing.Unlock()
	if err := h.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: most}); err != nil {
		h.t.Fatal(err)
	}
	if err := h.framer.WriteWindowUpdate(0, most-window); err != nil {
		h.t.Fatal(err)
	}
}

// reset gives up a call.
func (h *hoarder) reset(id uint32) {
	h.t.Helper()
	h.writing.Lock()
	defer h.writing.Unlock()
	if err := h.framer.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
		h.t.Fatal(err)
	}
}

// subscribe opens a subscription; ids are odd and ascend.
func (h *hoarder) subscribe(id uint32, request *fanfarev1.SubscribeRequest) {
	h.t.Helper()
	h.call(id, fanfarev1.FanfareService_Subscribe_FullMethodName, request)
}

// call begins a call of a method.
func (h *hoarder) call(id uint32, method string, request proto.Message) {
	h.t.Helper()
	var headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	for _, field := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: method},
		{Name: ":authority", Value: "fanfare"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	} {
		if err := encoder.WriteField(field); err != nil {
			h.t.Fatal(err)
		}
	}
	h.writing.Lock()
	defer h.writing.Unlock()
	if err := h.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: headers.Bytes(), EndHeaders: true}); err != nil {
		h.t.Fatal(err)
	}
	body, err := proto.Marshal(request)
	if err != nil {
		h.t.Fatal(err)
	}
	message := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body)))
	if err := h.framer.WriteData(id, true, append(message, body...)); err != nil {
		h.t.Fatal(err)
	}
}

// A client whose connection takes nothing any more, so that no call of it can be
// sent anything, is no burden: all its calls are ended within the write timeout,
// and calls of other connections get everything.
func TestAConnectionThatTakesNothing(t *testing.T) {
	alongside(t)
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, quickLinger, func(c *servicetest.Config) { c.Service.WriteTimeout = 3 * time.Second })
		s := stream("hoarded", "")
		h := newHoarder(t, w.b.Addr)
		const calls = 5
		for i := range uint32(calls) {
			h.subscribe(2*i+1, live(s))
		}
		eventually(t, "the calls have subscribed", func() bool { return w.b.Hub.Subscribers(s) == calls })
		other := subscribe(t, w.b, live(s))
		const frames = 100 // of 4 kB, for each call
		publishMany(t, w.a, s, frames, func(int) string { return string(stamped(0, 4000)) })
		contiguous(t, other.take(frames), 1)
		eventually(t, "the calls have been ended", func() bool { return w.b.Hub.Subscribers(s) == 1 })
		other.silent("marker", func() { publish(t, w.a, newFrame(s, "marker")) })
	})
}

// A client may ask for many pages and take none, which its connection kept in memory:
// a page of 1 MiB for each of 10,000 calls. Now the server reads a few, and the
// others when the client has taken those. Other connections get theirs meanwhile.
func TestUntakenPagesAreBounded(t *testing.T) {
	// Not beside other tests, whose memory would count.
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		r := servicetest.Start(t, db.URL, wholeBacklog)
		s := stream("pages", "")
		const frames, size = 4, 250_000
		publishMany(t, r, s, frames, func(int) string { return strings.Repeat("x", size) })
		request := &fanfarev1.ReadFramesRequest{Channel: s.Channel, Scope: s.Scope}
		before := heapBytes()

		const calls = 100
		h := newHoarder(t, r.Addr)
		for i := range uint32(calls) {
			h.call(2*i+1, fanfarev1.FanfareService_ReadFrames_FullMethodName, request)
		}
		// As many pages of another connection: the hoarder's have had their turn by then.
		readPages(t, fanfarev1.NewFanfareServiceClient(dial(t, r.Addr)), request, calls, frames)
		grown := (int64(heapBytes()) - int64(before)) / (frames * size)
		t.Logf("%d pages that nobody takes hold the memory of %d", calls, grown)
		if grown > calls*6/10 {
			t.Error("that is not bounded")
		}

		// It gives up those that it asked for first, which are those that were read.
		const givenUp = calls / 2
		for i := range uint32(givenUp) {
			h.reset(2*i + 1)
		}
		h.release()
		eventually(t, "the hoarder has all other pages", func() bool { return h.answered(frames*size) == calls-givenUp })
	})
}

// readPages reads a page of so many frames n times, and as often one with nothing.
func readPages(t *testing.T, client fanfarev1.FanfareServiceClient, request *fanfarev1.ReadFramesRequest, n, frames int) {
	t.Helper()
	readBoth := func() (got int, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if _, err := client.ListStreams(ctx, &fanfarev1.ListStreamsRequest{Channel: "nothing"}); err != nil {
			return 0, err
		}
		page, err := client.ReadFrames(ctx, request)
		return len(page.GetFrames()), err
	}
	for range n {
		if got, err := readBoth(); err != nil || got != frames {
			t.Fatalf("a page of %d frames, want %d: %v", got, frames, err)
		}
	}
}
