package clientlib_test

import (
	"context"
	"log"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// insecureConnection is for servers on the same host; elsewhere use TLS.
var insecureConnection = grpc.WithTransportCredentials(insecure.NewCredentials())

// serve starts a server on an embedded store for an example. It returns its address, a
// client, and what ends both.
func serve(options ...clientlib.Option) (address string, client *clientlib.Client, end func()) {
	t := &exampleServer{}
	address = servicetest.Start(t, "sqlite::memory:").Addr
	conn, err := clientlib.Connect([]string{address}, insecureConnection)
	if err != nil {
		log.Panic(err)
	}
	client = clientlib.New(conn, options...)
	t.Cleanup(func() { _ = conn.Close() })
	t.Cleanup(func() { _ = client.Close() })
	return address, client, func() {
		for _, f := range slices.Backward(t.cleanups) {
			f()
		}
	}
}

// exampleServer is what servicetest needs of a test.
type exampleServer struct {
	testing.TB
	cleanups []func()
}

func (*exampleServer) Helper()                           {}
func (*exampleServer) Context() context.Context          { return context.Background() }
func (*exampleServer) Fatalf(format string, args ...any) { log.Panicf(format, args...) }
func (*exampleServer) Errorf(format string, args ...any) { log.Panicf(format, args...) }
func (t *exampleServer) Cleanup(f func())                { t.cleanups = append(t.cleanups, f) }
