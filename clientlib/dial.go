package clientlib

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

const (
	// keepaliveTime is above what the server takes for too often, which is 10 s.
	keepaliveTime    = 20 * time.Second
	keepaliveTimeout = 10 * time.Second
)

// DialOptions returns what a connection for a [Client] is best made with, besides its
// credentials:
//
//   - Pings find a connection that is dead within 30 s, also behind a network that says
//     nothing. A server refuses clients that ping more often than every 10 s.
//   - Calls go to all addresses that the target has in turn (round_robin).
//   - A broken connection is made anew after 100 ms at first and 5 s at most.
//
// Options that follow these override them.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: defaultMinBackoff, Multiplier: 1.6, Jitter: 0.5, MaxDelay: defaultMaxBackoff},
			MinConnectTimeout: 5 * time.Second,
		}),
	}
}

// Connect returns a connection to the replicas at addresses, each HOST:PORT, whose calls
// go to them in turn; one that is away does not matter. It is made when it is first used,
// with [DialOptions] and then options, which must have credentials. The caller closes it.
// A certificate must be for the host of its replica's address. Where one name stands for
// all replicas, grpc.NewClient does as well.
func Connect(addresses []string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	var replicas resolver.State
	for _, a := range addresses {
		replicas.Endpoints = append(replicas.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: a, ServerName: a}}})
	}
	list := manual.NewBuilderWithScheme("fanfare")
	list.InitialState(replicas)
	all := append(DialOptions(), grpc.WithResolvers(list))
	return grpc.NewClient("fanfare:///replicas", append(all, options...)...)
}
