package service

import (
	"testing"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/fanfare-io/fanfare/service/auth"
)

// Symptom: reflection went on after its token had expired. Cause: only calls of
// FanfareService looked at the time. Health needs no token, so none ends it.
func TestReflectionEndsWithItsToken(t *testing.T) {
	g := newGuarded(t)
	v, err := auth.NewVerifier(t.Context(), auth.Config{Keys: []auth.Key{testKey()}, Leeway: -1})
	if err != nil {
		t.Fatal(err)
	}
	g.Server.cfg.Verifier = v
	ctx := with(t.Context(), "Bearer "+signed(t, auth.Grant{Lifetime: 4 * time.Second, Permissions: auth.Permissions{Admin: true}}))
	watch, err := grpc_health_v1.NewHealthClient(g.conn).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	call, err := reflectionv1.NewServerReflectionClient(g.conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	list := &reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}
	if err := call.Send(list); err != nil {
		t.Fatal(err)
	}
	if _, err := call.Recv(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := call.Recv()
		ended <- err
	}()
	select {
	case err := <-ended:
		if reasonOf(err) != "TOKEN_EXPIRED" {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it goes on")
	}
	g.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN)
	for {
		answer, err := watch.Recv()
		if err != nil {
			t.Fatalf("health's Watch ended with %v", err)
		}
		if answer.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN {
			return
		}
	}
}
