package clientlib_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/clientlib"
)

// Symptom: no certificate was good for Connect, and proxies that choose by host found
// none. Cause: every replica was asked for by the name of the list they stand in.
func TestReplicasAreCalledByTheirNames(t *testing.T) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(certificate)

	listening, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	authorities := make(chan []string, 1)
	server := grpc.NewServer(
		grpc.Creds(credentials.NewServerTLSFromCert(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private})),
		grpc.UnknownServiceHandler(func(_ any, call grpc.ServerStream) error {
			md, _ := metadata.FromIncomingContext(call.Context())
			authorities <- md.Get(":authority")
			return status.Error(codes.NotFound, "as expected")
		}),
	)
	go func() { _ = server.Serve(listening) }()
	defer server.Stop()

	_, port, err := net.SplitHostPort(listening.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("localhost", port)
	conn, err := clientlib.Connect([]string{address}, grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(trusted, "")))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := clientlib.New(conn)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err = client.Publish(ctx, clientlib.NewFrame{Stream: clientlib.Stream{Channel: "c"}})
	if status.Code(err) != codes.NotFound {
		t.Fatalf("the call ended with %v", err)
	}
	if got := <-authorities; len(got) != 1 || got[0] != address {
		t.Errorf("it was addressed to %q, want %s", got, address)
	}
}
