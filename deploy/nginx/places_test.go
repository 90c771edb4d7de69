package nginx_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/clientlib/sse"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// Pages come and go while the listener is lost again and again, many of them before they
// are answered. Each gives its place back once: in the end none is taken, and there are as
// many as before.
//
// A known mistake is a failed subscription that is cleaned up and also tried again: its
// place was counted out twice, and later more pages were let in than the limit allowed.
func TestPlacesAreGivenBack(t *testing.T) {
	const places, pages = 10, 200
	killEvery := 50 // each takes the longer to be back, the more often
	if inLongForm() {
		killEvery = 4
	}
	database := pgtest.NewDatabase(t)
	db := servicetest.Database{URL: database}
	edge := newEdge(t, servicetest.Start(t, database), sse.Config{MaxConnections: places})
	nginx := start(t, upstreams{http: []string{edge.address}})
	ctx := bounded(t)

	for n := range pages {
		if n%killEvery == 0 {
			if _, err := db.KillBackends(ctx, "^fanfare-listen/"); err != nil {
				t.Fatal(err)
			}
		}
		if n%3 == 0 {
			leaveBeforeTheAnswer(ctx, t, nginx.http)
			continue
		}
		s := open(t, nginx.http, "places")
		if n%3 == 1 {
			if _, err := s.until("retry: "); err != nil {
				t.Fatal(err)
			}
		}
		s.leave()
		s.response.Body.Close()
	}
	await(t, "nobody is connected", func() bool {
		n := edge.handler.Stats().Connections
		if n < 0 {
			t.Fatalf("%d pages are connected", n)
		}
		return n == 0
	})

	// The limit holds, and whoever leaves makes room.
	var taken []*stream
	for range places {
		s := open(t, nginx.http, "places")
		s.expectSubscribed()
		taken = append(taken, s)
	}
	if line, err := open(t, nginx.http, "places").until("event: "); err != nil || line != "event: fanfare.reconnect" {
		t.Errorf("beyond the limit a page gets %q, %v", line, err)
	}
	taken[0].leave()
	await(t, "a place is free", func() bool { return edge.handler.Stats().Connections < places })
	s := open(t, nginx.http, "places")
	s.expectSubscribed()
	edge.publish("places", "for all of them")
	for _, s := range append(taken[1:], s) {
		s.expect("data: for all of them")
	}
}

func (s *stream) expectSubscribed() {
	s.t.Helper()
	if _, err := s.until("id: "); err != nil {
		s.t.Fatalf("not subscribed: %v", err)
	}
}

// leaveBeforeTheAnswer asks for a stream and goes.
func leaveBeforeTheAnswer(ctx context.Context, t *testing.T, address string) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/v1/streams?channel=orders&scope=places", nil)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		if response, err := new(http.Transport).RoundTrip(request); err == nil {
			response.Body.Close()
		}
	}()
	cancel()
	<-asked
}
