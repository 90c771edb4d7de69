package service

import (
	"context"
	"sync"

	"google.golang.org/grpc"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// maxUntakenPages is how many unary calls of one connection may be answered with a
// page at a time, from when it is read until the client has taken it. Further ones
// wait. A page has 1 MiB, or one frame; grpc takes it whole, and keeps it for as
// long as the client does not read.
const maxUntakenPages = 32

// answersPage reports whether the responses of a unary method may be large, and cost
// the client next to nothing.
func answersPage(method string) bool {
	switch method {
	case fanfarev1.FanfareService_ReadFrames_FullMethodName,
		fanfarev1.FanfareService_ListStreams_FullMethodName,
		fanfarev1.FanfareService_ListPolicies_FullMethodName:
		return true
	}
	return false
}

// boundUntaken has a call that is answered with a page wait for a place among those
// of its connection, and keep that until grpc has written the page or dropped it.
// What it then returns is no message that other interceptors could read.
func boundUntaken(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if !answersPage(info.FullMethod) {
		return handler(ctx, req)
	}
	c := connectionOf(ctx)
	if err := c.pages.Acquire(ctx, 1); err != nil {
		return nil, failureOf(err)
	}
	release := sync.OnceFunc(func() { c.pages.Release(1) })
	response, err := handler(ctx, req)
	if err != nil {
		release()
		return nil, err
	}
	flight := newInFlight(c, release)
	flight.landWhenForgotten()
	return &outgoing{message: response, flight: flight}, nil
}
