package service

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/auth"
	"github.com/fanfare-io/fanfare/service/hub"
)

// What authentication adds to a unary call, over loopback and a store that costs nothing.
func BenchmarkPublishWithAuthentication(b *testing.B) {
	for _, authentication := range []bool{false, true} {
		b.Run(fmt.Sprint(authentication), func(b *testing.B) {
			config := Config{Logger: slog.New(slog.DiscardHandler)}
			ctx := b.Context()
			if authentication {
				ctx, config.Verifier = benchCaller(b, ctx)
			}
			client := benchServer(b, config)
			request := &fanfarev1.PublishRequest{Frame: newLobbyFrame()}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := client.Publish(ctx, request); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// benchCaller is the context of calls with a token, and what verifies that.
func benchCaller(b *testing.B, ctx context.Context) (context.Context, *auth.Verifier) {
	b.Helper()
	verifier, err := auth.NewVerifier(ctx, auth.Config{Keys: []auth.Key{testKey()}})
	if err != nil {
		b.Fatal(err)
	}
	token, err := auth.Sign(testKey(), auth.Grant{Lifetime: time.Hour, Permissions: auth.Permissions{Publish: []auth.Permission{{Channel: "chat", Scope: "lobby"}}}})
	if err != nil {
		b.Fatal(err)
	}
	return with(ctx, "Bearer "+token), verifier
}

// discardingStore keeps no frames.
type discardingStore struct{ fakeStore }

func (s *discardingStore) Submit(_ context.Context, p backlog.Publication, done func(backlog.Outcome, error)) {
	done(s.number(p), nil)
}

func benchServer(b *testing.B, config Config) fanfarev1.FanfareServiceClient {
	b.Helper()
	store, bus := &discardingStore{}, &fakeBus{}
	s := New(store, hub.New(bus, store, EncodeFrame, hub.Config{}), bus, config)
	server := grpc.NewServer(s.ServerOptions()...)
	s.Register(server)
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(socket) }()
	conn, err := grpc.NewClient(socket.Addr().String(), insecureOptions()...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		<-served
	})
	return fanfarev1.NewFanfareServiceClient(conn)
}
