package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// BenchmarkStores measures a server on the embedded store and one on PostgreSQL
// in one run, through gRPC: publishes per second of some callers, one frame each
// at a time; deliveries per second of one stream to 100 subscribers; and the time
// from Publish to a subscriber at 100 frames per second. Each iteration measures
// both stores in turn, so that they meet the same machine; run it with
// -benchtime 7x. Reported are medians.
func BenchmarkStores(b *testing.B) {
	stores := []*storeBench{
		{name: "sqlite", server: startServer(b, "sqlite:"+filepath.Join(b.TempDir(), "bench.db"))},
		{name: "postgresql", server: startServer(b, pgtest.NewDatabase(b))},
	}
	for _, callers := range []int{1, 64, 512} {
		b.Run(fmt.Sprintf("publish/callers=%d", callers), func(b *testing.B) {
			inTurn(b, stores, "publishes/s", func(s *storeBench) float64 { return s.publishRate(b, callers) })
		})
	}
	b.Run("deliver", func(b *testing.B) {
		inTurn(b, stores, "deliveries/s", func(s *storeBench) float64 { return s.deliveryRate(b) })
	})
	for _, quantile := range []float64{0.5, 0.99} {
		b.Run(fmt.Sprintf("latency/q=%v", quantile), func(b *testing.B) {
			inTurn(b, stores, "µs", func(s *storeBench) float64 { return s.latency(b, quantile) })
		})
	}
}

type storeBench struct {
	name   string
	server *server
}

// inTurn measures each store once in each iteration and reports the medians, and
// that of the ratios between the first and the second.
func inTurn(b *testing.B, stores []*storeBench, unit string, measure func(*storeBench) float64) {
	measured := make([][]float64, len(stores))
	var ratios []float64
	for b.Loop() {
		for i, s := range stores {
			measured[i] = append(measured[i], measure(s))
		}
		last := len(ratios)
		ratios = append(ratios, measured[0][last]/measured[1][last])
	}
	for i, s := range stores {
		b.ReportMetric(median(measured[i]), s.name+"-"+unit)
	}
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(0, "ns/op")
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

const benchDuration = time.Second

// publishRate returns how many publishes a second callers get answered, over
// 1,000 streams.
func (s *storeBench) publishRate(b *testing.B, callers int) float64 {
	client := dialServer(b, s.server)
	payload := make([]byte, 200)
	var answered atomic.Int64
	began := time.Now()
	var running sync.WaitGroup
	for caller := range callers {
		running.Go(func() {
			for i := caller; time.Since(began) < benchDuration; i += callers {
				frame := &fanfarev1.NewFrame{Channel: "publish", Scope: fmt.Sprint(i % 1000), Payload: payload}
				if _, err := client.Publish(b.Context(), &fanfarev1.PublishRequest{Frame: frame}); err != nil {
					b.Error(err)
					return
				}
				answered.Add(1)
			}
		})
	}
	running.Wait()
	return float64(answered.Load()) / time.Since(began).Seconds()
}

// deliveryRate publishes frames to a stream of 100 subscribers on 10 connections
// and returns how many frames a second arrive.
func (s *storeBench) deliveryRate(b *testing.B) float64 {
	const subscribers, connections, frames = 100, 10, 2000
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	scope := fmt.Sprint(time.Now().UnixNano())
	var running sync.WaitGroup
	for range connections {
		client := dialServer(b, s.server)
		for range subscribers / connections {
			call, err := client.Subscribe(ctx, &fanfarev1.SubscribeRequest{Channel: "deliver", Scope: scope})
			if err != nil {
				b.Fatal(err)
			}
			awaitCaughtUp(b, call)
			running.Go(func() {
				for next := uint64(1); next <= frames; {
					response, err := call.Recv()
					if err != nil {
						b.Error(err)
						return
					}
					for _, frame := range response.GetFrames() {
						if frame.GetPosition().GetSequence() != next {
							b.Errorf("frame %d came instead of %d", frame.GetPosition().GetSequence(), next)
						}
						next++
					}
				}
			})
		}
	}
	began := time.Now()
	s.publishAll(b, scope, frames)
	running.Wait()
	return subscribers * frames / time.Since(began).Seconds()
}

// publishAll publishes frames of one stream, many in flight.
func (s *storeBench) publishAll(b *testing.B, scope string, frames int) {
	call, err := dialServer(b, s.server).PublishStream(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		payload := make([]byte, 200)
		for i := range frames {
			frame := &fanfarev1.NewFrame{Channel: "deliver", Scope: scope, Payload: payload}
			if call.Send(&fanfarev1.PublishStreamRequest{Number: uint64(i), Frame: frame}) != nil {
				return // Recv says why
			}
		}
		_ = call.CloseSend()
	}()
	for range frames {
		answer, err := call.Recv()
		if err != nil {
			b.Fatal(err)
		}
		if e := answer.GetError(); e != nil {
			b.Fatal(status.Error(codes.Code(e.GetCode()), e.GetMessage()))
		}
	}
}

// latency returns a quantile of the microseconds from Publish to a subscriber.
func (s *storeBench) latency(b *testing.B, q float64) float64 {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	client := dialServer(b, s.server)
	scope := fmt.Sprint(time.Now().UnixNano())
	call, err := dialServer(b, s.server).Subscribe(ctx, &fanfarev1.SubscribeRequest{Channel: "latency", Scope: scope})
	if err != nil {
		b.Fatal(err)
	}
	awaitCaughtUp(b, call)
	frame := &fanfarev1.NewFrame{Channel: "latency", Scope: scope, Payload: make([]byte, 200)}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var took []time.Duration
	for range 200 {
		<-tick.C
		began := time.Now()
		answer := make(chan error, 1)
		go func() {
			_, err := client.Publish(ctx, &fanfarev1.PublishRequest{Frame: frame})
			answer <- err
		}()
		if response, err := call.Recv(); err != nil || len(response.GetFrames()) != 1 {
			b.Fatalf("received %v, %v", response, err)
		}
		took = append(took, time.Since(began))
		if err := <-answer; err != nil {
			b.Fatal(err)
		}
	}
	return quantile(took, q)
}
