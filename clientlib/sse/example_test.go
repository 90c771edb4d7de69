package sse_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/sse"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// serve starts a server on an embedded store for an example, and a client.
func serve() (client *clientlib.Client, end func()) {
	t := &exampleServer{}
	address := servicetest.Start(t, "sqlite::memory:").Addr
	conn, err := clientlib.Connect([]string{address}, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Panic(err)
	}
	client = clientlib.New(conn, clientlib.WithSession())
	t.Cleanup(func() { _ = conn.Close() })
	t.Cleanup(func() { _ = client.Close() })
	return client, func() {
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

// A program that browsers reach serves streams beside its own pages, and drains before
// it ends.
func Example() {
	client, end := serve()
	defer end()
	streams := sse.New(client, sse.Config{AllowedOrigins: []string{"https://app.example.com"}})
	defer streams.Close()
	mux := http.NewServeMux()
	mux.Handle("/v1/streams", streams)
	mux.Handle("/v1/streams/", streams)
	server := httptest.NewServer(mux)
	defer server.Close()

	room := clientlib.Stream{Channel: "chat", Scope: "room-1"}
	if _, err := client.Publish(context.Background(), clientlib.NewFrame{Stream: room, EventType: "said", Payload: []byte("hello\nworld")}); err != nil {
		log.Panic(err)
	}

	// In a page: new EventSource('/v1/streams/chat/room-1').addEventListener('said', …)
	response, err := http.Get(server.URL + "/v1/streams/chat/room-1")
	if err != nil {
		log.Panic(err)
	}
	defer response.Body.Close() //nolint:errcheck // of an example
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		if name == "data" || name == "event" {
			fmt.Println(name, "is", strings.SplitAfter(value, "}")[0])
		}
		if value == "fanfare.caught_up" {
			break
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	streams.Drain(ctx)
	fmt.Println("connections left:", streams.Stats().Connections)
	// Output:
	// event is said
	// data is hello
	// data is world
	// event is fanfare.caught_up
	// connections left: 0
}

// EventSource sends no headers, so a page fetches a URL that is good for a minute, with
// the credential that it has, and a new one when the stream ends.
func ExampleSigner() {
	signer, err := sse.NewSigner(bytes.Repeat([]byte("k"), sse.MinKeyBytes))
	if err != nil {
		log.Panic(err)
	}
	u, err := url.Parse("/v1/streams/chat/room-1")
	if err != nil {
		log.Panic(err)
	}
	signed, err := signer.Sign(u, time.Now().Add(time.Minute))
	if err != nil {
		log.Panic(err)
	}
	request := httptest.NewRequest(http.MethodGet, signed.String(), nil)
	grant, err := signer.Verify(request, []clientlib.Stream{{Channel: "chat", Scope: "room-1"}})
	fmt.Println(err, time.Until(grant.Expires) > 50*time.Second)
	_, err = signer.Verify(request, []clientlib.Stream{{Channel: "chat", Scope: "room-2"}})
	fmt.Println(err)
	// Output:
	// <nil> true
	// the URL has no valid signature
}

// Authorize lets a request see streams for a while, or refuses it for good. Here
// sessions of the program's own decide, by a cookie.
func ExampleConfig() {
	client, end := serve()
	defer end()
	streams := sse.New(client, sse.Config{Authorize: func(r *http.Request, streams []clientlib.Stream) (sse.Grant, error) {
		cookie, err := r.Cookie("session")
		switch {
		case err != nil:
			return sse.Grant{}, &sse.Refusal{Status: http.StatusUnauthorized, Message: "log in first"}
		case cookie.Value != "of a member" || len(streams) != 1 || streams[0].Channel != "chat":
			return sse.Grant{}, &sse.Refusal{Status: http.StatusForbidden, Message: "this room is for members"}
		}
		return sse.Grant{Expires: time.Now().Add(time.Hour)}, nil
	}})
	defer streams.Close()
	for _, cookie := range []string{"", "of a guest", "of a member"} {
		request := httptest.NewRequest(http.MethodHead, "/v1/streams/chat/room-1", nil)
		if cookie != "" {
			request.AddCookie(&http.Cookie{Name: "session", Value: cookie})
		}
		answer := httptest.NewRecorder()
		streams.ServeHTTP(answer, request)
		fmt.Println(answer.Code)
	}
	// Output:
	// 401
	// 403
	// 200
}
