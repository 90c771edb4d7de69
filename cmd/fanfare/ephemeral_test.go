package main

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// What is published with --ephemeral has no position and is not stored: a
// subscriber gets it among the other frames, nobody gets it later.
func TestPublishEphemeral(t *testing.T) {
	s := startEmbedded(t)
	text := start(t, nil, "subscribe", "c", "s", "--server", s.address)
	text.stderr.await(t, "caught up")
	asJSON := start(t, nil, "subscribe", "c", "s", "--json", "--server", s.address)
	asJSON.stdout.await(t, "caught_up")
	publish := func(stdin string, args ...string) string {
		t.Helper()
		r := command(t, stdin, append([]string{"publish", "c", "s", "--server", s.address}, args...)...)
		if r.code != exitOK || r.stderr != "" {
			t.Errorf("publish %q: %+v", args, r)
		}
		return r.stdout
	}
	first := publish("", "--data", "one")
	if out := publish("", "--data", "typing", "--ephemeral"); out != "" {
		t.Errorf("an ephemeral frame is printed as %q", out)
	}
	if out := publish("", "--data", "typing", "--ephemeral", "--json"); out != `{"type":"published","position":null,"duplicate":false}`+"\n" {
		t.Errorf("as JSON an ephemeral frame is printed as %q", out)
	}
	if out := publish("a\n\nb", "--lines", "--ephemeral"); out != "" {
		t.Errorf("ephemeral lines are printed as %q", out)
	}
	if out := publish("c\n", "--lines", "--ephemeral", "--json"); out != `{"type":"published","position":null,"duplicate":false,"line":1}`+"\n" {
		t.Errorf("as JSON an ephemeral line is printed as %q", out)
	}
	publish("", "--data", "two")
	const want = "one\ntyping\ntyping\na\n\nb\nc\ntwo\n"
	text.stdout.await(t, "two\n")
	if got := text.stdout.String(); got != want {
		t.Errorf("a subscriber got %q, want %q", got, want)
	}
	asJSON.stdout.await(t, `"data":"two"`)
	if typing := objects(t, asJSON.stdout.String())[3]; typing["type"] != "frame" || typing["ephemeral"] != true || typing["data"] != "typing" || typing["position"] != nil || typing["created"] == nil {
		t.Errorf("as JSON a subscriber got %v", typing)
	}
	after := command(t, "", "subscribe", "c", "s", "--from", strings.TrimSpace(first), "--count", "1", "--server", s.address)
	if after.stdout != "two\n" {
		t.Errorf("later a subscriber got %+v", after)
	}
	for _, r := range []*running{text, asJSON} {
		r.interrupt()
		r.end()
	}
}

// What may have become of an ephemeral frame is said in its own words: nothing of
// it is stored, and no key makes a retry safe.
func TestEphemeralFramesWithoutAnswer(t *testing.T) {
	s := &scriptedServer{}
	s.publish = func(ctx context.Context) (*fanfarev1.PublishResponse, error) {
		s.hangUp(ctx, nil)
		return nil, nil
	}
	s.publishStream = func(call fanfarev1.FanfareService_PublishStreamServer) error {
		for range 2 {
			if _, err := call.Recv(); err != nil {
				return err
			}
		}
		if err := call.Send(&fanfarev1.PublishStreamResponse{Number: 1, Outcome: &fanfarev1.PublishStreamResponse_Published{Published: &fanfarev1.PublishResponse{}}}); err != nil {
			return err
		}
		return call.Send(failed(2, codes.InvalidArgument, fanfarev1.ErrorReason_ERROR_REASON_INVALID_FIELD))
	}
	s.start(t)
	for name, c := range map[string]struct{ args, want string }{
		"one":   {"--data x", "; the frame may have been published, and a retry may deliver it twice\n"},
		"lines": {"--lines", "line 2 was not published: bad luck (InvalidArgument, INVALID_FIELD); line 1 was published; to go on: tail -n +2 FILE | fanfare publish …\n"},
	} {
		r := command(t, "a\nb\n", append([]string{"publish", "c", "s", "--ephemeral", "--server", s.address}, strings.Fields(c.args)...)...)
		if r.code != exitFailed || r.stdout != "" || !strings.HasSuffix(r.stderr, c.want) || regexp.MustCompile(`stored|--key`).MatchString(r.stderr) {
			t.Errorf("%s: %+v, want %q", name, r, c.want)
		}
	}
}

// A Gap for ephemeral frames moves nothing, and what a replay's bar shows is of
// durable frames.
func TestEphemeralFramesAndTheMeter(t *testing.T) {
	durable := func(sequence uint64) *fanfarev1.Frame {
		return &fanfarev1.Frame{Position: &fanfarev1.Position{Epoch: 7, Sequence: sequence}}
	}
	ephemeral := &fanfarev1.Frame{Ephemeral: true}
	for want, frames := range map[uint64][]*fanfarev1.Frame{
		0: {ephemeral, ephemeral},
		4: {durable(3), ephemeral, durable(4), ephemeral},
		9: {durable(9)},
	} {
		if got := lastSequence(frames); got != want {
			t.Errorf("the last sequence is %d, want %d", got, want)
		}
	}
	if lastSequence(nil) != 0 {
		t.Error("no frames have a last sequence")
	}
}
