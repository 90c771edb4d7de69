// Package transcode lets clients that speak no gRPC call a server: as JSON over HTTP
// by the rules of proto/fanfare/v1/http.yaml, by the Connect protocol, and by gRPC-Web,
// over HTTP/1.1 and HTTP/2. gRPC itself, over HTTP/2, passes through.
//
// The server sees gRPC over a connection of [Config].Dial, with HTTP/2 of grpc's own,
// which its writers and their bounds are made for, and never grpc's http.Handler. A
// call brings its caller's Authorization and nothing that the connection could add to
// it.
//
// What it adds to the transcoder (connectrpc.com/vanguard) are bounds: of a request's
// size, also when it is decompressed, of the memory for requests that are read at a time,
// of which one client has at most half, of the unary calls that are under way, and of the
// time that a client may take for its request and for each part of its answer; streams that
// hold nothing while nothing comes; and errors of one form.
//
// The server is told in X-Forwarded-For who has connected. What a client says in such a
// header is dropped: behind a proxy, a client is the proxy.
package transcode
