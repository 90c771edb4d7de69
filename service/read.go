package service

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/auth"
	"github.com/fanfare-io/fanfare/service/hub"
)

// Bounds of a page.
const (
	maxPageFrames      = 1000
	maxPageBytes       = 1 << 20 // encoded; a single frame may be larger
	defaultListPage    = 100
	maxReadFramesTries = 3
)

// ReadFrames implements FanfareService.
func (s *Server) ReadFrames(ctx context.Context, req *fanfarev1.ReadFramesRequest) (*fanfarev1.ReadFramesResponse, error) {
	stream, err := streamName(req.GetChannel(), req.GetScope())
	if err != nil {
		return nil, failureOf(err)
	}
	if err := s.permit(ctx, auth.Subscribe, stream); err != nil {
		return nil, err
	}
	if req.GetLimit() > maxPageFrames {
		return nil, failureOf(&backlog.LimitError{Field: "limit", Message: fmt.Sprintf("must be 0 to %d", maxPageFrames)})
	}
	r := frameRead{load: backlog.LoadRequest{Stream: stream}, limit: cmp.Or(int(req.GetLimit()), maxPageFrames)}
	if req.GetAfter() != nil {
		after, err := position("after", req.GetAfter())
		if err != nil {
			return nil, failureOf(err)
		}
		r.start = hub.After(after)
		r.load.Verify = []uint64{after.Sequence}
	}
	response, err := s.readFrames(ctx, r)
	if err != nil {
		return nil, readFailureOf(err)
	}
	return response, nil
}

// frameRead is a ReadFramesRequest that has been checked.
type frameRead struct {
	load  backlog.LoadRequest
	start hub.Start
	limit int
	// origin is that of the server that announces frames, if that is known: after
	// a switchover the store may still reach the old one. 0 accepts any.
	origin uint64
}

// readFrames judges the start and reads what follows. What it judged may be
// trimmed or replaced before it reads; then it judges again.
func (s *Server) readFrames(ctx context.Context, r frameRead) (*fanfarev1.ReadFramesResponse, error) {
	r.origin = s.bus.Current().Origin
	var err error
	for range maxReadFramesTries {
		var response *fanfarev1.ReadFramesResponse
		response, err = s.readFramesOnce(ctx, r)
		if err == nil || !errors.Is(err, backlog.ErrTrimmed) && !errors.Is(err, backlog.ErrNumberingGone) {
			return response, err
		}
	}
	return nil, fmt.Errorf("%w: the stream changed under %d reads: %w", backlog.ErrUnavailable, maxReadFramesTries, err)
}

func (s *Server) readFramesOnce(ctx context.Context, r frameRead) (*fanfarev1.ReadFramesResponse, error) {
	result, err := s.store.Load(ctx, r.origin, []backlog.LoadRequest{r.load})
	if err != nil {
		return nil, err
	}
	loaded := result.Streams[0]
	verdict := hub.Judge(r.start, loaded)
	response := beginPage(loaded.State, verdict)
	if verdict.Waits || verdict.After == loaded.State.Head {
		return response, nil
	}
	page, err := s.store.ReadPage(ctx, r.origin, backlog.PageRequest{
		Stream:    r.load.Stream,
		OwnEpoch:  loaded.State.OwnEpoch,
		After:     verdict.After,
		MaxFrames: r.limit,
		MaxBytes:  maxPageBytes,
	})
	if err != nil {
		return nil, err
	}
	response.Frames = cutPage(page.Frames)
	if n := len(response.Frames); n > 0 {
		response.Next = response.Frames[n-1].GetPosition()
	}
	return response, nil
}

// beginPage is the answer without frames.
func beginPage(state backlog.StreamState, verdict hub.Verdict) *fanfarev1.ReadFramesResponse {
	response := &fanfarev1.ReadFramesResponse{
		Next:   positionProto(verdict.After),
		Head:   positionProto(state.Head),
		Closed: state.Closed,
	}
	if verdict.Gap != nil {
		response.Gap = gapProto(*verdict.Gap)
	} else if verdict.Waits {
		// Of a closed stream the last position, so that what is read after the
		// reopening begins with a Gap.
		response.Next = response.GetHead()
	}
	return response
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
	if err := s.permit(ctx, auth.Subscribe, stream); err != nil {
		return nil, err
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
	states, more, err := s.listStreams(ctx, req.GetChannel(), after, size)
	if err != nil {
		return nil, readFailureOf(err)
	}
	response := &fanfarev1.ListStreamsResponse{Streams: make([]*fanfarev1.Stream, len(states))}
	for i, state := range states {
		response.Streams[i] = s.streamProto(state)
	}
	if len(states) == size {
		if more, err = s.hasMore(ctx, req.GetChannel(), states[size-1].Stream); err != nil {
			return nil, readFailureOf(err)
		}
	}
	if more {
		response.NextPageToken = pageToken(req.GetChannel(), states[len(states)-1].Stream)
	}
	return response, nil
}

// hasMore reports whether there is, or may be, a stream after one in a list.
func (s *Server) hasMore(ctx context.Context, channel string, last backlog.StreamName) (bool, error) {
	states, _, err := s.listStreams(ctx, channel, last, 1)
	if errors.Is(err, errTooManyHidden) {
		return true, nil // whoever asks for more is told of it then
	}
	return len(states) > 0, err
}

// listStart reads and checks a ListStreamsRequest.
func listStart(req *fanfarev1.ListStreamsRequest) (after backlog.StreamName, size int, err error) {
	if req.GetChannel() != "" {
		if _, err := streamName(req.GetChannel(), ""); err != nil {
			return after, 0, err
		}
	}
	if req.GetPageSize() > backlog.MaxListedStreams {
		return after, 0, &backlog.LimitError{Field: "page_size", Message: fmt.Sprintf("must be 0 to %d", backlog.MaxListedStreams)}
	}
	size = cmp.Or(int(req.GetPageSize()), defaultListPage)
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
