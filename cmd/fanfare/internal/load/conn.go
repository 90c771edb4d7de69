package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// maxWindow is the greatest window of HTTP/2 (RFC 9113, section 6.9.1).
	maxWindow = 1<<31 - 1
	// initialWindow is the window of a connection, and of streams until SETTINGS
	// say otherwise (RFC 9113, section 6.9.2).
	initialWindow = 1<<16 - 1
	// windowDebt is how much of a window may be used up before it is widened again.
	// Half of it is seldom enough to cost nothing, and early enough that a server
	// never waits.
	windowDebt = maxWindow / 2
	// maxReadFrame is the longest frame that a server may send without having been
	// told otherwise (RFC 9113, section 6.5.2).
	maxReadFrame = 16 << 10
	// maxOutbox bounds what waits for a server that does not read, in bytes.
	maxOutbox = 64 << 20
	// maxStreamID is the last one; a connection cannot open further streams.
	maxStreamID = 1<<31 - 1
)

// ErrClosed is how streams and calls end that were open at Close.
var ErrClosed = errors.New("the connection was closed here")

// ErrStreamLimit is returned for a stream that the server's bound on concurrent
// streams of a connection does not admit.
var ErrStreamLimit = errors.New("the server admits no further stream on this connection")

// Options tune a connection. The zero value is the default.
type Options struct {
	// StreamWindow is what a stream opened by SubscribeHeld takes, in bytes. All
	// others are widened. 0: 2^31-1, with which no stream is held.
	StreamWindow uint32
	// Metadata is sent with every call: names in lower case, and their values. It is not
	// changed afterwards. Nil: nothing.
	Metadata map[string]string
}

// Conn is a connection to a server. Its methods are safe for concurrent use.
type Conn struct {
	socket  net.Conn
	options Options
	// running is the reader and the writer.
	running sync.WaitGroup
	// ready is closed when the server's SETTINGS have come.
	ready chan struct{}
	// ended is closed when the connection has failed or was closed.
	ended chan struct{}
	// wake tells the writer that there is something to write.
	wake chan struct{}

	// What follows is the reader's.
	in      *inbox
	decoder *hpack.Decoder
	// fields is what the header block at hand has said so far.
	fields   fields
	settled  bool
	consumed uint32

	// mu guards what follows. Nothing blocks while holding it.
	mu  sync.Mutex
	err error
	// away is why no stream can be opened any more, although open ones go on.
	away    error
	streams map[uint32]*stream
	nextID  uint32
	// out is what the writer takes next; framer and encoder write to it. Streams are
	// opened in the order of their headers in it.
	out     bytes.Buffer
	framer  *http2.Framer
	encoder *hpack.Encoder
	block   bytes.Buffer
	// What the server admits.
	maxStreams   uint32
	maxFrame     int
	streamWindow int64
	connWindow   int64
	// blocked are the streams whose request waits for a window, in their order.
	blocked []*stream
}

// Dial connects to a server without TLS, at host:port or unix:///PATH, and waits for
// its SETTINGS.
func Dial(ctx context.Context, address string, o Options) (*Conn, error) {
	network, where := "tcp", address
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		network, where = "unix", path
	}
	var d net.Dialer
	socket, err := d.DialContext(ctx, network, where)
	if err != nil {
		return nil, err
	}
	c := newConn(socket, o)
	select {
	case <-c.ready:
		return c, nil
	case <-c.ended:
		err = c.failure()
	case <-ctx.Done():
		err = ctx.Err()
	}
	_ = c.Close()
	return nil, fmt.Errorf("greet %s: %w", address, err)
}

// newConn runs a connection on a socket.
func newConn(socket net.Conn, o Options) *Conn {
	if o.StreamWindow == 0 {
		o.StreamWindow = maxWindow
	}
	c := &Conn{
		socket: socket, options: o,
		ready: make(chan struct{}), ended: make(chan struct{}), wake: make(chan struct{}, 1),
		in:      newInbox(socket),
		streams: map[uint32]*stream{}, nextID: 1,
		maxStreams: maxStreamID, maxFrame: 16 << 10, streamWindow: initialWindow, connWindow: initialWindow,
	}
	c.decoder = hpack.NewDecoder(4096, c.fields.take)
	c.decoder.SetMaxStringLength(maxHeaderBytes)
	c.framer = http2.NewFramer(&c.out, nil)
	c.encoder = hpack.NewEncoder(&c.block)

	c.out.WriteString(http2.ClientPreface)
	c.must(c.framer.WriteSettings(
		http2.Setting{ID: http2.SettingEnablePush, Val: 0},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: o.StreamWindow},
	))
	c.must(c.framer.WriteWindowUpdate(0, maxWindow-initialWindow))
	c.signal()
	c.running.Go(c.read)
	c.running.Go(c.write)
	return c
}

// Close ends the connection, and all that is open on it with ErrClosed, and waits
// until no handler is called any more. A handler must not call it.
func (c *Conn) Close() error {
	c.fail(ErrClosed)
	c.running.Wait()
	return nil
}

// failure is what the connection ended with; nil while it has not.
func (c *Conn) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// fail ends the connection with the first error that it is given. The reader ends
// what is open.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	close(c.ended)
	_ = c.socket.Close()
}

// write sends what has been collected, as often as there is something.
func (c *Conn) write() {
	var sending bytes.Buffer
	for {
		select {
		case <-c.wake:
		case <-c.ended:
			return
		}
		c.mu.Lock()
		c.out, sending = sending, c.out
		c.mu.Unlock()
		if _, err := sending.WriteTo(c.socket); err != nil {
			c.fail(lost(err))
			return
		}
	}
}

// signal tells the writer that something waits.
func (c *Conn) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// must is for writes of frames to a buffer in memory: these fail only if a frame is
// wrong.
func (c *Conn) must(err error) {
	if err != nil {
		panic(err)
	}
}

// lost is the error of what was open when the connection broke.
func lost(err error) error {
	return status.Errorf(codes.Unavailable, "the connection was lost: %v", err)
}

// inbox reads from a socket through a buffer that grows as long as reads fill it: a
// connection with little to read needs little.
type inbox struct {
	socket net.Conn
	buffer []byte
	from   int
	to     int
	// at is when the bytes in the buffer were read.
	at time.Time
}

const (
	minInbox = 4 << 10
	maxInbox = 256 << 10
)

func newInbox(socket net.Conn) *inbox {
	return &inbox{socket: socket, buffer: make([]byte, minInbox)}
}

func (i *inbox) Read(p []byte) (int, error) {
	if i.from == i.to {
		if i.to == len(i.buffer) && i.to < maxInbox {
			i.buffer = make([]byte, 2*len(i.buffer))
		}
		n, err := i.socket.Read(i.buffer)
		if n == 0 {
			return 0, err
		}
		i.from, i.to, i.at = 0, n, time.Now()
	}
	n := copy(p, i.buffer[i.from:i.to])
	i.from += n
	return n, nil
}
