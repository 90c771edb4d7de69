package sse_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fanfare-io/fanfare/clientlib"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// viaEdge is a client of a server whose subscriptions are event streams of an edge, so
// that what checks the server's guarantees checks an edge's.
type viaEdge struct {
	fanfarev1.FanfareServiceClient
	url  string
	http *http.Client
	// majors, if not nil, counts the event streams by their versions of HTTP.
	majors *[3]atomic.Uint64
	// query is added to that of each request.
	query string
}

func (v *viaEdge) Subscribe(ctx context.Context, request *fanfarev1.SubscribeRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[fanfarev1.SubscribeResponse], error) {
	query := url.Values{"format": {"json"}, "channel": {request.GetChannel()}, "scope": {request.GetScope()}}
	s := &eventStream{ctx: ctx, asked: request.GetAfter()}
	switch start := request.GetStart().(type) {
	case *fanfarev1.SubscribeRequest_Live:
		query.Set("from", "live")
	case *fanfarev1.SubscribeRequest_Last:
		query.Set("last", fmt.Sprint(start.Last))
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, v.url+"/v1/streams?"+query.Encode()+v.query, nil)
	if err != nil {
		return nil, err
	}
	if s.asked != nil {
		r.Header.Set("Last-Event-ID", positionText(s.asked))
	}
	if s.response, err = v.http.Do(r); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	if v.majors != nil {
		v.majors[s.response.ProtoMajor].Add(1)
	}
	switch s.response.StatusCode {
	case http.StatusOK:
		s.parser = newParser(s.response.Body)
	case http.StatusNoContent:
		s.closed = true
	default:
		return nil, status.Errorf(codes.Internal, "the edge answered %s", s.response.Status)
	}
	return s, nil
}

func positionText(p *fanfarev1.Position) string {
	return clientlib.Position{Epoch: p.GetEpoch(), Sequence: p.GetSequence()}.String()
}

// eventStream is an event stream as a call.
type eventStream struct {
	grpc.ClientStream
	ctx      context.Context
	response *http.Response
	parser   *parser
	asked    *fanfarev1.Position
	begun    bool
	// closed is true after Closed, reason what fanfare.reconnect said.
	closed bool
	reason string
}

func (s *eventStream) Recv() (*fanfarev1.SubscribeResponse, error) {
	response, err := s.recv()
	if err != nil {
		_ = s.response.Body.Close()
	}
	return response, err
}

func (s *eventStream) recv() (*fanfarev1.SubscribeResponse, error) {
	if s.parser == nil {
		return s.recvClosed()
	}
	for {
		e, dispatched, err := s.parser.block()
		switch {
		case err != nil && s.closed:
			return nil, io.EOF
		case err != nil && s.ctx.Err() != nil:
			return nil, status.FromContextError(s.ctx.Err()).Err()
		case err != nil:
			return nil, s.ended(err)
		case !s.begun:
			s.begun = true
			p, err := parsePosition(s.parser.lastEventID)
			if err != nil && !dispatched {
				return nil, status.Errorf(codes.Internal, "the stream begins without an id: %v", err)
			}
			if !dispatched {
				return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Subscribed{
					Subscribed: &fanfarev1.Subscribed{ResumeAfter: p, Resumed: s.asked != nil},
				}}, nil
			}
			fallthrough // the edge has postponed it
		case dispatched:
			response, err := s.responseOf(e)
			if response != nil || err != nil {
				return response, err
			}
		}
	}
}

// recvClosed is what 204 says.
func (s *eventStream) recvClosed() (*fanfarev1.SubscribeResponse, error) {
	if !s.begun {
		s.begun = true
		return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Subscribed{
			Subscribed: &fanfarev1.Subscribed{ResumeAfter: s.asked, Resumed: true},
		}}, nil
	}
	return nil, io.EOF
}

// ended is why a stream ended that was not closed. Whatever is no event stream is no
// excuse, unless the connection broke.
func (s *eventStream) ended(err error) error {
	switch {
	case s.reason != "":
		return status.Error(codes.Unavailable, s.reason)
	case strings.Contains(err.Error(), "line") || strings.Contains(err.Error(), "retry is"):
		return status.Errorf(codes.Internal, "what the edge sent is no event stream: %v", err)
	default:
		return status.Error(codes.Unavailable, err.Error())
	}
}

// data is that of all events.
type data struct {
	Position      string            `json:"position"`
	Payload       *string           `json:"payload"`
	PayloadBase64 []byte            `json:"payload_base64"`
	ContentType   string            `json:"content_type"`
	EventType     string            `json:"event_type"`
	Headers       map[string]string `json:"headers"`
	Created       *time.Time        `json:"created"`
	Ephemeral     bool              `json:"ephemeral"`
	Reason        string            `json:"reason"`
	ResumeAfter   string            `json:"resume_after"`
	Last          string            `json:"last"`
}

func (s *eventStream) responseOf(e event) (*fanfarev1.SubscribeResponse, error) {
	var d data
	if err := json.Unmarshal([]byte(e.data), &d); err != nil {
		return nil, status.Errorf(codes.Internal, "the data of %v: %v", e, err)
	}
	switch e.kind {
	case "message":
		f, err := frameOf(d)
		if err == nil && f.GetPosition() != nil && e.id != d.Position {
			err = status.Errorf(codes.Internal, "frame %s has the id %s", d.Position, e.id)
		}
		return &fanfarev1.SubscribeResponse{Frames: []*fanfarev1.Frame{f}}, err
	case "fanfare.gap":
		p, err := parsePosition(d.ResumeAfter)
		reason := fanfarev1.GapReason(fanfarev1.GapReason_value["GAP_REASON_"+d.Reason])
		return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Gap{Gap: &fanfarev1.Gap{Reason: reason, ResumeAfter: p}}}, err
	case "fanfare.caught_up":
		p, err := parsePosition(d.Position)
		return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_CaughtUp{CaughtUp: &fanfarev1.CaughtUp{Position: p}}}, err
	case "fanfare.closed":
		s.closed = true
		p, err := parsePosition(d.Last)
		return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Closed{Closed: &fanfarev1.Closed{Last: p}}}, err
	case "fanfare.reconnect":
		s.reason = d.Reason
		return nil, nil
	case "fanfare.status":
		return nil, nil
	default:
		return nil, status.Errorf(codes.Internal, "an event %s came", e.kind)
	}
}

func frameOf(d data) (*fanfarev1.Frame, error) {
	f := &fanfarev1.Frame{ContentType: d.ContentType, EventType: d.EventType, Headers: d.Headers, Payload: d.PayloadBase64, Ephemeral: d.Ephemeral}
	if d.Payload != nil {
		f.Payload = []byte(*d.Payload)
	}
	if d.Created != nil {
		f.Created = timestamppb.New(*d.Created)
	}
	var err error
	if !d.Ephemeral {
		f.Position, err = parsePosition(d.Position)
	}
	return f, err
}

func parsePosition(text string) (*fanfarev1.Position, error) {
	p, err := clientlib.ParsePosition(text)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &fanfarev1.Position{Epoch: p.Epoch, Sequence: p.Sequence}, nil
}
