package service_test

import (
	"bytes"
	"encoding/binary"
	"net"
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
}

func newHoarder(t *testing.T, address string) *hoarder {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	h := &hoarder{t: t, framer: http2.NewFramer(conn, conn), gone: make(chan struct{})}
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

// read answers what keeps the connection alive, until it ends.
func (h *hoarder) read() {
	defer close(h.gone)
	for {
		f, err := h.framer.ReadFrame()
		if err != nil {
			return
		}
		if ping, ok := f.(*http2.PingFrame); ok && !ping.IsAck() {
			h.writing.Lock()
			_ = h.framer.WritePing(true, ping.Data)
			h.writing.Unlock()
		}
	}
}

// subscribe opens a call; ids are odd and ascend.
func (h *hoarder) subscribe(id uint32, request *fanfarev1.SubscribeRequest) {
	h.t.Helper()
	var headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	for _, field := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: fanfarev1.FanfareService_Subscribe_FullMethodName},
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
		w := newWorld(t, db, quickLinger, func(c *servicetest.Config) { c.Service.WriteTimeout = time.Second })
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
