package sse_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/sse"
)

// dial sends a request for a stream by a socket that takes little of what it does not read.
func (e *edge) dial(target string) net.Conn {
	e.t.Helper()
	socket, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = socket.Close() })
	_ = socket.(*net.TCPConn).SetReadBuffer(2048)
	if _, err := fmt.Fprintf(socket, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", target); err != nil {
		e.t.Fatal(err)
	}
	return socket
}

// smallWriteBuffer has the system take little of what a browser does not read.
func smallWriteBuffer(ctx context.Context, c net.Conn) context.Context {
	_ = c.(*net.TCPConn).SetWriteBuffer(4 << 10)
	return ctx
}

// Symptom: browsers that took nothing held a page each, with a frame as large as may be, and
// nothing bounded all together: twenty thousand of them would have held 20 GiB. Those that
// are stuck make room for those that read.
func TestWhatStuckBrowsersHoldOfPagesIsBounded(t *testing.T) {
	const frames, size, limit, reads = 20, 900 << 10, 4 << 20, 2
	e := start(t, func(c *sse.Config, s *http.Server) {
		c.MaxReplayBytes, c.MaxReplays, c.WriteTimeout, c.SubscribeTimeout = limit, reads, time.Hour, time.Hour
		s.ConnContext = smallWriteBuffer
	})
	var last clientlib.Position
	for range frames {
		last = e.publish("1", strings.Repeat("x", size))
	}
	e.open(one + "?from=live").until("caught_up") // the relay is at the end, so all others need pages
	before := heapBytes()
	const browsers = 16
	for i := range browsers {
		e.dial(fmt.Sprintf("%s?after=%s", one, clientlib.Position{Epoch: last.Epoch, Sequence: uint64(i % (frames - 2))})) //nolint:gosec // small
	}
	most := int64(limit + reads*(2*size+1<<20)) // a page has the payload and a block of it
	eventually(t, "stuck browsers have made room for others", func() bool {
		s := e.Stats()
		if s.ReplayBytes > most {
			t.Fatalf("%d bytes are held of pages, at most %d may be", s.ReplayBytes, most)
		}
		return s.Slow >= browsers/4
	})
	if held := heapBytes() - before; held > 4*most {
		t.Errorf("%d MiB are held", held>>20)
	}
	reader := e.open(one + "?after=" + clientlib.Position{Epoch: last.Epoch, Sequence: last.Sequence - 3}.String())
	for range 3 {
		reader.until("xxx")
	}
	if reader.id() != last.String() {
		t.Errorf("the browser that reads stands at %s of %s", reader.id(), last)
	}
}

// heapBytes is what is in use of the heap.
func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // memory
}

// Symptom: a connection that was stuck in the middle of a large frame that had just been
// published held it, though the ring had dropped it long since, and nothing bounded all of
// these together. Those that are stuck make room for those that read, who need no page for
// it.
func TestWhatStuckBrowsersHoldOfRingsIsBounded(t *testing.T) {
	const browsers, size, limit = 6, 900 << 10, 2 << 20
	const most = limit + 2*size + 1<<10 // an entry has the payload and a block of it
	e := start(t, func(c *sse.Config, s *http.Server) {
		c.MaxReplayBytes, c.RelayBytes, c.WriteTimeout = limit, 4*size, time.Hour
		s.ConnContext = smallWriteBuffer
	})
	for i := range browsers {
		e.dialLive(fmt.Sprint("stuck", i))
	}
	reader := e.open(one + "?from=live")
	reader.until("caught_up")
	pages := e.Stats().Pages
	frame := strings.Repeat("x", size)
	for i := range browsers {
		e.publish(fmt.Sprint("stuck", i), frame)
	}
	e.publish("1", frame, "a")
	eventually(t, "stuck browsers have made room for others", func() bool {
		s := e.Stats()
		if s.ReplayBytes > most {
			t.Fatalf("%d bytes are held, at most %d may be", s.ReplayBytes, most)
		}
		return s.Slow >= browsers/2
	})
	reader.expect(frame, "a")
	if n := e.Stats().Pages - pages; n != 0 {
		t.Errorf("the browser that reads needed %d pages", n)
	}
}

// dialLive is dial, and waits until what is published arrives.
func (e *edge) dialLive(scope string) net.Conn {
	e.t.Helper()
	socket := e.dial("/v1/streams/orders/" + scope + "?from=live")
	_ = socket.SetReadDeadline(time.Now().Add(patience))
	var got strings.Builder
	for part := make([]byte, 512); !strings.Contains(got.String(), "caught_up"); {
		n, err := socket.Read(part)
		if err != nil {
			e.t.Fatalf("%v after %q", err, got.String())
		}
		got.Write(part[:n])
	}
	return socket
}

// What is counted of pages and large events is given back, however those who needed them
// leave.
func TestWhatIsHeldIsGivenBack(t *testing.T) {
	e := start(t, func(c *sse.Config, s *http.Server) {
		c.RelayBytes = 1
		s.ConnContext = smallWriteBuffer
	})
	for range 8 {
		e.publish("1", strings.Repeat("x", 100<<10))
	}
	for range 3 {
		reader := e.open(one)
		reader.until("caught_up")
		reader.leave()
		stuck := e.dial(one)
		eventually(t, "a page is held", func() bool { return e.Stats().ReplayBytes > 0 })
		_ = stuck.Close()
		nothing := func() bool { s := e.Stats(); return s.Connections == 0 && s.ReplayBytes == 0 }
		eventually(t, "nothing is held of pages", nothing)
		stuck = e.dialLive("1")
		e.publish("1", strings.Repeat("x", 100<<10), "what the ring keeps instead")
		eventually(t, "an event is held that the ring does not keep", func() bool { return e.Stats().ReplayBytes > 0 })
		_ = stuck.Close()
		eventually(t, "nothing is held of the ring", nothing)
	}
}

// Symptom: a browser behind a slow line that took all it could was ended all the same,
// because 64 KiB had to pass in each write timeout, and a frame that did not pass was begun
// anew, for ever.
func TestABrowserThatIsSlowGetsALargeFrame(t *testing.T) {
	const size, step, pause = 160 << 10, 1 << 10, 25 * time.Millisecond // 40 KiB/s
	e := start(t, func(c *sse.Config, _ *http.Server) { c.WriteTimeout = time.Second })
	e.publish("1", strings.Repeat("x", size))
	socket := e.pipe(one)
	began, part := time.Now(), make([]byte, step)
	var got strings.Builder
	for !strings.Contains(got.String()[max(0, got.Len()-2*step):], "caught_up") {
		n, err := io.ReadAtLeast(socket, part, 1)
		if err != nil {
			t.Fatalf("%s and %d bytes later: %v; %+v", time.Since(began), got.Len(), err, e.Stats())
		}
		got.Write(part[:n])
		// Its line passes so much in this time.
		<-time.After(time.Until(began.Add(pause * time.Duration(got.Len()) / step)))
	}
	if n := strings.Count(got.String(), "x"); n < size {
		t.Errorf("%d bytes of the frame came, of %d", n, size)
	}
}

// Symptom: a heartbeat that fell due between two parts of what a browser is sent was written
// while memory was held, and not taken for a write that may be broken: one browser that took
// no more just there held up all who waited for that, until its write timeout.
func TestAHeartbeatThatIsStuckHoldsNobodyUp(t *testing.T) {
	const size = 20 << 10 // each is a batch of its own
	begin := func(t *testing.T) *edge {
		return start(t, func(c *sse.Config, _ *http.Server) {
			c.Heartbeat = 1 // one is due before each batch
			c.MaxReplayBytes, c.RelayBytes, c.WriteTimeout = 1, 1, time.Hour
		})
	}
	frame := strings.Repeat("x", size)
	taken := func(t *testing.T, socket net.Conn, end string) {
		t.Helper()
		var got []byte
		for part := make([]byte, 1); !strings.HasSuffix(string(got[max(0, len(got)-len(end)):]), end); {
			if _, err := socket.Read(part); err != nil {
				t.Fatalf("%v after %q", err, got)
			}
			got = append(got, part...)
		}
	}
	const end = "xx\n\n\r\n" // of a batch, and its chunk

	t.Run("within a page", func(t *testing.T) {
		e := begin(t)
		e.publish("1", frame, frame, frame, "last")
		taken(t, e.pipe(one), end)
		e.open(one).until("last")
		if slow := e.Stats().Slow; slow != 1 {
			t.Errorf("%d browsers were too slow", slow)
		}
	})
	nothing := func(t *testing.T, e *edge) {
		t.Helper()
		eventually(t, "what has been written is held no more", func() bool { return e.Stats().ReplayBytes == 0 })
		if s := e.Stats(); s.Connections != 1 || s.Slow != 0 {
			t.Errorf("the browser that holds nothing was ended: %+v", s)
		}
	}
	t.Run("after a page", func(t *testing.T) {
		e := begin(t)
		e.publish("1", frame, "last")
		taken(t, e.pipe(one), end)
		nothing(t, e)
	})
	t.Run("after a large event", func(t *testing.T) {
		e := begin(t)
		socket := e.pipe(one + "?from=live")
		taken(t, socket, "caught_up")
		e.publish("1", frame)
		taken(t, socket, end)
		nothing(t, e)
	})
}

// pipe sends a request for a stream by a connection that buffers nothing.
func (e *edge) pipe(target string) net.Conn {
	e.t.Helper()
	socket, served := net.Pipe()
	line := make(oneConn, 1)
	line <- served
	server := &http.Server{Handler: e.Handler, ReadHeaderTimeout: patience}
	go func() { _ = server.Serve(line) }()
	e.t.Cleanup(func() {
		_ = socket.Close()
		_ = server.Close()
	})
	_ = socket.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintf(socket, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", target); err != nil {
		e.t.Fatal(err)
	}
	return socket
}

// oneConn is a listener to which the connection in it comes.
type oneConn chan net.Conn

func (l oneConn) Accept() (net.Conn, error) {
	if c, ok := <-l; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (l oneConn) Close() error {
	close(l)
	return nil
}

func (l oneConn) Addr() net.Addr { return &net.TCPAddr{} }
