package main

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// A subscription that the server ends for its age goes on by itself, again and
// again, and prints every frame once, in order.
func TestSubscribeGoesOnAfterItsAge(t *testing.T) {
	t.Parallel()
	s := startEmbedded(t, "--max-stream-age", "1s")
	r := start(t, nil, "subscribe", "c", "s", "--json", "--server", s.address)
	r.stdout.await(t, `"type":"caught_up"`)
	published := 0
	for deadline := time.Now().Add(patience); strings.Count(r.stdout.String(), `"type":"closing"`) < 3; {
		if time.Now().After(deadline) {
			t.Fatalf("it was not ended three times: %s", r.stdout)
		}
		published++
		mustRun(t, "", "publish", "c", "s", "--data", strconv.Itoa(published), "--server", s.address)
	}
	r.stdout.await(t, fmt.Sprintf(`"data":"%d"`, published))
	r.interrupt()
	if code := r.end(); code != exitOK || r.stderr.String() != "" {
		t.Errorf("exit code %d, stderr %q", code, r.stderr)
	}
	printed, ends := 0, 0
	for _, object := range objects(t, r.stdout.String()) {
		switch object["type"] {
		case "frame":
			printed++
			if object["data"] != strconv.Itoa(printed) {
				t.Fatalf("frame %d is %v", printed, object)
			}
		case "closing":
			ends++
		case "subscribed":
			if resumed := object["resumed"]; resumed != (ends > 0) {
				t.Errorf("after %d ends: %v", ends, object)
			}
		case "gap":
			t.Errorf("after %d ends: %v", ends, object)
		}
	}
}

// It waits as long as it is told, and what comes then may end it as anything
// else does. A drain ends it at once.
func TestSubscribeWaitsAfterItsAge(t *testing.T) {
	const wait = 300 * time.Millisecond
	at := &fanfarev1.Position{Epoch: 7, Sequence: 3}
	for name, test := range map[string]struct {
		reason string
		calls  int
	}{"age": {"MAX_STREAM_AGE", 3}, "drain": {"DRAINING", 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var starts []*fanfarev1.SubscribeRequest
			var began []time.Time
			s := &scriptedServer{}
			s.subscribe = func(request *fanfarev1.SubscribeRequest, call fanfarev1.FanfareService_SubscribeServer) error {
				starts, began = append(starts, request), append(began, time.Now())
				if len(starts) == 3 {
					return status.Error(codes.Internal, "enough")
				}
				err := call.Send(&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Closing{
					Closing: &fanfarev1.Closing{ResumeAfter: at, RetryIn: durationpb.New(wait)},
				}})
				if err != nil {
					return err
				}
				end, err := status.New(codes.Unavailable, "it ends").WithDetails(
					&errdetails.ErrorInfo{Domain: "fanfare.dev", Reason: test.reason},
					&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
				if err != nil {
					return err
				}
				return end.Err()
			}
			s.start(t)
			r := command(t, "", "subscribe", "c", "s", "--last", "5", "--server", s.address)
			if r.code != exitFailed || !strings.Contains(r.stderr, "continue with --from 7-3\n") || len(starts) != test.calls {
				t.Fatalf("%+v after %d calls", r, len(starts))
			}
			for i, request := range starts {
				switch {
				case i == 0:
					if request.GetLast() != 5 {
						t.Errorf("it began with %v", request)
					}
				case request.GetAfter().String() != at.String():
					t.Errorf("it went on with %v", request)
				case began[i].Sub(began[i-1]) < wait:
					t.Errorf("it went on after %s", began[i].Sub(began[i-1]))
				}
			}
		})
	}
}
