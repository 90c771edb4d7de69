package service

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/hub"
)

// Bounds of a page.
const (
	maxPageFrames      = 1000
	maxPageBytes       = 1 << 20 // encoded; a single frame may be larger
	maxListPage        = 1000
	defaultListPage    = 100
	maxReadFramesTries = 3
)

// ReadFrames implements FanfareService.
func (s *Server) ReadFrames(ctx context.Context, req *fanfarev1.ReadFramesRequest) (*fanfarev1.ReadFramesResponse, error) {
	stream, err := streamName(req.GetChannel(), req.GetScope())
	if err != nil {
		return nil, failureOf(err)
	}
	if req.GetLimit() > maxPageFrames {
		return nil, failureOf(&backlog.LimitError{Field: "limit", Message: fmt.Sprintf("must be 0 to %d", maxPageFrames)})
	}
	start := hub.Oldest()
	if req.GetAfter() != nil {
		after, err := position("after", req.GetAfter())
		if err != nil {
			return nil, failureOf(err)
		}
		start = hub.After(after)
	}
	limit := int(req.GetLimit())
	if limit == 0 {
		limit = maxPageFrames
	}
	response, err := s.readFrames(ctx, stream, start, limit)
	if err != nil {
		return nil, readFailureOf(err)
	}
	return response, nil
}

// readFrames judges the start and reads what follows. What it judged may be
// trimmed or replaced before it reads; then it judges again.
func (s *Server) readFrames(ctx context.Context, stream backlog.StreamName, start hub.Start, limit int) (*fanfarev1.ReadFramesResponse, error) {
	// Of the server that announces frames, if that is known: after a switchover
	// the store may still reach the old one. 0 accepts any.
	origin := s.bus.Current().Origin
	var err error
	for range maxReadFramesTries {
		var response *fanfarev1.ReadFramesResponse
		response, err = s.readFramesOnce(ctx, origin, stream, start, limit)
		if err == nil || !errors.Is(err, backlog.ErrTrimmed) && !errors.Is(err, backlog.ErrNumberingGone) {
			return response, err
		}
	}
	return nil, fmt.Errorf("%w: the stream changed under %d reads: %w", backlog.ErrUnavailable, maxReadFramesTries, err)
}

func (s *Server) readFramesOnce(ctx context.Context, origin uint64, stream backlog.StreamName, start hub.Start, limit int) (*fanfarev1.ReadFramesResponse, error) {
	result, err := s.store.Load(ctx, origin, []backlog.LoadRequest{start.Request(stream)})
	if err != nil {
		return nil, err
	}
	loaded := result.Streams[0]
	verdict := hub.Judge(start, loaded)
	response := &fanfarev1.ReadFramesResponse{
		Next:   positionProto(verdict.ResumeAfter),
		Head:   positionProto(loaded.State.Head),
		Closed: loaded.State.Closed,
	}
	if verdict.Gap != nil {
		response.Gap = gapProto(*verdict.Gap)
	}
	if !loaded.State.Exists || verdict.ResumeAfter == loaded.State.Head {
		return response, nil
	}
	page, err := s.store.ReadPage(ctx, origin, backlog.PageRequest{
		Stream:    stream,
		OwnEpoch:  loaded.State.OwnEpoch,
		After:     verdict.ResumeAfter,
		MaxFrames: limit,
		MaxBytes:  maxPageBytes,
	})
	if err != nil {
		return nil, err
	}
	response.Frames = cutPage(page.Frames)
	response.Head = positionProto(page.State.Head)
	response.Closed = page.State.Closed
	if n := len(response.Frames); n > 0 {
		response.Next = response.Frames[n-1].GetPosition()
	}
	return response, nil
}

// cutPage converts as many frames as fit a page, at least one. The store counts
// payloads; headers can be several times that.
func cutPage(frames []backlog.Frame) []*fanfarev1.Frame {
	out := make([]*fanfarev1.Frame, 0, len(frames))
	size := 0
	for _, f := range frames {
		frame := frameProto(f)
		size += proto.Size(frame)
		if size > maxPageBytes && len(out) > 0 {
			break
		}
		out = append(out, frame)
	}
	return out
}

// GetStream implements FanfareService.
func (s *Server) GetStream(ctx context.Context, req *fanfarev1.GetStreamRequest) (*fanfarev1.GetStreamResponse, error) {
	stream, err := streamName(req.GetChannel(), req.GetScope())
	if err != nil {
		return nil, failureOf(err)
	}
	result, err := s.store.Load(ctx, s.bus.Current().Origin, []backlog.LoadRequest{{Stream: stream}})
	if err != nil {
		return nil, readFailureOf(err)
	}
	state := result.Streams[0].State
	if !state.Exists {
		return nil, &failure{
			code:    codes.NotFound,
			reason:  fanfarev1.ErrorReason_ERROR_REASON_STREAM_NOT_FOUND,
			message: "nothing was ever published to the stream",
		}
	}
	return &fanfarev1.GetStreamResponse{Stream: s.streamProto(state)}, nil
}

// ListStreams implements FanfareService.
func (s *Server) ListStreams(ctx context.Context, req *fanfarev1.ListStreamsRequest) (*fanfarev1.ListStreamsResponse, error) {
	after, size, err := listStart(req)
	if err != nil {
		return nil, failureOf(err)
	}
	states, err := s.store.ListStreams(ctx, req.GetChannel(), after, size)
	if err != nil {
		return nil, readFailureOf(err)
	}
	response := &fanfarev1.ListStreamsResponse{Streams: make([]*fanfarev1.Stream, len(states))}
	for i, state := range states {
		response.Streams[i] = s.streamProto(state)
	}
	if len(states) < size {
		return response, nil
	}
	last := states[len(states)-1].Stream
	more, err := s.store.ListStreams(ctx, req.GetChannel(), last, 1)
	if err != nil {
		return nil, readFailureOf(err)
	}
	if len(more) > 0 {
		response.NextPageToken = pageToken(req.GetChannel(), last)
	}
	return response, nil
}

// listStart reads and checks a ListStreamsRequest.
func listStart(req *fanfarev1.ListStreamsRequest) (after backlog.StreamName, size int, err error) {
	if req.GetChannel() != "" {
		if _, err := streamName(req.GetChannel(), ""); err != nil {
			return after, 0, err
		}
	}
	if req.GetPageSize() > maxListPage {
		return after, 0, &backlog.LimitError{Field: "page_size", Message: fmt.Sprintf("must be 0 to %d", maxListPage)}
	}
	size = int(req.GetPageSize())
	if size == 0 {
		size = defaultListPage
	}
	if req.GetPageToken() == "" {
		return after, size, nil
	}
	after, err = parsePageToken(req.GetChannel(), req.GetPageToken())
	return after, size, err
}

// pageTokenVersion begins a page token, so that its form may change.
const pageTokenVersion = "1"

// pageToken names the last stream of a page and the channel that the list was
// restricted to. Names have no control characters, so NUL separates them.
func pageToken(channel string, last backlog.StreamName) string {
	parts := []string{pageTokenVersion, channel, last.Channel, last.Scope}
	return base64.RawURLEncoding.EncodeToString([]byte(strings.Join(parts, "\x00")))
}

func parsePageToken(channel, token string) (backlog.StreamName, error) {
	invalid := &backlog.LimitError{Field: "page_token", Message: "is not one that this server gave for the same channel"}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return backlog.StreamName{}, invalid
	}
	parts := strings.Split(string(raw), "\x00")
	if len(parts) != 4 || parts[0] != pageTokenVersion || parts[1] != channel {
		return backlog.StreamName{}, invalid
	}
	last := backlog.StreamName{Channel: parts[2], Scope: parts[3]}
	if last.Validate() != nil {
		return backlog.StreamName{}, invalid
	}
	return last, nil
}
