package load

import (
	"errors"
	"fmt"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// read takes what the server sends, until the connection ends, and then ends what
// is open on it.
func (c *Conn) read() {
	framer := http2.NewFramer(nil, c.in)
	framer.SetReuseFrames()
	framer.SetMaxReadFrameSize(maxReadFrame)
	for {
		frame, err := framer.ReadFrame()
		if err == nil {
			err = c.take(frame)
		}
		var ofStream http2.StreamError
		switch {
		case err == nil:
		case errors.As(err, &ofStream):
			c.refuse(ofStream.StreamID, status.Errorf(codes.Internal, "the server broke the protocol: %v", err))
		case errors.As(err, new(http2.ConnectionError)), errors.Is(err, http2.ErrFrameTooLarge):
			c.fail(status.Errorf(codes.Internal, "the server broke the protocol: %v", err))
		default:
			c.fail(lost(err))
		}
		if c.endAll() {
			return
		}
	}
}

// endAll ends every stream if the connection has ended.
func (c *Conn) endAll() bool {
	select {
	case <-c.ended:
	default:
		return false
	}
	c.mu.Lock()
	open, err := c.streams, c.err
	c.streams = nil
	c.blocked = nil
	c.mu.Unlock()
	for _, s := range open {
		s.receiver.end(err)
	}
	return true
}

// protocolError is an error of the server that ends the connection.
func protocolError(format string, arguments ...any) error {
	return fmt.Errorf(format+": %w", append(arguments, http2.ConnectionError(http2.ErrCodeProtocol))...)
}

// take handles a frame of HTTP/2.
func (c *Conn) take(frame http2.Frame) error {
	if settings, ok := frame.(*http2.SettingsFrame); ok {
		return c.takeSettings(settings)
	}
	if !c.settled {
		return protocolError("%v before SETTINGS", frame.Header().Type)
	}
	switch f := frame.(type) {
	case *http2.DataFrame:
		return c.takeData(f)
	case *http2.HeadersFrame:
		return c.takeHeaders(f.StreamID, f.HeaderBlockFragment(), f.HeadersEnded(), f.StreamEnded())
	case *http2.ContinuationFrame:
		return c.takeHeaders(f.StreamID, f.HeaderBlockFragment(), f.HeadersEnded(), c.fields.last)
	case *http2.RSTStreamFrame:
		if s := c.remove(f.StreamID); s != nil {
			s.receiver.end(resetError(f.ErrCode))
		}
	case *http2.WindowUpdateFrame:
		return c.takeWindow(f.StreamID, int64(f.Increment))
	case *http2.PingFrame:
		if !f.IsAck() {
			return c.answer(func() error { return c.framer.WritePing(true, f.Data) })
		}
	case *http2.GoAwayFrame:
		c.takeGoAway(f.LastStreamID, f.ErrCode, string(f.DebugData()))
	case *http2.PushPromiseFrame:
		return protocolError("a push, which was disabled")
	}
	return nil
}

// answer collects a frame that the reader has to send. It does not wait for the
// server, which may itself be waiting for the reader.
func (c *Conn) answer(write func() error) error {
	c.mu.Lock()
	c.must(write())
	waiting := c.out.Len()
	c.mu.Unlock()
	c.signal()
	if waiting > maxOutbox {
		return errors.New("the server does not read")
	}
	return nil
}

// takeSettings applies what the server admits.
func (c *Conn) takeSettings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	c.mu.Lock()
	err := f.ForeachSetting(func(s http2.Setting) error {
		if err := s.Valid(); err != nil {
			return err
		}
		switch s.ID {
		case http2.SettingInitialWindowSize:
			for _, open := range c.streams {
				open.window += int64(s.Val) - c.streamWindow
			}
			c.streamWindow = int64(s.Val)
		case http2.SettingMaxConcurrentStreams:
			c.maxStreams = s.Val
		case http2.SettingMaxFrameSize:
			c.maxFrame = int(s.Val)
		case http2.SettingHeaderTableSize:
			c.encoder.SetMaxDynamicTableSizeLimit(s.Val)
		}
		return nil
	})
	c.sendBlockedLocked()
	c.mu.Unlock()
	if err != nil {
		return err
	}
	if !c.settled {
		c.settled = true
		close(c.ready)
	}
	return c.answer(c.framer.WriteSettingsAck)
}

// takeData hands the bytes of a stream on and keeps the windows wide. Bytes of a
// stream that has been given up count against the connection's window all the same.
func (c *Conn) takeData(f *http2.DataFrame) error {
	c.consumed += f.Length
	if c.consumed >= windowDebt {
		debt := c.consumed
		c.consumed = 0
		if err := c.answer(func() error { return c.framer.WriteWindowUpdate(0, debt) }); err != nil {
			return err
		}
	}
	s, err := c.find(f.StreamID)
	if s == nil {
		return err
	}
	s.consumed += f.Length
	if s.consumed >= windowDebt {
		debt := s.consumed
		s.consumed = 0
		if err := c.answer(func() error { return c.framer.WriteWindowUpdate(f.StreamID, debt) }); err != nil {
			return err
		}
	}
	if err := s.take(f.Data(), c.in.at); err != nil {
		c.refuse(f.StreamID, err)
		return nil
	}
	if f.StreamEnded() {
		if s := c.remove(f.StreamID); s != nil {
			s.receiver.end(status.Error(codes.Internal, "the server ended the call without a status"))
		}
	}
	return nil
}

// takeHeaders decodes a header block, which also those of calls given up need: the
// table of the compression is the connection's.
func (c *Conn) takeHeaders(id uint32, fragment []byte, complete, last bool) error {
	c.fields.last = last
	c.fields.bytes += len(fragment)
	if c.fields.bytes > maxHeaderBytes {
		return protocolError("a header block of more than %d bytes", maxHeaderBytes)
	}
	if _, err := c.decoder.Write(fragment); err != nil {
		return protocolError("a header block: %v", err)
	}
	if !complete {
		return nil
	}
	if err := c.decoder.Close(); err != nil {
		return protocolError("a header block: %v", err)
	}
	block := c.fields
	c.fields = fields{}
	s, err := c.find(id)
	if s == nil {
		return err
	}
	switch err := block.check(s.hasHeaders); {
	case err != nil:
		c.refuse(id, err)
	case last:
		if s := c.remove(id); s != nil {
			s.receiver.end(block.outcome(len(s.partial)))
		}
	default:
		s.hasHeaders = true
	}
	return nil
}

// takeWindow widens what may be sent.
func (c *Conn) takeWindow(id uint32, by int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	window := &c.connWindow
	if id != 0 {
		s := c.streams[id]
		if s == nil {
			return nil
		}
		window = &s.window
	}
	if *window += by; *window > maxWindow {
		return protocolError("a window of more than 2^31-1 bytes")
	}
	c.sendBlockedLocked()
	return nil
}

// takeGoAway opens no stream any more, and ends those that the server has not
// taken. The others go on.
func (c *Conn) takeGoAway(last uint32, code http2.ErrCode, text string) {
	err := status.Errorf(codes.Unavailable, "the server goes away: %v %s", code, text)
	var refused []*stream
	c.mu.Lock()
	c.away = err
	for id, s := range c.streams {
		if id > last {
			refused = append(refused, s)
			delete(c.streams, id)
		}
	}
	c.mu.Unlock()
	for _, s := range refused {
		s.receiver.end(err)
	}
}

// find returns an open stream, nil if it was open once, and an error if it never
// was.
func (c *Conn) find(id uint32) (*stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams[id]; s != nil {
		return s, nil
	}
	if id >= c.nextID || id%2 == 0 {
		return nil, protocolError("stream %d, which was never opened", id)
	}
	return nil, nil
}

// remove takes a stream out whose end the server has told, and returns it; nil if it
// is not open. The server need not be told, unless it has not had the whole request.
func (c *Conn) remove(id uint32) *stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.streams[id]
	if s == nil {
		return nil
	}
	delete(c.streams, id)
	if len(s.unsent) > 0 {
		s.unsent = nil
		c.must(c.framer.WriteRSTStream(id, http2.ErrCodeNo))
		c.signal()
	}
	return s
}

// refuse gives a stream up, tells the server, and ends it with err.
func (c *Conn) refuse(id uint32, err error) {
	if s := c.giveUp(id); s != nil {
		s.receiver.end(err)
	}
}

// giveUp takes a stream out and has the server send nothing more for it. It returns
// nil if the stream is not open.
func (c *Conn) giveUp(id uint32) *stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.streams[id]
	if s == nil {
		return nil
	}
	delete(c.streams, id)
	s.unsent = nil
	c.must(c.framer.WriteRSTStream(id, http2.ErrCodeCancel))
	c.signal()
	return s
}
