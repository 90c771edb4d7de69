package service

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// refusedField checks that err is INVALID_ARGUMENT with a BadRequest.
func refusedField(t *testing.T, err error, field string) {
	t.Helper()
	st := status.Convert(err)
	if st.Code() != codes.InvalidArgument {
		t.Fatalf("got %v, want INVALID_ARGUMENT for %s", err, field)
	}
	for _, d := range st.Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			if got := bad.GetFieldViolations()[0].GetField(); got != field {
				t.Errorf("field %q is named, want %q", got, field)
			}
			return
		}
	}
	t.Errorf("%v has no BadRequest", st)
}

func TestPublishNamesTheFieldOutsideItsLimit(t *testing.T) {
	long := strings.Repeat("x", 256)
	manyHeaders := map[string]string{}
	for i := range backlog.MaxHeaders + 1 {
		manyHeaders[strings.Repeat("h", i+1)] = ""
	}
	above := uint64(1 << 63)
	one := uint64(1)
	for name, test := range map[string]struct {
		frame *fanfarev1.NewFrame
		field string
	}{
		"no frame":            {nil, "frame"},
		"no channel":          {&fanfarev1.NewFrame{}, "frame.channel"},
		"long channel":        {&fanfarev1.NewFrame{Channel: long}, "frame.channel"},
		"line break":          {&fanfarev1.NewFrame{Channel: "a\nb"}, "frame.channel"},
		"long scope":          {&fanfarev1.NewFrame{Channel: "c", Scope: long}, "frame.scope"},
		"NUL in scope":        {&fanfarev1.NewFrame{Channel: "c", Scope: "\x00"}, "frame.scope"},
		"long content type":   {&fanfarev1.NewFrame{Channel: "c", ContentType: long}, "frame.content_type"},
		"reserved event type": {&fanfarev1.NewFrame{Channel: "c", EventType: "fanfare.gap"}, "frame.event_type"},
		"event type with CR":  {&fanfarev1.NewFrame{Channel: "c", EventType: "a\rb"}, "frame.event_type"},
		"long key":            {&fanfarev1.NewFrame{Channel: "c", IdempotencyKey: long}, "frame.idempotency_key"},
		"too many headers":    {&fanfarev1.NewFrame{Channel: "c", Headers: manyHeaders}, "frame.headers"},
		"large headers":       {&fanfarev1.NewFrame{Channel: "c", Headers: map[string]string{"h": strings.Repeat("v", 8<<10)}}, "frame.headers"},
		"large payload":       {&fanfarev1.NewFrame{Channel: "c", Payload: make([]byte, 1<<20+1)}, "frame.payload"},
		"expected sequence":   {&fanfarev1.NewFrame{Channel: "c", ExpectedSequence: &above}, "frame.expected_sequence"},
		"expected epoch":      {&fanfarev1.NewFrame{Channel: "c", ExpectedSequence: &one, ExpectedEpoch: &above}, "frame.expected_epoch"},
		"ephemeral with key":  {&fanfarev1.NewFrame{Channel: "c", Ephemeral: true, IdempotencyKey: "k"}, "frame.idempotency_key"},
		"ephemeral at head":   {&fanfarev1.NewFrame{Channel: "c", Ephemeral: true, ExpectedSequence: &one}, "frame.expected_sequence"},
		"ephemeral at epoch":  {&fanfarev1.NewFrame{Channel: "c", Ephemeral: true, ExpectedEpoch: &one}, "frame.expected_epoch"},
		"large and ephemeral": {&fanfarev1.NewFrame{Channel: "c", Ephemeral: true, Payload: make([]byte, 1<<20+1)}, "frame.payload"},
		"epoch alone":         {&fanfarev1.NewFrame{Channel: "c", ExpectedEpoch: &one}, "frame.expected_epoch"},
	} {
		t.Run(name, func(t *testing.T) {
			store := &fakeStore{}
			_, err := testServer(t, store).Publish(t.Context(), &fanfarev1.PublishRequest{Frame: test.frame})
			refusedField(t, err, test.field)
			if len(store.submissions()) != 0 {
				t.Error("it reached the store")
			}
		})
	}
}

func TestPublishBatchLimits(t *testing.T) {
	frames := func(n, payload int) []*fanfarev1.NewFrame {
		out := make([]*fanfarev1.NewFrame, n)
		for i := range out {
			out[i] = &fanfarev1.NewFrame{Channel: "c", Payload: make([]byte, payload)}
		}
		return out
	}
	s := testServer(t, nil)
	for name, test := range map[string]struct {
		frames []*fanfarev1.NewFrame
		field  string
	}{
		"none":          {nil, "frames"},
		"too many":      {frames(1001, 0), "frames"},
		"too large":     {frames(5, 1<<20-1), "frames"},
		"one is nil":    {[]*fanfarev1.NewFrame{{Channel: "c"}, nil}, "frames[1]"},
		"one has a key": {[]*fanfarev1.NewFrame{{Channel: "c"}, {Channel: "c", Ephemeral: true, IdempotencyKey: "k"}}, "frames[1].idempotency_key"},
		"one is refuse": {[]*fanfarev1.NewFrame{{Channel: "c"}, {Channel: ""}}, "frames[1].channel"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.PublishBatch(t.Context(), &fanfarev1.PublishBatchRequest{Frames: test.frames})
			refusedField(t, err, test.field)
		})
	}
	answer, err := s.PublishBatch(t.Context(), &fanfarev1.PublishBatchRequest{Frames: frames(1000, 4<<10)})
	if err != nil || len(answer.GetResults()) != 1000 {
		t.Errorf("a batch at the limits: %v, %d results", err, len(answer.GetResults()))
	}
}

func TestSubscribeRefusesStartsThatMeanNothing(t *testing.T) {
	above := uint64(1 << 63)
	for name, test := range map[string]struct {
		req   *fanfarev1.SubscribeRequest
		field string
	}{
		"no channel":     {&fanfarev1.SubscribeRequest{}, "channel"},
		"oldest false":   {&fanfarev1.SubscribeRequest{Channel: "c", Start: &fanfarev1.SubscribeRequest_Oldest{}}, "oldest"},
		"live false":     {&fanfarev1.SubscribeRequest{Channel: "c", Start: &fanfarev1.SubscribeRequest_Live{}}, "live"},
		"epoch 2^63":     {&fanfarev1.SubscribeRequest{Channel: "c", Start: &fanfarev1.SubscribeRequest_After{After: &fanfarev1.Position{Epoch: above}}}, "after.epoch"},
		"sequence 2^63":  {&fanfarev1.SubscribeRequest{Channel: "c", Start: &fanfarev1.SubscribeRequest_After{After: &fanfarev1.Position{Sequence: above}}}, "after.sequence"},
		"escape in name": {&fanfarev1.SubscribeRequest{Channel: "a\x1b[2J"}, "channel"},
	} {
		t.Run(name, func(t *testing.T) {
			refusedField(t, testServer(t, nil).Subscribe(test.req, nil), test.field)
		})
	}
}

func TestReadRequestsAreChecked(t *testing.T) {
	s := testServer(t, nil)
	above := uint64(1 << 63)
	for name, test := range map[string]struct {
		call  func(context.Context) error
		field string
	}{
		"read without channel": {func(ctx context.Context) error {
			_, err := s.ReadFrames(ctx, &fanfarev1.ReadFramesRequest{})
			return err
		}, "channel"},
		"read limit": {func(ctx context.Context) error {
			_, err := s.ReadFrames(ctx, &fanfarev1.ReadFramesRequest{Channel: "c", Limit: 1001})
			return err
		}, "limit"},
		"read position": {func(ctx context.Context) error {
			_, err := s.ReadFrames(ctx, &fanfarev1.ReadFramesRequest{Channel: "c", After: &fanfarev1.Position{Sequence: above}})
			return err
		}, "after.sequence"},
		"get without channel": {func(ctx context.Context) error {
			_, err := s.GetStream(ctx, &fanfarev1.GetStreamRequest{})
			return err
		}, "channel"},
		"list page size": {func(ctx context.Context) error {
			_, err := s.ListStreams(ctx, &fanfarev1.ListStreamsRequest{PageSize: 1001})
			return err
		}, "page_size"},
		"list channel": {func(ctx context.Context) error {
			_, err := s.ListStreams(ctx, &fanfarev1.ListStreamsRequest{Channel: "\n"})
			return err
		}, "channel"},
		"close epoch": {func(ctx context.Context) error {
			_, err := s.CloseStream(ctx, &fanfarev1.CloseStreamRequest{Channel: "c", ExpectedEpoch: &above})
			return err
		}, "expected_epoch"},
	} {
		t.Run(name, func(t *testing.T) { refusedField(t, test.call(t.Context()), test.field) })
	}
}

// Nothing that a client can leave out makes a handler panic.
func TestNilMessages(t *testing.T) {
	s := testServer(t, nil)
	calls := map[string]func() error{
		"Publish":      func() error { _, err := s.Publish(t.Context(), nil); return err },
		"PublishBatch": func() error { _, err := s.PublishBatch(t.Context(), nil); return err },
		"ReadFrames":   func() error { _, err := s.ReadFrames(t.Context(), nil); return err },
		"GetStream":    func() error { _, err := s.GetStream(t.Context(), nil); return err },
		"CloseStream":  func() error { _, err := s.CloseStream(t.Context(), nil); return err },
		"Subscribe":    func() error { return s.Subscribe(nil, nil) },
		"Subscribe after nil": func() error {
			_, err := subscribeStart(&fanfarev1.SubscribeRequest{Start: &fanfarev1.SubscribeRequest_After{}})
			if err != nil {
				return err
			}
			return failureOf(&backlog.LimitError{})
		},
	}
	for name, call := range calls {
		if code := status.Code(call()); code != codes.InvalidArgument {
			t.Errorf("%s answers %s", name, code)
		}
	}
	if _, err := s.ListStreams(t.Context(), nil); err != nil {
		t.Errorf("ListStreams: %v", err)
	}
}

func TestListStreamsPages(t *testing.T) {
	store := &fakeStore{}
	for _, channel := range []string{"a", "b"} {
		for _, scope := range []string{"", "1", "2"} {
			store.streams = append(store.streams, backlog.StreamState{Exists: true, Stream: backlog.StreamName{Channel: channel, Scope: scope}})
		}
	}
	s := testServer(t, store)
	for _, size := range []uint32{1, 2, 3, 6, 7} {
		var got []string
		req := &fanfarev1.ListStreamsRequest{PageSize: size}
		for pages := 0; ; pages++ {
			answer, err := s.ListStreams(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			for _, stream := range answer.GetStreams() {
				got = append(got, stream.GetChannel()+"/"+stream.GetScope())
			}
			if req.PageToken = answer.GetNextPageToken(); req.PageToken == "" {
				break
			}
			if len(answer.GetStreams()) != int(size) || pages > 6 {
				t.Fatalf("size %d: a page of %d with a token", size, len(answer.GetStreams()))
			}
		}
		if want := "a/ a/1 a/2 b/ b/1 b/2"; strings.Join(got, " ") != want {
			t.Errorf("size %d: %v", size, got)
		}
	}
}

func TestPageTokens(t *testing.T) {
	token := pageToken("c", backlog.StreamName{Channel: "c", Scope: "s"})
	if _, err := parsePageToken("c", token); err != nil {
		t.Error(err)
	}
	for name, test := range map[string]struct{ channel, token string }{
		"of another channel": {"d", token},
		"garbage":            {"c", "%%%"},
		"cut":                {"c", token[:len(token)-4]},
		"not UTF-8":          {"c", invalidText},
		"another version":    {"c", "Mg"},
	} {
		var limit *backlog.LimitError
		if _, err := parsePageToken(test.channel, test.token); !errors.As(err, &limit) || limit.Field != "page_token" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Where nothing is announced an ephemeral frame would reach nobody, which must not
// look like a success: it is refused by itself, and durable frames are not.
func TestEphemeralFramesAreRefusedWithoutAnnouncements(t *testing.T) {
	store := &fakeStore{}
	s := testServer(t, store)
	s.cfg.RefuseEphemeral = true
	client, _, _ := serve(t, s)
	ephemeral := &fanfarev1.NewFrame{Channel: "c", Ephemeral: true}
	durable := &fanfarev1.NewFrame{Channel: "c"}
	want := func(err error, message string) {
		t.Helper()
		f := status.Convert(err)
		if f.Code() != codes.FailedPrecondition || !strings.HasPrefix(f.Message(), message) {
			t.Errorf("got %v, want %q", err, message)
		}
		if len(f.Details()) != 1 || f.Details()[0].(*errdetails.ErrorInfo).GetReason() != "EPHEMERAL_UNAVAILABLE" {
			t.Errorf("the details are %v", f.Details())
		}
	}
	_, err := client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: ephemeral})
	want(err, "this server does not listen")
	_, err = client.PublishBatch(t.Context(), &fanfarev1.PublishBatchRequest{Frames: []*fanfarev1.NewFrame{durable, ephemeral}})
	want(err, "frames[1]: this server does not listen")
	// What is wrong with the frame itself comes first.
	_, err = client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: &fanfarev1.NewFrame{Ephemeral: true}})
	refusedField(t, err, "frame.channel")
	if n := len(store.submissions()); n != 0 {
		t.Errorf("%d frames reached the store", n)
	}

	stream, err := client.PublishStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for number, frame := range []*fanfarev1.NewFrame{ephemeral, durable} {
		if err := stream.Send(&fanfarev1.PublishStreamRequest{Number: uint64(number), Frame: frame}); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		refused := answer.GetError().GetReason() == fanfarev1.ErrorReason_ERROR_REASON_EPHEMERAL_UNAVAILABLE
		if err != nil || answer.GetNumber() != uint64(number) || refused != frame.GetEphemeral() {
			t.Errorf("frame %d: %v, %v", number, answer, err)
		}
	}
	if n := len(store.submissions()); n != 1 {
		t.Errorf("%d frames reached the store", n)
	}
}
