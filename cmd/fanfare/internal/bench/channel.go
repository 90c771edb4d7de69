package bench

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/load"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// ChannelPrefix begins the channels that are published to: on a running server
// they must not be anybody's.
const ChannelPrefix = "fanfare.bench/"

// Channel returns a name of a channel that nobody has used, for references that keep no policies.
func (r *Run) Channel() string {
	return ChannelPrefix + r.Scenario + "-" + strings.ToLower(rand.Text()[:10])
}

// NewChannel returns a channel that nobody has used, on which backlog frames of a
// stream may be replayed. On a running server its streams are closed at the case's
// end and its policy removed.
func (s *Server) NewChannel(ctx context.Context, r *Run, backlog int) (string, error) {
	channel := r.Channel()
	client, hangUp, err := s.client()
	if err != nil {
		return "", err
	}
	defer hangUp()
	if r.Running() {
		r.AtEnd(func(ctx context.Context) error { return s.tidy(ctx, channel) })
	}
	frames := uint64(backlog)
	policy := &fanfarev1.Policy{Channel: channel, Backlog: &frames}
	if _, err := client.SetPolicy(ctx, &fanfarev1.SetPolicyRequest{Policy: policy}); err != nil {
		return "", fmt.Errorf("have %d frames of %s kept: %w", backlog, channel, err)
	}
	return channel, nil
}

// client returns a client of the kind that applications use, for what is not
// measured, and how to end it.
func (s *Server) client() (fanfarev1.FanfareServiceClient, func(), error) {
	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if s.shows != nil {
		options = append(options, grpc.WithPerRPCCredentials(s.shows))
	}
	conn, err := grpc.NewClient(s.Address, options...)
	if err != nil {
		return nil, nil, err
	}
	return fanfarev1.NewFanfareServiceClient(conn), func() { conn.Close() }, nil
}

// dial connects the load generator. All calls on the connection show what there is to
// show now: to look for every call whether it has changed would be load.
func (s *Server) dial(ctx context.Context, o load.Options) (*load.Conn, error) {
	if s.shows != nil {
		var err error
		if o.Metadata, err = s.shows.GetRequestMetadata(ctx); err != nil {
			return nil, err
		}
	}
	return load.Dial(ctx, s.Address, o)
}

// closesAtOnce is how many streams are closed at a time.
const closesAtOnce = 64

// tidy closes all streams of a channel and removes its policy.
func (s *Server) tidy(ctx context.Context, channel string) error {
	client, hangUp, err := s.client()
	if err != nil {
		return err
	}
	defer hangUp()
	if _, err := client.SetPolicy(ctx, &fanfarev1.SetPolicyRequest{Policy: &fanfarev1.Policy{Channel: channel}}); err != nil {
		return fmt.Errorf("remove the policy of %s: %w", channel, err)
	}
	closing, ctx := errgroup.WithContext(ctx)
	closing.SetLimit(closesAtOnce)
	request := &fanfarev1.ListStreamsRequest{Channel: channel, PageSize: 1000}
	for {
		page, err := client.ListStreams(ctx, request)
		if err != nil {
			return fmt.Errorf("close the streams of %s: %w", channel, firstOf(closing.Wait(), err))
		}
		for _, stream := range page.GetStreams() {
			closing.Go(func() error {
				_, err := client.CloseStream(ctx, &fanfarev1.CloseStreamRequest{Channel: channel, Scope: stream.GetScope()})
				return err
			})
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			break
		}
	}
	if err := closing.Wait(); err != nil {
		return fmt.Errorf("close the streams of %s: %w", channel, err)
	}
	return nil
}

// firstOf returns the first error that is one.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// filled returns a server to measure, and a channel on it of which so many scopes,
// numbered from 0, have the frames of the sizes.
func (r *Run) filled(ctx context.Context, scopes int) (*Server, string, error) {
	server, err := r.Fanfare(ctx)
	if err != nil {
		return nil, "", err
	}
	channel, err := server.NewChannel(ctx, r, r.Sizes.Frames)
	if err != nil {
		return nil, "", err
	}
	r.Progressf("publishing what is to be replayed")
	return server, channel, server.Fill(ctx, channel, scopes, strconv.Itoa, r.Sizes.Frames, r.Sizes.Bytes)
}

const (
	// batchFrames and batchBytes bound a batch below what every server takes.
	batchFrames = 500
	batchBytes  = 2 << 20
)

// Fill publishes frames of so many bytes to the scopes, which scope names: each
// one's frames in order, all in batches.
func (s *Server) Fill(ctx context.Context, channel string, scopes int, scope func(int) string, frames, bytes int) error {
	conn, err := s.dial(ctx, load.Options{})
	if err != nil {
		return err
	}
	defer conn.Close()
	payload := make([]byte, bytes)
	batch := &fanfarev1.PublishBatchRequest{}
	publish := func() error {
		request, err := proto.Marshal(batch)
		if err != nil {
			return err
		}
		batch.Frames = batch.Frames[:0]
		_, err = conn.Call(ctx, fanfarev1.FanfareService_PublishBatch_FullMethodName, request)
		return err
	}
	most := max(1, min(batchFrames, batchBytes/max(1, bytes)))
	for i := range scopes {
		for range frames {
			batch.Frames = append(batch.Frames, &fanfarev1.NewFrame{Channel: channel, Scope: scope(i), Payload: payload})
			if len(batch.Frames) == most {
				if err := publish(); err != nil {
					return fmt.Errorf("publish what is to be replayed: %w", err)
				}
			}
		}
	}
	if len(batch.Frames) > 0 {
		if err := publish(); err != nil {
			return fmt.Errorf("publish what is to be replayed: %w", err)
		}
	}
	return nil
}
