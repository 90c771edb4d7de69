package main

import (
	"context"
	"fmt"
	"net"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

const (
	// maxStreams to a connection: those of a whole scenario fit on one.
	maxStreams = 100_000
	// defaultBuffer is how many messages wait for one subscription: as many as the
	// load generator lets a publisher be ahead, so that none waits, and no more,
	// since each costs every idle subscription a word.
	defaultBuffer = 64
)

type serveOptions struct {
	mode    string
	listen  string
	backlog int
	buffer  int
}

func serveCommand() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve publishers and subscribers with as little as possible",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			form, err := formOf(o.mode)
			if err != nil {
				return err
			}
			if o.backlog < 0 || o.buffer < 0 {
				return fmt.Errorf("--backlog and --buffer are not negative")
			}
			l, err := net.Listen("tcp", o.listen)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "serving on", l.Addr())
			return serve(cmd.Context(), l, newHub(form, o.backlog, o.buffer))
		},
	}
	cmd.Flags().StringVar(&o.mode, "mode", "bare", "bare: frames are encoded once; naive: once for each subscriber")
	cmd.Flags().StringVar(&o.listen, "listen", "127.0.0.1:0", "address to listen on")
	cmd.Flags().IntVar(&o.backlog, "backlog", 0, "frames of each stream that a new subscription may replay")
	cmd.Flags().IntVar(&o.buffer, "buffer", defaultBuffer, "messages that may wait for one subscription before the publisher does")
	return cmd
}

// serve serves until ctx ends, then cuts every call.
func serve(ctx context.Context, l net.Listener, h *hub) error {
	g := grpc.NewServer(grpc.ForceServerCodecV2(newCodec()), grpc.MaxConcurrentStreams(maxStreams))
	fanfarev1.RegisterFanfareServiceServer(g, &server{hub: h})
	stop := context.AfterFunc(ctx, g.Stop)
	defer stop()
	return g.Serve(l)
}

// server is the part of the service that a publisher and a subscriber need.
type server struct {
	fanfarev1.UnimplementedFanfareServiceServer
	hub *hub
}

// Publish implements fanfarev1.FanfareServiceServer.
func (s *server) Publish(_ context.Context, r *fanfarev1.PublishRequest) (*fanfarev1.PublishResponse, error) {
	if err := publishable(r.GetFrame()); err != nil {
		return nil, err
	}
	return s.hub.publish(r.GetFrame())
}

// PublishBatch implements fanfarev1.FanfareServiceServer.
func (s *server) PublishBatch(_ context.Context, r *fanfarev1.PublishBatchRequest) (*fanfarev1.PublishBatchResponse, error) {
	for _, f := range r.GetFrames() {
		if err := publishable(f); err != nil {
			return nil, err
		}
	}
	response := &fanfarev1.PublishBatchResponse{Results: make([]*fanfarev1.PublishResponse, 0, len(r.GetFrames()))}
	for _, f := range r.GetFrames() {
		result, err := s.hub.publish(f)
		if err != nil {
			return nil, err
		}
		response.Results = append(response.Results, result)
	}
	return response, nil
}

func publishable(f *fanfarev1.NewFrame) error {
	if f.GetChannel() == "" {
		return status.Error(codes.InvalidArgument, "frame.channel is empty")
	}
	if f.GetEphemeral() || f.GetIdempotencyKey() != "" || f.ExpectedSequence != nil || f.ExpectedEpoch != nil {
		return status.Error(codes.Unimplemented, "this server takes durable frames without a key and an expectation only")
	}
	return nil
}

// Subscribe implements fanfarev1.FanfareServiceServer.
func (s *server) Subscribe(r *fanfarev1.SubscribeRequest, call grpc.ServerStreamingServer[fanfarev1.SubscribeResponse]) error {
	if r.GetChannel() == "" {
		return status.Error(codes.InvalidArgument, "channel is empty")
	}
	sub, start := s.hub.subscribe(r)
	defer sub.leave()
	if err := start.send(call, s.hub.form); err != nil {
		return err
	}
	for {
		select {
		case m := <-sub.messages:
			if err := call.SendMsg(m.content); err != nil {
				return err
			}
		case <-call.Context().Done():
			return status.FromContextError(call.Context().Err()).Err()
		}
	}
}
