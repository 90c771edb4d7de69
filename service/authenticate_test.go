package service

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/auth"
)

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex // guards what follows
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// guarded is a server with authentication, on loopback.
type guarded struct {
	*Server
	verifier *auth.Verifier
	store    *sizedStore
	conn     *grpc.ClientConn
	log      *lockedBuffer
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{verifier: testVerifier(t), log: &lockedBuffer{}}
	w := newDeliveryWorld(t, func(c *Config) {
		c.Verifier = g.verifier
		c.Logger = slog.New(slog.NewTextHandler(g.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	g.Server, g.store = w.server, w.store
	g.store.streams = []backlog.StreamState{
		{Stream: backlog.StreamName{Channel: "chat", Scope: "kitchen"}, Exists: true},
		{Stream: chatLobby, Exists: true},
		{Stream: backlog.StreamName{Channel: "orders"}, Exists: true},
	}
	g.store.number(backlog.Publication{Stream: chatLobby})
	_, g.conn, _ = serve(t, g.Server)
	return g
}

// with is the context of calls that show something as authorization.
func with(ctx context.Context, values ...string) context.Context {
	for _, v := range values {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", v)
	}
	return ctx
}

// requests are a good request of each method, to chat lobby where it is to a stream.
var requests = map[string]proto.Message{
	fanfarev1.FanfareService_Publish_FullMethodName:       &fanfarev1.PublishRequest{Frame: newLobbyFrame()},
	fanfarev1.FanfareService_PublishBatch_FullMethodName:  &fanfarev1.PublishBatchRequest{Frames: []*fanfarev1.NewFrame{newLobbyFrame()}},
	fanfarev1.FanfareService_PublishStream_FullMethodName: &fanfarev1.PublishStreamRequest{Number: 1, Frame: newLobbyFrame()},
	fanfarev1.FanfareService_Subscribe_FullMethodName:     &fanfarev1.SubscribeRequest{Channel: "chat", Scope: "lobby"},
	fanfarev1.FanfareService_Session_FullMethodName: &fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Subscribe{
		Subscribe: &fanfarev1.SessionSubscribe{Number: 1, Request: &fanfarev1.SubscribeRequest{Channel: "chat", Scope: "lobby"}},
	}},
	fanfarev1.FanfareService_ReadFrames_FullMethodName:   &fanfarev1.ReadFramesRequest{Channel: "chat", Scope: "lobby"},
	fanfarev1.FanfareService_GetStream_FullMethodName:    &fanfarev1.GetStreamRequest{Channel: "chat", Scope: "lobby"},
	fanfarev1.FanfareService_ListStreams_FullMethodName:  &fanfarev1.ListStreamsRequest{},
	fanfarev1.FanfareService_CloseStream_FullMethodName:  &fanfarev1.CloseStreamRequest{Channel: "chat", Scope: "lobby"},
	fanfarev1.FanfareService_GetPolicy_FullMethodName:    &fanfarev1.GetPolicyRequest{Channel: "chat"},
	fanfarev1.FanfareService_ListPolicies_FullMethodName: &fanfarev1.ListPoliciesRequest{},
	fanfarev1.FanfareService_SetPolicy_FullMethodName:    &fanfarev1.SetPolicyRequest{Policy: &fanfarev1.Policy{Channel: "chat"}},
	grpc_health_v1.Health_Check_FullMethodName:           &grpc_health_v1.HealthCheckRequest{},
	grpc_health_v1.Health_List_FullMethodName:            &grpc_health_v1.HealthListRequest{},
	grpc_health_v1.Health_Watch_FullMethodName:           &grpc_health_v1.HealthCheckRequest{},
	reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName: &reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{},
	},
	reflectionv1alpha.ServerReflection_ServerReflectionInfo_FullMethodName: &reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}, // the same on the wire
	},
}

func newLobbyFrame() *fanfarev1.NewFrame {
	return &fanfarev1.NewFrame{Channel: "chat", Scope: "lobby", Payload: []byte("hello")}
}

// methods are those of everything that a server has registered.
func (g *guarded) methods(t *testing.T) []string {
	t.Helper()
	server := grpc.NewServer(g.ServerOptions()...)
	g.Register(server)
	var all []string
	for service, info := range server.GetServiceInfo() {
		for _, m := range info.Methods {
			all = append(all, "/"+service+"/"+m.Name)
		}
	}
	return all
}

// call sends the good request of a method, and returns its first answer as bytes.
func (g *guarded) call(ctx context.Context, method string, request proto.Message) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	stream, err := g.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch method {
	case fanfarev1.FanfareService_Session_FullMethodName, fanfarev1.FanfareService_PublishStream_FullMethodName:
		// They end when nothing more comes.
	default:
		if err := stream.CloseSend(); err != nil {
			return nil, err
		}
	}
	answer := &emptypb.Empty{} // keeps fields that it does not know
	if err := stream.RecvMsg(answer); err != nil {
		return nil, err
	}
	return answer.ProtoReflect().GetUnknown(), nil
}

// outcome is how a server answers the good request of a method: "ok", or the reason for
// which it refused that, as a whole or as an item.
func (g *guarded) outcome(t *testing.T, ctx context.Context, method string) string {
	t.Helper()
	answer, err := g.call(ctx, method, requests[method])
	if err != nil {
		return reasonOf(err)
	}
	switch method {
	case fanfarev1.FanfareService_PublishStream_FullMethodName:
		return itemOutcome(t, answer, &fanfarev1.PublishStreamResponse{}, (*fanfarev1.PublishStreamResponse).GetError)
	case fanfarev1.FanfareService_Session_FullMethodName:
		return itemOutcome(t, answer, &fanfarev1.SessionResponse{}, func(r *fanfarev1.SessionResponse) *fanfarev1.Error { return r.GetEnded().GetError() })
	}
	return "ok"
}

func itemOutcome[M proto.Message](t *testing.T, answer []byte, m M, itsError func(M) *fanfarev1.Error) string {
	t.Helper()
	if err := proto.Unmarshal(answer, m); err != nil {
		t.Fatal(err)
	}
	if e := itsError(m); e != nil {
		return reasonName(e.GetReason())
	}
	return "ok"
}

// reasonOf is the reason of a refusal, or its code and message where there is none.
func reasonOf(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return err.Error()
}

// A method that is added and not thought about must not be open.
func TestTableOfNeedsHasEveryMethod(t *testing.T) {
	g := newGuarded(t)
	methods := g.methods(t)
	for _, m := range methods {
		if n, ok := needs[m]; !ok || !n.anybody && n.action == 0 {
			t.Errorf("%s is not in the table", m)
		}
		if requests[m] == nil {
			t.Errorf("the test has no request of %s", m)
		}
	}
	if len(methods) != len(needs) {
		t.Errorf("the table has %d methods, the server %d", len(needs), len(methods))
	}
	if _, err := g.authenticate(metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer "+g.verifier.Internal())), "/x/Y"); failureOf(err).code != codes.PermissionDenied {
		t.Errorf("a method that is not in the table: %v", err)
	}
}

// Scenario S131, symptom: streaming calls were authenticated at best, never authorised.
// Cause: the interceptor of streams was missing or not complete.
func TestNoMethodAnswersWhoMayNot(t *testing.T) {
	g := newGuarded(t)
	expired := signed(t, auth.Grant{Lifetime: time.Second, Permissions: auth.Permissions{Admin: true}})
	elapseUntilExpired(t, expired)
	tampered := []byte(signed(t, grant("somebody", "chat")))
	tampered[len(tampered)-5] ^= 1
	elsewhere := []auth.Permission{{Channel: "chat", Scope: "kitchen"}, {Channel: "orders", Scope: "*"}}
	for name, c := range map[string]struct {
		show []string
		want string
	}{
		"nothing":            {nil, "UNAUTHENTICATED"},
		"an empty value":     {[]string{""}, "UNAUTHENTICATED"},
		"Bearer alone":       {[]string{"Bearer"}, "UNAUTHENTICATED"},
		"Bearer and nothing": {[]string{"Bearer  "}, "UNAUTHENTICATED"},
		"garbage":            {[]string{"Bearer garbage"}, "UNAUTHENTICATED"},
		"another scheme":     {[]string{"Basic " + signed(t, grant("somebody", "chat"))}, "UNAUTHENTICATED"},
		"no scheme":          {[]string{signed(t, grant("somebody", "chat"))}, "UNAUTHENTICATED"},
		"two tokens":         {[]string{"Bearer " + signed(t, grant("somebody", "chat")), "Bearer " + signed(t, grant("somebody", "chat"))}, "UNAUTHENTICATED"},
		"a changed token":    {[]string{"Bearer " + string(tampered)}, "UNAUTHENTICATED"},
		"an expired token":   {[]string{"Bearer " + expired}, "TOKEN_EXPIRED"},
		"no rights":          {[]string{"Bearer " + signed(t, grant("somebody"))}, "PERMISSION_DENIED"},
		"rights elsewhere": {[]string{"Bearer " + signed(t, auth.Grant{Lifetime: testLifetime, Permissions: auth.Permissions{
			Subscribe: elsewhere, Publish: elsewhere, Work: elsewhere,
		}})}, "PERMISSION_DENIED"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, m := range g.methods(t) {
				want := c.want
				switch {
				case needs[m].anybody:
					want = "ok"
				case m == fanfarev1.FanfareService_ListStreams_FullMethodName && name == "rights elsewhere":
					want = "ok" // it shows those
				}
				if got := g.outcome(t, with(t.Context(), c.show...), m); got != want {
					t.Errorf("%s: %s, want %s", m, got, want)
				}
			}
		})
	}
	if n := len(g.store.submissions()); n != 0 {
		t.Errorf("%d frames were published", n)
	}
}

// elapseUntilExpired waits until a token has expired for the verifier of tests.
func elapseUntilExpired(t *testing.T, token string) {
	t.Helper()
	v := testVerifier(t)
	eventually(t, "the token has expired", func() bool {
		_, err := v.Verify(t.Context(), token)
		return errors.Is(err, auth.ErrExpired)
	})
}

// Scenario S133, symptom: a subscriber got frames of a stream that its token did not
// list. The grid is that of docs/security.md.
func TestGridOfTokensAndMethods(t *testing.T) {
	g := newGuarded(t)
	const (
		publish, read, list, admin = "publish", "read", "list", "admin"
	)
	kind := func(method string) string {
		switch {
		case needs[method].anybody:
			return "anybody"
		case needs[method].action == auth.Publish:
			return publish
		case method == fanfarev1.FanfareService_ListStreams_FullMethodName:
			return list
		case needs[method].action == auth.Subscribe:
			return read
		default:
			return admin
		}
	}
	one := func(channel, scope string) []auth.Permission {
		return []auth.Permission{{Channel: channel, Scope: scope}}
	}
	for name, c := range map[string]struct {
		permissions auth.Permissions
		// allowed are the kinds of methods, to chat lobby where they are to a stream.
		allowed string
	}{
		"nothing":                  {auth.Permissions{}, ""},
		"empty lists":              {auth.Permissions{Subscribe: []auth.Permission{}, Publish: []auth.Permission{}}, ""},
		"publish":                  {auth.Permissions{Publish: one("chat", "lobby")}, "publish"},
		"subscribe":                {auth.Permissions{Subscribe: one("chat", "lobby")}, "read list"},
		"work":                     {auth.Permissions{Work: one("chat", "lobby")}, ""},
		"admin":                    {auth.Permissions{Admin: true}, "admin"},
		"everything":               {auth.Permissions{Subscribe: one("*", "*"), Publish: one("*", "*"), Admin: true}, "publish read list admin"},
		"another scope":            {auth.Permissions{Publish: one("chat", "kitchen"), Subscribe: one("chat", "kitchen")}, "list"},
		"another channel":          {auth.Permissions{Publish: one("orders", "lobby"), Subscribe: one("orders", "lobby")}, "list"},
		"no scope":                 {auth.Permissions{Publish: one("chat", ""), Subscribe: one("chat", "")}, "list"},
		"no channel":               {auth.Permissions{Publish: one("", "lobby"), Subscribe: one("", "lobby")}, "list"},
		"every scope":              {auth.Permissions{Publish: one("chat", "*"), Subscribe: one("chat", "*")}, "publish read list"},
		"every channel":            {auth.Permissions{Publish: one("*", "lobby"), Subscribe: one("*", "lobby")}, "publish read list"},
		"beginnings":               {auth.Permissions{Publish: one("ch*", "lob*"), Subscribe: one("ch*", "lob*")}, "publish read list"},
		"other beginnings":         {auth.Permissions{Publish: one("chat/*", "*"), Subscribe: one("*", "lobby/*")}, "list"},
		"a star in the middle":     {auth.Permissions{Publish: one("c*t", "*"), Subscribe: one("c*t", "lobby")}, "list"},
		"the other way round":      {auth.Permissions{Publish: one("lobby", "chat"), Subscribe: one("lobby", "chat")}, "list"},
		"publish and subscribe":    {auth.Permissions{Publish: one("chat", "lobby"), Subscribe: one("orders", "*")}, "publish list"},
		"the right one of several": {auth.Permissions{Subscribe: append(one("chat", "kitchen"), one("chat", "lobby")...)}, "read list"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := with(t.Context(), "Bearer "+signed(t, auth.Grant{Lifetime: testLifetime, Permissions: c.permissions}))
			for _, m := range g.methods(t) {
				want := "PERMISSION_DENIED"
				if k := kind(m); k == "anybody" || strings.Contains(" "+c.allowed+" ", " "+k+" ") {
					want = "ok"
				}
				// To publish to a wrong stream needs the right to publish somewhere.
				if got := g.outcome(t, ctx, m); got != want && !(m == fanfarev1.FanfareService_ListStreams_FullMethodName && len(c.permissions.Subscribe) == 0 && got == "PERMISSION_DENIED") {
					t.Errorf("%s: %s, want %s", m, got, want)
				}
			}
		})
	}
}

// Scenario S142, symptom: probes failed with authentication, or more than health was open.
// Cause: the exemption was of a prefix, or there was none.
func TestHealthAloneIsOpen(t *testing.T) {
	g := newGuarded(t)
	health := grpc_health_v1.NewHealthClient(g.conn)
	if _, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "liveness"}); err != nil {
		t.Errorf("Check: %v", err)
	}
	watch, err := health.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Errorf("Watch: %v", err)
	}
	for _, method := range []string{
		"/grpc.health.v1.Health/../fanfare.v1.FanfareService/Publish", "/grpc.health.v1.Health/Check/Publish",
		"/grpc.health.v1.Health/check", "/grpc.health.v1.Health/", "/grpc.health.v1.Healthy/Check", "//grpc.health.v1.Health/Check",
		"/fanfare.v1.FanfareService/publish", "/fanfare.v1.FanfareService/Publish/", "/FanfareService/Publish", "/fanfare.v1.Future/Call",
	} {
		if answer, err := g.call(t.Context(), method, requests[fanfarev1.FanfareService_Publish_FullMethodName]); err == nil {
			t.Errorf("%s answers %q", method, answer)
		}
	}
	// A health check that shows a bad token is a probe all the same.
	if _, err := health.Check(with(t.Context(), "Bearer garbage"), &grpc_health_v1.HealthCheckRequest{Service: "liveness"}); err != nil {
		t.Errorf("Check with garbage: %v", err)
	}
}

// The mode of a Unix socket says who may connect; a token that is shown counts all the
// same.
func TestUnixSocketsNeedNoToken(t *testing.T) {
	g := newGuarded(t)
	server := grpc.NewServer(g.ServerOptions()...)
	g.Register(server)
	path := filepath.Join(t.TempDir(), "s")
	socket, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(socket) }()
	g.conn, err = grpc.NewClient("unix://"+path, insecureOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = g.conn.Close()
		server.Stop()
		<-served
	})
	for _, m := range g.methods(t) {
		if got := g.outcome(t, t.Context(), m); got != "ok" {
			t.Errorf("%s without a token: %s", m, got)
		}
		for show, want := range map[string]string{
			"": "UNAUTHENTICATED", "Bearer garbage": "UNAUTHENTICATED", "Bearer " + signed(t, grant("somebody")): "PERMISSION_DENIED",
		} {
			if needs[m].anybody {
				want = "ok"
			}
			if got := g.outcome(t, with(t.Context(), show), m); got != want {
				t.Errorf("%s with %.14q: %s", m, show, got)
			}
		}
	}
}

func TestConnectionsOfTheServerToItself(t *testing.T) {
	g := newGuarded(t)
	for _, m := range g.methods(t) {
		if got := g.outcome(t, with(t.Context(), "bearer "+g.verifier.Internal()), m); got != "ok" {
			t.Errorf("%s: %s", m, got)
		}
	}
}
