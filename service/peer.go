package service

import (
	"context"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

const (
	// inProcess is the network of peers within the process: listeners in memory
	// (google.golang.org/grpc/test/bufconn). What they say of whom they pass on is
	// believed, as nobody else can be one.
	inProcess = "bufconn"
	// overHTTP is the network of a peer that stands for a client over HTTP, which an
	// http.Handler puts into a context.
	overHTTP = "http"
	// forwardedFor is the metadata in which a peer within the process says whose call it
	// passes on. Of all others it is not read.
	forwardedFor = "x-forwarded-for"
)

// peerFields are the fields of a line of log that say who calls. A client over HTTP is who
// has connected to this process, which may be a proxy.
func peerFields(ctx context.Context) []any {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return nil
	}
	address, network := p.Addr.String(), p.Addr.Network()
	if network == inProcess {
		address = "in-process"
		if client := metadata.ValueFromIncomingContext(ctx, forwardedFor); len(client) == 1 {
			address, network = client[0], overHTTP
		}
	}
	fields := []any{"peer.address", address}
	if network == overHTTP {
		fields = append(fields, "peer.via", overHTTP)
	}
	return fields
}
