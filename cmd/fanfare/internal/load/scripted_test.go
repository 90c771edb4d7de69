package load

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// script is the server's side of one connection, frame by frame.
type script struct {
	*http2.Framer
	t       *testing.T
	block   bytes.Buffer
	encoder *hpack.Encoder
}

// serveScript serves one connection by a script, behind the greeting. The connection
// ends with the script.
func serveScript(t *testing.T, network, address string, settings []http2.Setting, run func(*script)) string {
	t.Helper()
	socket, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { socket.Close(); <-done })
	go func() {
		defer close(done)
		conn, err := socket.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(deadline))
		if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
			t.Error(err)
			return
		}
		s := &script{Framer: http2.NewFramer(conn, conn), t: t}
		s.AllowIllegalWrites = true
		s.encoder = hpack.NewEncoder(&s.block)
		s.check(s.WriteSettings(settings...))
		run(s)
	}()
	return socket.Addr().String()
}

func (s *script) check(err error) {
	if err != nil {
		s.t.Errorf("script: %v", err)
	}
}

// await reads until a frame is as wanted. It returns nil if the connection ends.
func (s *script) await(is func(http2.Frame) bool) http2.Frame {
	for {
		frame, err := s.ReadFrame()
		if err != nil {
			return nil
		}
		if is(frame) {
			return frame
		}
	}
}

// call waits for the end of a request and returns its stream.
func (s *script) call() uint32 {
	frame := s.await(func(f http2.Frame) bool {
		data, ok := f.(*http2.DataFrame)
		return ok && data.StreamEnded()
	})
	if frame == nil {
		s.t.Error("script: no call came")
		return 1
	}
	return frame.Header().StreamID
}

// untilClosed reads until the client closes the connection.
func (s *script) untilClosed() { s.await(func(http2.Frame) bool { return false }) }

func (s *script) encode(fields ...string) []byte {
	s.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		s.check(s.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
	}
	return s.block.Bytes()
}

func (s *script) headers(id uint32, last bool, fields ...string) {
	s.check(s.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: s.encode(fields...), EndHeaders: true, EndStream: last}))
}

func (s *script) begin(id uint32) {
	s.headers(id, false, ":status", "200", "content-type", "application/grpc")
}

func (s *script) message(id uint32, b []byte) { s.check(s.WriteData(id, false, prefixed(b))) }

// prefixed returns a message as gRPC sends it.
func prefixed(b []byte) []byte {
	out := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b)))
	return append(out, b...)
}

func (s *script) ok(id uint32) { s.headers(id, true, "grpc-status", "0", "grpc-message", "") }

// scripted connects to a script.
func scripted(t *testing.T, run func(*script)) *Conn {
	return connect(t, serveScript(t, "tcp", "127.0.0.1:0", nil, run), Options{})
}

func TestAnswersThatAreWrong(t *testing.T) {
	for _, test := range []struct {
		name   string
		answer func(*script, uint32)
		code   codes.Code
		text   string
	}{
		{"a status in the first headers", func(s *script, id uint32) {
			s.headers(id, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "9", "grpc-message", "not%20yet")
		}, codes.FailedPrecondition, "not yet"},
		{"a reset", func(s *script, id uint32) { s.check(s.WriteRSTStream(id, http2.ErrCodeRefusedStream)) }, codes.Unavailable, "REFUSED_STREAM"},
		{"a page", func(s *script, id uint32) {
			s.headers(id, false, ":status", "200", "content-type", "text/html")
			s.check(s.WriteData(id, true, []byte("<html>")))
		}, codes.Unknown, "text/html"},
		{"an HTTP status", func(s *script, id uint32) { s.headers(id, true, ":status", "503") }, codes.Unknown, "503"},
		{"no status", func(s *script, id uint32) { s.begin(id); s.check(s.WriteData(id, true, nil)) }, codes.Internal, "without a status"},
		{"a status that is no number", func(s *script, id uint32) { s.begin(id); s.headers(id, true, "grpc-status", "fine") }, codes.Internal, "fine"},
		{"no message", func(s *script, id uint32) { s.begin(id); s.ok(id) }, codes.Internal, "without an answer"},
		{"two messages", func(s *script, id uint32) { s.begin(id); s.message(id, nil); s.message(id, nil) }, codes.Internal, "twice"},
		{"half a message", func(s *script, id uint32) {
			s.begin(id)
			s.check(s.WriteData(id, false, []byte{0, 0, 0, 0, 2, 1}))
			s.ok(id)
		}, codes.Internal, "within a message"},
		{"a message before headers", func(s *script, id uint32) { s.message(id, nil) }, codes.Internal, "before its headers"},
		{"a compressed message", func(s *script, id uint32) { s.begin(id); s.check(s.WriteData(id, false, []byte{1, 0, 0, 0, 0})) }, codes.Internal, "compressed"},
		{"a message without an end", func(s *script, id uint32) {
			s.begin(id)
			s.check(s.WriteData(id, false, []byte{0, 255, 255, 255, 255}))
		}, codes.Internal, "4294967295"},
		{"headers twice", func(s *script, id uint32) { s.begin(id); s.begin(id) }, codes.Internal, "twice"},
		{"a window of no bytes more", func(s *script, id uint32) {
			s.check(s.WriteRawFrame(http2.FrameWindowUpdate, 0, id, []byte{0, 0, 0, 0}))
		}, codes.Internal, "protocol"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := scripted(t, func(s *script) {
				test.answer(s, s.call())
				// The connection is as good as before.
				next := s.call()
				s.begin(next)
				s.message(next, []byte("next"))
				s.ok(next)
				s.untilClosed()
			})
			_, err := c.Call(t.Context(), "/call", []byte("request"))
			if s := status.Convert(err); s.Code() != test.code || !strings.Contains(s.Message(), test.text) {
				t.Errorf("the call ended %v, want %v with %q", err, test.code, test.text)
			}
			if b, err := c.Call(t.Context(), "/call", nil); err != nil || string(b) != "next" {
				t.Errorf("the next call: %q, %v", b, err)
			}
		})
	}
}

func TestConnectionsThatAreWrong(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault func(*script)
		code  codes.Code
	}{
		{"an end", func(*script) {}, codes.Unavailable},
		{"a stream never opened", func(s *script) { s.begin(7) }, codes.Internal},
		{"a stream of the server", func(s *script) { s.begin(2) }, codes.Internal},
		{"data of a stream never opened", func(s *script) { s.message(9, nil) }, codes.Internal},
		{"a push", func(s *script) {
			s.check(s.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true}))
		}, codes.Internal},
		{"a header block that is none", func(s *script) {
			s.check(s.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff}, EndHeaders: true}))
		}, codes.Internal},
		{"a header block without an end", func(s *script) {
			s.check(s.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: make([]byte, 16<<10)}))
			for range maxHeaderBytes >> 14 {
				// The client may have closed the connection by then.
				_ = s.WriteContinuation(1, false, bytes.Repeat([]byte{0x82}, 16<<10))
			}
		}, codes.Internal},
		{"too much of a window", func(s *script) { s.check(s.WriteWindowUpdate(0, maxWindow)) }, codes.Internal},
		{"a setting out of its range", func(s *script) {
			s.check(s.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31}))
		}, codes.Internal},
		{"a frame that is too long", func(s *script) {
			_ = s.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, 1<<24-1))
		}, codes.Internal},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := scripted(t, func(s *script) { s.call(); test.fault(s) })
			_, err := c.Call(t.Context(), "/call", nil)
			if status.Code(err) != test.code {
				t.Errorf("the call ended %v, want %v", err, test.code)
			}
			if _, err := c.Call(t.Context(), "/call", nil); status.Code(err) != test.code {
				t.Errorf("the next call ended %v, want %v", err, test.code)
			}
		})
	}
}

// A server that goes away refuses what it has not taken, and finishes the rest.
func TestGoingAwayEndsWhatWasNotTaken(t *testing.T) {
	c := scripted(t, func(s *script) {
		subscribed := s.call()
		s.begin(subscribed)
		s.call()
		s.check(s.WriteGoAway(subscribed, http2.ErrCodeNo, []byte("maintenance")))
		s.message(subscribed, notice(2, position(4)))
		s.message(subscribed, response(durable(5)))
		s.untilClosed()
	})
	f := newFollower()
	if _, err := c.Subscribe(live("orders"), f); err != nil {
		t.Fatal(err)
	}
	for _, which := range []string{"the call", "the next call"} {
		if _, err := c.Call(t.Context(), "/call", nil); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "maintenance") {
			t.Errorf("%s ended %v", which, err)
		}
	}
	f.awaitFrame(t, 5)
	f.check(t)
}

func TestServersThatSpeakSomethingElse(t *testing.T) {
	for name, greeting := range map[string]string{
		"HTTP/1.1":        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\r\nno",
		"nothing":         "",
		"no SETTINGS":     "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678",
		"noise":           strings.Repeat("\xfe\x01\x9c", 100),
		"half a greeting": "\x00\x00\x06\x04\x00\x00",
	} {
		t.Run(name, func(t *testing.T) {
			socket, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer socket.Close()
			go func() {
				if conn, err := socket.Accept(); err == nil {
					_, _ = io.WriteString(conn, greeting)
					_ = conn.(*net.TCPConn).CloseWrite()
					_, _ = io.Copy(io.Discard, conn)
					conn.Close()
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			if c, err := Dial(ctx, socket.Addr().String(), Options{}); err == nil {
				c.Close()
				t.Error("it was taken for a server")
			} else if ctx.Err() != nil {
				t.Error("Dial waited for more")
			}
		})
	}
}

func TestServerThatSaysNothing(t *testing.T) {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, socket.Addr().String(), Options{}); status.Code(err) != codes.Unknown || ctx.Err() == nil {
		t.Errorf("Dial returned %v", err)
	}
}

// TestRequestsKeepToTheWindows has a server that admits little at a time, and widens
// one window or the other in turn.
func TestRequestsKeepToTheWindows(t *testing.T) {
	const window, size = 100, 100_000
	settings := []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: window}}
	address := serveScript(t, "tcp", "127.0.0.1:0", settings, func(s *script) {
		stream, connection, got := window, initialWindow, 0
		for {
			data, ok := s.await(func(f http2.Frame) bool { return f.Header().Type == http2.FrameData }).(*http2.DataFrame)
			if !ok {
				t.Error("the request did not end")
				return
			}
			n := len(data.Data())
			got, stream, connection = got+n, stream-n, connection-n
			if stream < 0 || connection < 0 {
				t.Errorf("after %d bytes the windows are at %d and %d", got, stream, connection)
				return
			}
			if data.StreamEnded() {
				break
			}
			if connection == 0 {
				s.check(s.WriteWindowUpdate(0, 50_000))
				connection += 50_000
			}
			if stream == 0 {
				s.check(s.WriteWindowUpdate(data.StreamID, 7_000))
				stream += 7_000
			}
		}
		if want := size + prefixBytes; got != want {
			t.Errorf("got %d bytes, want %d", got, want)
		}
		s.begin(1)
		s.message(1, []byte("done"))
		s.ok(1)
		s.untilClosed()
	})
	b, err := connect(t, address, Options{}).Call(t.Context(), "/call", make([]byte, size))
	if err != nil || string(b) != "done" {
		t.Errorf("the call: %q, %v", b, err)
	}
}

func TestPingsAndSettingsAreAnswered(t *testing.T) {
	c := scripted(t, func(s *script) {
		id := s.call()
		s.check(s.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0}))
		s.check(s.WritePing(false, [8]byte{1, 2, 3}))
		acknowledged := false
		s.await(func(f http2.Frame) bool {
			if settings, ok := f.(*http2.SettingsFrame); ok && settings.IsAck() {
				acknowledged = true
			}
			ping, ok := f.(*http2.PingFrame)
			return ok && ping.IsAck() && ping.Data == [8]byte{1, 2, 3}
		})
		if !acknowledged {
			t.Error("the settings were not acknowledged before the ping behind them")
		}
		s.begin(id)
		s.message(id, nil)
		s.ok(id)
		s.untilClosed()
	})
	if _, err := c.Call(t.Context(), "/call", nil); err != nil {
		t.Error(err)
	}
}

// TestMessagesInPieces splits headers and messages everywhere, and pads.
func TestMessagesInPieces(t *testing.T) {
	frames := append(prefixed(response(durable(3), durable(4), ephemeral)), prefixed(response(durable(5)))...)
	frames = append(prefixed(notice(2, position(2))), frames...)
	c := scripted(t, func(s *script) {
		id := s.call()
		block := s.encode(":status", "200", "content-type", "application/grpc+proto")
		s.check(s.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:3]}))
		s.check(s.WriteContinuation(id, true, block[3:]))
		for _, b := range frames {
			s.check(s.WriteDataPadded(id, false, []byte{b}, make([]byte, 3)))
		}
		s.ok(id)
		s.untilClosed()
	})
	f := newFollower()
	if _, err := c.Subscribe(&fanfarev1.SubscribeRequest{Channel: "pieces"}, f); err != nil {
		t.Fatal(err)
	}
	if err := f.awaitEnd(t); err != nil {
		t.Error(err)
	}
	f.check(t)
	if f.order.Last() != 5 || f.order.Durable() != 3 || f.order.Ephemeral() != 1 {
		t.Errorf("got %d durable frames up to %d and %d ephemeral ones", f.order.Durable(), f.order.Last(), f.order.Ephemeral())
	}
}

func TestSocketsOfTheFileSystem(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	serveScript(t, "unix", path, nil, (*script).untilClosed)
	connect(t, "unix://"+path, Options{})
}
