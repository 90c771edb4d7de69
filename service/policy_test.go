package service

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/hub"
)

func setPolicy(t *testing.T, s *Server, p *fanfarev1.Policy) *fanfarev1.Bounds {
	t.Helper()
	answer, err := s.SetPolicy(t.Context(), &fanfarev1.SetPolicyRequest{Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetEffective()
}

func wantProto(t *testing.T, what string, got, want proto.Message) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

var builtIn = &fanfarev1.Bounds{
	Backlog:         1000,
	RetentionAge:    durationpb.New(0),
	StreamRetention: durationpb.New(7 * 24 * time.Hour),
}

func TestPolicies(t *testing.T) {
	s := testServer(t, nil)
	get := func(channel string, prefix bool) *fanfarev1.GetPolicyResponse {
		t.Helper()
		answer, err := s.GetPolicy(t.Context(), &fanfarev1.GetPolicyRequest{Channel: channel, Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	list := func() *fanfarev1.ListPoliciesResponse {
		t.Helper()
		answer, err := s.ListPolicies(t.Context(), &fanfarev1.ListPoliciesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	wantProto(t, "what nobody set", get("chat/x", false), &fanfarev1.GetPolicyResponse{
		Policy:    &fanfarev1.Policy{Channel: "chat/x"},
		Effective: builtIn,
	})
	wantProto(t, "an empty list", list(), &fanfarev1.ListPoliciesResponse{BuiltIn: builtIn})

	chat := &fanfarev1.Policy{Channel: "chat/", Prefix: true, RetentionAge: durationpb.New(time.Hour)}
	setPolicy(t, s, chat)
	one := &fanfarev1.Policy{Channel: "chat/x", Backlog: proto.Uint64(5), StreamRetention: durationpb.New(time.Minute)}
	effective := &fanfarev1.Bounds{Backlog: 5, RetentionAge: durationpb.New(time.Hour), StreamRetention: durationpb.New(time.Minute)}
	wantProto(t, "the answer of SetPolicy", setPolicy(t, s, one), effective)
	wantProto(t, "what was set", get("chat/x", false), &fanfarev1.GetPolicyResponse{Policy: one, Effective: effective})

	// A prefix and a channel of the same name are two; 0 is not "not set".
	none := &fanfarev1.Policy{Channel: "chat/x", Prefix: true, Backlog: proto.Uint64(0), RetentionAge: durationpb.New(0)}
	wantProto(t, "what a prefix applies", setPolicy(t, s, none), &fanfarev1.Bounds{
		RetentionAge: durationpb.New(0), StreamRetention: durationpb.New(7 * 24 * time.Hour),
	})
	wantProto(t, "the list", list(), &fanfarev1.ListPoliciesResponse{Policies: []*fanfarev1.Policy{chat, one, none}, BuiltIn: builtIn})

	wantProto(t, "what applies after a removal", setPolicy(t, s, &fanfarev1.Policy{Channel: "chat/x", Prefix: true}),
		&fanfarev1.Bounds{Backlog: 1000, RetentionAge: durationpb.New(time.Hour), StreamRetention: durationpb.New(7 * 24 * time.Hour)})
	if n := len(list().GetPolicies()); n != 2 {
		t.Errorf("%d policies are left", n)
	}
	// The empty prefix is the default of all.
	setPolicy(t, s, &fanfarev1.Policy{Prefix: true, Backlog: proto.Uint64(7)})
	if n := get("elsewhere", false).GetEffective().GetBacklog(); n != 7 {
		t.Errorf("the default backlog is %d", n)
	}
}

func TestPolicyRequestsNameTheFieldOutsideItsLimit(t *testing.T) {
	long := strings.Repeat("x", 256)
	for name, test := range map[string]struct {
		policy *fanfarev1.Policy
		field  string
	}{
		"none":                  {nil, "policy"},
		"no channel":            {&fanfarev1.Policy{}, "policy.channel"},
		"long channel":          {&fanfarev1.Policy{Channel: long}, "policy.channel"},
		"long prefix":           {&fanfarev1.Policy{Channel: long, Prefix: true}, "policy.channel"},
		"control character":     {&fanfarev1.Policy{Channel: "a\tb", Prefix: true}, "policy.channel"},
		"invalid UTF-8":         {&fanfarev1.Policy{Channel: invalidText}, "policy.channel"},
		"backlog 2^63":          {&fanfarev1.Policy{Channel: "c", Backlog: proto.Uint64(1 << 63)}, "policy.backlog"},
		"negative age":          {&fanfarev1.Policy{Channel: "c", RetentionAge: durationpb.New(-time.Second)}, "policy.retention_age"},
		"age above 100 years":   {&fanfarev1.Policy{Channel: "c", RetentionAge: durationpb.New(backlog.MaxPolicyAge + time.Microsecond)}, "policy.retention_age"},
		"age beyond int64":      {&fanfarev1.Policy{Channel: "c", RetentionAge: &durationpb.Duration{Seconds: math.MaxInt64}}, "policy.retention_age"},
		"age before int64":      {&fanfarev1.Policy{Channel: "c", RetentionAge: &durationpb.Duration{Seconds: math.MinInt64, Nanos: -1}}, "policy.retention_age"},
		"nanoseconds":           {&fanfarev1.Policy{Channel: "c", RetentionAge: durationpb.New(time.Second + 1)}, "policy.retention_age"},
		"nanos of a second":     {&fanfarev1.Policy{Channel: "c", RetentionAge: &durationpb.Duration{Nanos: 1e9}}, "policy.retention_age"},
		"nanos of another sign": {&fanfarev1.Policy{Channel: "c", RetentionAge: &durationpb.Duration{Seconds: 2, Nanos: -1e6}}, "policy.retention_age"},
		"retention 0":           {&fanfarev1.Policy{Channel: "c", StreamRetention: durationpb.New(0)}, "policy.stream_retention"},
		"negative retention":    {&fanfarev1.Policy{Channel: "c", StreamRetention: &durationpb.Duration{Nanos: -1000}}, "policy.stream_retention"},
		"retention too long":    {&fanfarev1.Policy{Channel: "c", StreamRetention: &durationpb.Duration{Seconds: 1 << 40}}, "policy.stream_retention"},
	} {
		t.Run(name, func(t *testing.T) {
			store := &fakeStore{}
			_, err := testServer(t, store).SetPolicy(t.Context(), &fanfarev1.SetPolicyRequest{Policy: test.policy})
			refusedField(t, err, test.field)
			if len(store.policies) != 0 {
				t.Error("it reached the store")
			}
		})
	}
	for name, request := range map[string]*fanfarev1.GetPolicyRequest{
		"nil":           nil,
		"no channel":    {},
		"long channel":  {Channel: long},
		"invalid UTF-8": {Channel: invalidText, Prefix: true},
	} {
		t.Run("get, "+name, func(t *testing.T) {
			_, err := testServer(t, nil).GetPolicy(t.Context(), request)
			refusedField(t, err, "channel")
		})
	}
	if _, err := testServer(t, nil).SetPolicy(t.Context(), nil); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no request at all: %v", err)
	}
	// The largest values that may be set.
	setPolicy(t, testServer(t, nil), &fanfarev1.Policy{
		Channel: long[:255], Prefix: true, Backlog: proto.Uint64(math.MaxInt64),
		RetentionAge: durationpb.New(backlog.MaxPolicyAge), StreamRetention: durationpb.New(backlog.MaxPolicyAge),
	})
}

// A text that is not UTF-8 is named inside the policy, too.
func TestPolicyThatIsNotUTF8(t *testing.T) {
	encoded := invalidUTF8(t, &fanfarev1.SetPolicyRequest{Policy: &fanfarev1.Policy{Channel: "a@@"}})
	var request fanfarev1.SetPolicyRequest
	if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded)}, &request); err != nil {
		t.Fatal(err)
	}
	_, err := testServer(t, nil).SetPolicy(t.Context(), &request)
	refusedField(t, err, "policy.channel")
}

func TestPolicyErrors(t *testing.T) {
	set := func(s *Server) error {
		_, err := s.SetPolicy(t.Context(), &fanfarev1.SetPolicyRequest{Policy: &fanfarev1.Policy{Channel: "c", Backlog: proto.Uint64(1)}})
		return err
	}
	for _, test := range []struct {
		err     error
		code    codes.Code
		message string
	}{
		{wrapped(backlog.ErrUnavailable), codes.Unavailable, "the store is not available; nothing was stored"},
		{wrapped(backlog.ErrDiskFull), codes.ResourceExhausted, backlog.ErrDiskFull.Error()},
		{backlog.ErrTooManyPolicies, codes.ResourceExhausted, backlog.ErrTooManyPolicies.Error()},
		// Nothing was published, and there is no key to retry with.
		{wrapped(backlog.ErrOutcomeUnknown), codes.Unknown, "the policy may or may not have been set; setting it again is safe"},
	} {
		st := status.Convert(set(testServer(t, &fakeStore{err: test.err})))
		if st.Code() != test.code || st.Message() != test.message {
			t.Errorf("%v is told as %s: %q", test.err, st.Code(), st.Message())
		}
	}
	reads := testServer(t, &fakeStore{err: wrapped(backlog.ErrUnavailable)})
	_, getErr := reads.GetPolicy(t.Context(), &fanfarev1.GetPolicyRequest{Channel: "c"})
	_, listErr := reads.ListPolicies(t.Context(), &fanfarev1.ListPoliciesRequest{})
	for _, err := range []error{getErr, listErr} {
		if st := status.Convert(err); st.Code() != codes.Unavailable || st.Message() != backlog.ErrUnavailable.Error() {
			t.Errorf("a read of policies ended with %v", err)
		}
	}
	// The store goes away between the commit and the answer: nobody may be told
	// that nothing was stored.
	store := &fakeStore{}
	store.policySet = func() { store.err = wrapped(backlog.ErrUnavailable) }
	if st := status.Convert(set(testServer(t, store))); st.Code() != codes.Unknown || !strings.Contains(st.Message(), "may or may not") {
		t.Errorf("a policy that was set is answered with %s: %s", st.Code(), st.Message())
	}
}

// A policy deletes frames: the log says which was set, and of which bounds.
func TestPoliciesAreLogged(t *testing.T) {
	s, log := loggedServer(t, nil)
	setPolicy(t, s, &fanfarev1.Policy{Channel: "chat/", Prefix: true, Backlog: proto.Uint64(3), RetentionAge: durationpb.New(time.Hour)})
	line, _ := log.last()
	for _, part := range []string{`msg="policy set"`, "channel=chat/", "prefix=true", "backlog=3", "retention_age=1h0m0s"} {
		if !strings.Contains(line, part) {
			t.Errorf("%s is missing in %s", part, line)
		}
	}
	if strings.Contains(line, "stream_retention") {
		t.Errorf("what is inherited is logged as set: %s", line)
	}
}

// runHub runs the server's hub and listens.
func runHub(t *testing.T, s *Server, bus *fakeBus) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.hub.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	bus.set(1)
	s.hub.Listening(bus.Current())
}

// oldest is what a new subscription is told may be replayed.
func oldest(t *testing.T, client fanfarev1.FanfareServiceClient, channel string) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	stream, err := client.Subscribe(ctx, &fanfarev1.SubscribeRequest{Channel: channel})
	if err != nil {
		t.Fatal(err)
	}
	message, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		t.Error("the subscription ended OK")
	}
	return message.GetSubscribed().GetOldest()
}

// Symptom: after a policy had been set GetStream told one oldest frame and
// Subscribe another, until the stream's next re-read half a minute later. Cause:
// the tail of a resident stream keeps the bounds that it was loaded with. Reads
// are answered by the store, and know at once; the store's bus hints, and the
// hub refreshes its tails.
func TestPolicyReachesEveryAnswer(t *testing.T) {
	store, bus := &fakeStore{}, &fakeBus{}
	h := hub.New(bus, store, EncodeFrame, hub.Config{ReReadInterval: time.Hour})
	s := New(store, h, bus, Config{Logger: slog.New(slog.DiscardHandler), DrainDelay: -1})
	runHub(t, s, bus)
	store.policySet = h.Hint // as a store's bus does
	client, _, _ := serve(t, s)
	for range 10 {
		if _, err := client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: &fanfarev1.NewFrame{Channel: "chat/x"}}); err != nil {
			t.Fatal(err)
		}
	}
	if got := oldest(t, client, "chat/x"); got != 1 {
		t.Fatalf("a subscription begins with frame %d", got)
	}
	for _, step := range []struct {
		policy *fanfarev1.Policy
		oldest uint64
	}{
		{&fanfarev1.Policy{Channel: "chat/", Prefix: true, Backlog: proto.Uint64(3)}, 8},
		{&fanfarev1.Policy{Channel: "chat/x", Backlog: proto.Uint64(0)}, 11},
		{&fanfarev1.Policy{Channel: "chat/x", Backlog: proto.Uint64(6)}, 5},
		{&fanfarev1.Policy{Channel: "chat/x"}, 8},
	} {
		setPolicy(t, s, step.policy)
		got, err := client.GetStream(t.Context(), &fanfarev1.GetStreamRequest{Channel: "chat/x"})
		if err != nil || got.GetStream().GetOldest() != step.oldest {
			t.Errorf("%v: GetStream says %v, %v", step.policy, got, err)
		}
		page, err := client.ReadFrames(t.Context(), &fanfarev1.ReadFramesRequest{Channel: "chat/x"})
		if err != nil || uint64(len(page.GetFrames())) != 11-step.oldest {
			t.Errorf("%v: ReadFrames returns %d frames, %v", step.policy, len(page.GetFrames()), err)
		}
		eventually(t, "a subscription begins there", func() bool { return oldest(t, client, "chat/x") == step.oldest })
	}
}
