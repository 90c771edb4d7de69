package service_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// clockBase is what the times in stamped payloads count from.
var clockBase = time.Now()

// stampBytes is how long a stamp is: the time of sending and a number.
const stampBytes = 16

// stamped is a payload of size bytes, at least stampBytes, that says when it is
// sent and which one it is.
func stamped(number uint64, size int) []byte {
	b := make([]byte, max(size, stampBytes))
	binary.BigEndian.PutUint64(b, uint64(time.Since(clockBase)))
	binary.BigEndian.PutUint64(b[8:], number)
	return b
}

// tally is one subscription whose frames, all stamped, are checked and counted
// and not kept: a thousand of them cost little beside the server.
type tally struct {
	stream grpc.ClientStream
	cancel context.CancelFunc
	// epoch and last are the position of the last durable frame; number is the
	// number of the last ephemeral one.
	epoch, last, number uint64
	// count counts frames. It may be read while the subscription is.
	count atomic.Int64
	// notice is the last notice.
	notice *fanfarev1.SubscribeResponse

	mu        sync.Mutex // guards latencies
	latencies []uint32   // in microseconds
}

// tallyCodec decodes responses of Subscribe straight into a tally.
type tallyCodec struct{ encoding.CodecV2 }

func (c tallyCodec) Unmarshal(data mem.BufferSlice, v any) error {
	t, ok := v.(*tally)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	return t.add(data.Materialize())
}

var subscribeStream = &grpc.StreamDesc{StreamName: "Subscribe", ServerStreams: true}

// openTally opens a subscription and waits for Subscribed. It is cancelled when
// ctx ends.
func openTally(ctx context.Context, conn grpc.ClientConnInterface, request *fanfarev1.SubscribeRequest) (*tally, error) {
	ctx, cancel := context.WithCancel(ctx)
	t := &tally{cancel: cancel}
	err := t.open(ctx, conn, request)
	if err != nil {
		cancel()
	}
	return t, err
}

func (t *tally) open(ctx context.Context, conn grpc.ClientConnInterface, request *fanfarev1.SubscribeRequest) (err error) {
	t.stream, err = conn.NewStream(ctx, subscribeStream, fanfarev1.FanfareService_Subscribe_FullMethodName,
		grpc.ForceCodecV2(tallyCodec{encoding.GetCodecV2(protocodec.Name)}))
	if err == nil {
		err = t.stream.SendMsg(request)
	}
	if err == nil {
		err = t.stream.CloseSend()
	}
	if err == nil {
		err = t.recv()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	start := t.notice.GetSubscribed().GetResumeAfter()
	if start == nil {
		return fmt.Errorf("the first response is %v", t.notice)
	}
	t.epoch, t.last = start.GetEpoch(), start.GetSequence()
	return nil
}

// recv takes one response.
func (t *tally) recv() error { return t.stream.RecvMsg(t) }

// readTo reads until count frames have come in all.
func (t *tally) readTo(count int64) error {
	for t.count.Load() < count {
		if err := t.recv(); err != nil {
			return fmt.Errorf("after %d of %d frames: %w", t.count.Load(), count, err)
		}
	}
	return nil
}

// readToEnd reads until the call ends and returns how it did.
func (t *tally) readToEnd() error {
	for {
		if err := t.recv(); err != nil {
			return err
		}
	}
}

// position is where a client would resume.
func (t *tally) position() *fanfarev1.Position {
	return &fanfarev1.Position{Epoch: t.epoch, Sequence: t.last}
}

// takeLatencies returns how long frames took since the last call.
func (t *tally) takeLatencies() []uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.latencies
	t.latencies = nil
	return taken
}

// add adds what a response carries.
func (t *tally) add(message []byte) error {
	for rest := message; len(rest) > 0; {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if number != 1 {
			t.notice = &fanfarev1.SubscribeResponse{}
			return proto.Unmarshal(message, t.notice)
		}
		if kind != protowire.BytesType {
			return fmt.Errorf("frames have the wire type %d", kind)
		}
		frame, m := protowire.ConsumeBytes(rest[n:])
		if m < 0 {
			return protowire.ParseError(m)
		}
		if err := t.addFrame(frame); err != nil {
			return err
		}
		rest = rest[n+m:]
	}
	return nil
}

// addFrame checks that a frame is the one that is due.
func (t *tally) addFrame(frame []byte) error {
	epoch, sequence, payload, err := frameFields(frame)
	if err != nil {
		return err
	}
	if len(payload) < stampBytes {
		return fmt.Errorf("a payload of %d bytes", len(payload))
	}
	sent := time.Duration(binary.BigEndian.Uint64(payload))
	if sequence == 0 {
		number := binary.BigEndian.Uint64(payload[8:])
		if t.number != 0 && number != t.number+1 {
			return fmt.Errorf("ephemeral frame %d came after %d", number, t.number)
		}
		t.number = number
	} else {
		if sequence != t.last+1 {
			return fmt.Errorf("sequence %d came after %d", sequence, t.last)
		}
		t.epoch, t.last = epoch, sequence
	}
	t.count.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.latencies = append(t.latencies, uint32(min((time.Since(clockBase)-sent).Microseconds(), 1<<31)))
	return nil
}

// frameFields returns the position, 0 of an ephemeral frame, and the payload.
func frameFields(frame []byte) (epoch, sequence uint64, payload []byte, err error) {
	for len(frame) > 0 {
		number, kind, n := protowire.ConsumeTag(frame)
		if n < 0 {
			return 0, 0, nil, protowire.ParseError(n)
		}
		m := protowire.ConsumeFieldValue(number, kind, frame[n:])
		if m < 0 {
			return 0, 0, nil, protowire.ParseError(m)
		}
		value := frame[n : n+m]
		switch number {
		case 1:
			p := &fanfarev1.Position{}
			body, _ := protowire.ConsumeBytes(value)
			if err := proto.Unmarshal(body, p); err != nil {
				return 0, 0, nil, err
			}
			epoch, sequence = p.GetEpoch(), p.GetSequence()
		case 2:
			payload, _ = protowire.ConsumeBytes(value)
		}
		frame = frame[n+m:]
	}
	return epoch, sequence, payload, nil
}

// narrow has a client take in no more than 64 KiB of a call that it does not read.
var narrow = grpc.WithStaticStreamWindowSize(64 << 10)

// dial connects to an address; the connection is closed when t ends.
func dial(t testing.TB, address string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func dials(t testing.TB, address string, n int, options ...grpc.DialOption) []*grpc.ClientConn {
	t.Helper()
	conns := make([]*grpc.ClientConn, n)
	for i := range conns {
		conns[i] = dial(t, address, options...)
	}
	return conns
}

// openTallies opens n subscriptions at once, spread over connections.
func openTallies(ctx context.Context, conns []*grpc.ClientConn, n int, request func(i int) *fanfarev1.SubscribeRequest) ([]*tally, error) {
	tallies := make([]*tally, n)
	var g errgroup.Group
	for i := range n {
		g.Go(func() (err error) {
			tallies[i], err = openTally(ctx, conns[i%len(conns)], request(i))
			return err
		})
	}
	return tallies, g.Wait()
}

// steadily publishes stamped frames of size bytes, so many a second, until ctx
// ends, and returns how many were acknowledged, which are all that were sent.
func steadily(ctx context.Context, client fanfarev1.FanfareServiceClient, s backlog.StreamName, ephemeral bool, perSecond, size int) (sent int64, err error) {
	call, err := client.PublishStream(context.WithoutCancel(ctx))
	if err != nil {
		return 0, err
	}
	var acknowledged int64
	var g errgroup.Group
	g.Go(func() error {
		for {
			answer, err := call.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			if answer.GetError() != nil {
				return fmt.Errorf("publish: %v", answer.GetError())
			}
			acknowledged++
		}
	})
	const ticks = 200 // a second
	pace := time.NewTicker(time.Second / ticks)
	defer pace.Stop()
	began := time.Now()
	for ctx.Err() == nil && err == nil {
		select {
		case <-pace.C:
		case <-ctx.Done():
			continue
		}
		for due := int64(time.Since(began).Seconds() * float64(perSecond)); sent < due && err == nil; {
			sent++
			err = call.Send(&fanfarev1.PublishStreamRequest{Number: uint64(sent), Frame: &fanfarev1.NewFrame{
				Channel: s.Channel, Scope: s.Scope, Ephemeral: ephemeral, Payload: stamped(uint64(sent), size),
			}})
		}
	}
	_ = call.CloseSend()
	if err = errors.Join(g.Wait(), err); err == nil && acknowledged != sent {
		err = fmt.Errorf("%d of %d frames were acknowledged", acknowledged, sent)
	}
	return sent, err
}

// quantiles returns the median and the 99th percentile of latencies in
// microseconds, and the largest.
func quantiles(latencies []uint32) (p50, p99, largest time.Duration) {
	if len(latencies) == 0 {
		return 0, 0, 0
	}
	slices.Sort(latencies)
	at := func(i int) time.Duration { return time.Duration(latencies[i]) * time.Microsecond }
	return at(len(latencies) / 2), at(len(latencies) * 99 / 100), at(len(latencies) - 1)
}

// isSlow checks that a subscription was ended because it was slow, and told where
// to go on.
func isSlow(t testing.TB, err error, at backlog.Position) {
	t.Helper()
	info := infoOf(err)
	if status.Code(err) != codes.ResourceExhausted || info.GetReason() != "SLOW_SUBSCRIBER" || info.GetMetadata()["position"] != at.String() {
		t.Errorf("it was ended with %v, %v; want SLOW_SUBSCRIBER at %s", err, info.GetMetadata(), at)
	}
}
