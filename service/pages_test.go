package service

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// read makes a call of ReadFrames through boundUntaken that is answered with page
// and err, and encodes what comes of it.
func read(ctx context.Context, page *fanfarev1.ReadFramesResponse, err error) (mem.BufferSlice, error) {
	info := &grpc.UnaryServerInfo{FullMethod: fanfarev1.FanfareService_ReadFrames_FullMethodName}
	response, err := boundUntaken(ctx, nil, info, func(context.Context, any) (any, error) { return page, err })
	if err != nil {
		return nil, err
	}
	return newCodec().Marshal(response)
}

// on returns the context of calls of a connection.
func on(ctx context.Context, c *connection) context.Context {
	return peer.NewContext(ctx, &peer.Peer{AuthInfo: connectionInfo{connection: c}})
}

func pageOf(payload string) *fanfarev1.ReadFramesResponse {
	return &fanfarev1.ReadFramesResponse{Frames: []*fanfarev1.Frame{{Payload: []byte(payload)}}}
}

// When a connection has as many pages as it may, a further call waits until one has
// been written, or its own context ends.
func TestFurtherPagesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConnection(noConn{})
		ctx := on(t.Context(), c)
		untaken := make([]mem.BufferSlice, maxUntakenPages)
		for i := range untaken {
			var err error
			if untaken[i], err = read(ctx, pageOf("x"), nil); err != nil {
				t.Fatal(err)
			}
		}
		given, giveUp := context.WithCancel(ctx)
		results := make(chan error, 1)
		wait := func(ctx context.Context) {
			go func() {
				data, err := read(ctx, pageOf("x"), nil)
				data.Free()
				results <- err
			}()
			synctest.Wait()
			if len(results) > 0 {
				t.Fatalf("a call has ended although %d pages are untaken: %v", maxUntakenPages, <-results)
			}
		}
		wait(given)
		giveUp()
		if err := <-results; status.Code(err) != codes.Canceled {
			t.Errorf("the call that was given up ended with %v", err)
		}
		wait(ctx)
		if _, err := read(on(t.Context(), newConnection(noConn{})), pageOf("x"), nil); err != nil {
			t.Errorf("a call of another connection: %v", err)
		}
		untaken[0].Free()
		if err := <-results; err != nil {
			t.Errorf("the call that waited: %v", err)
		}
		for _, data := range untaken[1:] {
			data.Free()
		}
	})
}

// However a call ends, its place comes back.
func TestPlacesOfPagesComeBack(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context) error{
		"written": func(ctx context.Context) error {
			data, err := read(ctx, pageOf("x"), nil)
			data.Free()
			return err
		},
		"empty": func(ctx context.Context) error {
			data, err := read(ctx, &fanfarev1.ReadFramesResponse{}, nil)
			data.Free()
			return err
		},
		"refused": func(ctx context.Context) error {
			refused := errors.New("refused")
			if _, err := read(ctx, nil, refused); !errors.Is(err, refused) {
				return errors.New("the handler's error was lost")
			}
			return nil
		},
		"not to be encoded": func(ctx context.Context) error {
			page := &fanfarev1.ReadFramesResponse{Frames: []*fanfarev1.Frame{{ContentType: "\xff"}}}
			if _, err := read(ctx, page, nil); err == nil {
				return errors.New("text that is not UTF-8 was encoded")
			}
			return nil
		},
		// As grpc does with what it is handed at the moment of a cancellation.
		"forgotten by grpc": func(ctx context.Context) error {
			_, err := read(ctx, pageOf("x"), nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newConnection(noConn{})
			if err := call(on(t.Context(), c)); err != nil {
				t.Fatal(err)
			}
			eventually(t, "all places are free", func() bool {
				if name == "forgotten by grpc" {
					runtime.GC()
				}
				return c.pages.TryAcquire(maxUntakenPages)
			})
		})
	}
}

// Every unary method is either bounded, or its responses are small beside what its
// client must send or the server must do for it.
func TestMethodsThatAnswerPages(t *testing.T) {
	want := map[string]bool{
		"ReadFrames": true, "ListStreams": true, "ListPolicies": true,
		"Publish": false, "PublishBatch": false, "GetStream": false, "CloseStream": false, "GetPolicy": false, "SetPolicy": false,
	}
	got := map[string]bool{}
	service := fanfarev1.FanfareService_ServiceDesc
	for _, method := range service.Methods {
		got[method.MethodName] = answersPage(strings.Join([]string{"", service.ServiceName, method.MethodName}, "/"))
	}
	if !maps.Equal(got, want) {
		t.Errorf("bounded are %v, want %v", got, want)
	}
}
