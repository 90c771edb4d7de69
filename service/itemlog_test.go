package service

import (
	"strings"
	"testing"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Symptom: of thousands of clients one was refused its subscriptions again and again, and
// the log did not say which. Cause: the lines about subscriptions of a Session, which is one
// call for all of them, were without the address that the lines of calls have.
func TestLinesOfSubscriptionsOfASessionSayWhoCalls(t *testing.T) {
	s, log := loggedServer(t, nil)
	client, _, _ := serve(t, s)
	session, err := client.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	refused := &fanfarev1.SessionSubscribe{Number: 1, Request: &fanfarev1.SubscribeRequest{}}
	if err := session.Send(&fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Subscribe{Subscribe: refused}}); err != nil {
		t.Fatal(err)
	}
	if answer, err := session.Recv(); err != nil || answer.GetEnded().GetError().GetField() != "request.channel" {
		t.Fatalf("got %v, %v", answer, err)
	}
	line, _ := log.last()
	if !strings.Contains(line, "ended a subscription of a Session") || !strings.Contains(line, "peer.address=127.0.0.1:") {
		t.Errorf("the line is %q", line)
	}
}
