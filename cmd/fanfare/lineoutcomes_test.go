package main

import (
	"io"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// answers to lines, as a scripted server sends them.
type lineAnswer = *fanfarev1.PublishStreamResponse

func stored(line uint64) lineAnswer {
	return &fanfarev1.PublishStreamResponse{Number: line, Outcome: &fanfarev1.PublishStreamResponse_Published{
		Published: &fanfarev1.PublishResponse{Position: &fanfarev1.Position{Epoch: 7, Sequence: line}},
	}}
}

func failed(line uint64, code codes.Code, reason fanfarev1.ErrorReason) lineAnswer {
	return &fanfarev1.PublishStreamResponse{Number: line, Outcome: &fanfarev1.PublishStreamResponse_Error{
		Error: &fanfarev1.Error{Code: int32(code), Reason: reason, Message: "bad luck"},
	}}
}

func refused(line uint64) lineAnswer {
	return failed(line, codes.Unavailable, fanfarev1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE)
}

func unknown(line uint64) lineAnswer {
	return failed(line, codes.Unknown, fanfarev1.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN)
}

// Whatever the answers and their order: standard output has the position of
// each stored line in the lines' order, the error says of every line what became
// of it.
func TestLinesSayWhatBecameOfThem(t *testing.T) {
	draining, err := status.New(codes.Unavailable, "the server is going away").WithDetails(&errdetails.ErrorInfo{Reason: "DRAINING"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		lines   int
		answers []lineAnswer
		// ending is how the server ends the call; nil leaves it open.
		ending func(*scriptedServer, fanfarev1.FanfareService_PublishStreamServer) error
		stdout string // sequences
		want   string
	}{
		"in another order": {4, []lineAnswer{stored(3), stored(2), stored(4), stored(1)}, nil, "1 2 3 4", ""},
		"one is refused": {5, []lineAnswer{stored(1), refused(2), stored(3), stored(4), stored(5)}, nil, "1 3 4 5",
			"line 2 was not stored: bad luck (Unavailable, STORE_UNAVAILABLE); lines 1 and 3-5 were stored"},
		"a later answer comes first": {3, []lineAnswer{refused(3), unknown(2), stored(1)}, nil, "1",
			"line 2 may have been stored: bad luck (Unknown, OUTCOME_UNKNOWN); line 3 was not stored; line 1 was stored"},
		"the last ones are refused": {4, []lineAnswer{stored(1), stored(2), refused(3), refused(4)}, nil, "1 2",
			"line 3 was not stored: bad luck (Unavailable, STORE_UNAVAILABLE); line 4 was not stored either; lines 1-2 were stored; to go on: tail -n +3 FILE | fanfare publish …"},
		"one is unknown after others": {3, []lineAnswer{stored(1), unknown(2), refused(3)}, nil, "1",
			"line 2 may have been stored: bad luck (Unknown, OUTCOME_UNKNOWN); line 3 was not stored; line 1 was stored"},
		"all are refused": {4, []lineAnswer{refused(1), refused(2), refused(3), refused(4)}, nil, "",
			"line 1 was not stored: bad luck (Unavailable, STORE_UNAVAILABLE); lines 2-4 were not stored either; no line was stored"},
		"several are unknown": {6, []lineAnswer{stored(1), unknown(2), stored(3), unknown(4), stored(5), unknown(6)}, nil, "1 3 5",
			"line 2 may have been stored: bad luck (Unknown, OUTCOME_UNKNOWN); lines 1, 3 and 5 were stored; lines 4 and 6 may have been stored"},
		"a connection breaks": {6, []lineAnswer{stored(1), refused(2), stored(4)},
			func(s *scriptedServer, stream fanfarev1.FanfareService_PublishStreamServer) error {
				s.hangUp(stream.Context(), stored(4))
				return nil
			}, "1 4",
			"line 2 was not stored: bad luck (Unavailable, STORE_UNAVAILABLE); the connection to ADDRESS was lost; lines 1 and 4 were stored; lines 3 and 5-6 may have been stored"},
		"a connection breaks before any answer": {2, nil,
			func(s *scriptedServer, stream fanfarev1.FanfareService_PublishStreamServer) error {
				s.hangUp(stream.Context(), nil)
				return nil
			}, "",
			"the connection to ADDRESS was lost; no line is known to be stored; lines 1-2 may have been stored"},
		"a drain": {4, []lineAnswer{stored(1), stored(2)},
			func(*scriptedServer, fanfarev1.FanfareService_PublishStreamServer) error { return draining.Err() }, "1 2",
			"the server is going away (Unavailable, DRAINING); lines 3-4 were not stored; lines 1-2 were stored; to go on: tail -n +3 FILE | fanfare publish …"},
		"an early end": {3, []lineAnswer{stored(1)},
			func(*scriptedServer, fanfarev1.FanfareService_PublishStreamServer) error { return nil }, "1",
			"the server at ADDRESS ended the call early; line 1 was stored; lines 2-3 may have been stored"},
		"a stray answer": {1, []lineAnswer{stored(2), stored(1)}, nil, "1 2",
			"the server answered a line that waits for no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &scriptedServer{}
			s.publishStream = func(stream fanfarev1.FanfareService_PublishStreamServer) error {
				for range c.lines {
					if _, err := stream.Recv(); err != nil {
						return err
					}
				}
				// Nothing is answered before the client has sent all its lines.
				if _, err := stream.Recv(); err != io.EOF {
					return status.Error(codes.InvalidArgument, "more lines than expected")
				}
				for _, answer := range c.answers {
					if err := stream.Send(answer); err != nil {
						return err
					}
				}
				if c.ending != nil {
					return c.ending(s, stream)
				}
				return nil
			}
			s.start(t)
			r := command(t, strings.Repeat("x\n", c.lines), "publish", "c", "s", "--lines", "--server", s.address)
			if name != "a stray answer" {
				checkPositions(t, r.stdout, c.stdout)
			}
			if c.want == "" {
				if r.code != exitOK || r.stderr != "" {
					t.Errorf("%+v", r)
				}
				return
			}
			want := "fanfare publish: " + strings.ReplaceAll(c.want, "ADDRESS", s.address)
			if r.code != exitFailed || !strings.HasPrefix(r.stderr, want) || name != "a stray answer" && r.stderr != want+"\n" {
				t.Errorf("exit code %d, stderr\n%s\nwant\n%s", r.code, r.stderr, want)
			}
		})
	}
}

func checkPositions(t *testing.T, stdout, sequences string) {
	t.Helper()
	var want strings.Builder
	for _, sequence := range strings.Fields(sequences) {
		want.WriteString("7-" + sequence + "\n")
	}
	if stdout != want.String() {
		t.Errorf("stdout %q, want %q", stdout, want.String())
	}
}

// After a failure no more lines are sent although the input goes on, and answers
// that do not come are waited for as long as --timeout says.
func TestLinesAfterAFailure(t *testing.T) {
	received := make(chan int, 1)
	s := (&scriptedServer{publishStream: func(stream fanfarev1.FanfareService_PublishStreamServer) error {
		for range 3 {
			if _, err := stream.Recv(); err != nil {
				return err
			}
		}
		if err := stream.Send(refused(1)); err != nil {
			return err
		}
		n := 3
		for {
			if _, err := stream.Recv(); err != nil {
				break
			}
			n++
		}
		received <- n
		if err := stream.Send(stored(3)); err != nil {
			return err
		}
		<-stream.Context().Done() // no answer to line 2
		return nil
	}}).start(t)
	input := newLoad()
	t.Cleanup(input.stop)
	r := start(t, input, "publish", "c", "s", "--lines", "--json", "--timeout", "2s", "--server", s.address)
	if code := r.end(); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	n := <-received
	if n > maxLinesInFlight {
		t.Errorf("%d lines were sent with none answered", n)
	}
	last := "line 2"
	if n > 3 {
		last = "lines 2 and 4-" + strconv.Itoa(n)
		if n == 4 {
			last = "lines 2 and 4"
		}
	}
	r.stderr.await(t, `line 1 was not stored: bad luck \(Unavailable, STORE_UNAVAILABLE\); `+
		`the server at \S+ did not answer in time \(--timeout 2s\); `+
		`line 3 was stored; `+last+` may have been stored; what follows line `+strconv.Itoa(n)+` was not sent\n`)
	if out := objects(t, r.stdout.String()); len(out) != 1 || out[0]["line"] != 3.0 || out[0]["position"] != "7-3" {
		t.Errorf("printed %v", out)
	}
}

// What waits for an earlier line's answer is bounded by the lines in flight.
func TestLinesHeldBackAreBounded(t *testing.T) {
	o := newLineOutcomes("stored")
	for line := uint64(2); line <= maxLinesInFlight; line++ {
		if settled, err := o.add(stored(line)); err != nil || settled != nil {
			t.Fatalf("line %d: %v, %v", line, settled, err)
		}
	}
	if _, err := o.add(stored(maxLinesInFlight + 1)); err == nil {
		t.Error("more lines wait than may be in flight")
	}
	if settled, err := o.add(stored(1)); err != nil || len(settled) != maxLinesInFlight || len(o.waiting) != 0 {
		t.Errorf("%d lines are settled, %d wait, %v", len(settled), len(o.waiting), err)
	}
	if _, err := o.add(stored(1)); err == nil {
		t.Error("a line was answered twice")
	}
}
