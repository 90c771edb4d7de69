package sse_test

import (
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/sse"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

func inLongForm() bool { return os.Getenv("FANFARE_LONG") != "" }

// fleet is replicas behind addresses that stay, and edges on all of them.
type fleet struct {
	t        *testing.T
	url      string
	proxies  []*pgtest.ProxyServer
	replicas []*servicetest.Replica
	edges    []*replaceableEdge
	next     atomic.Uint64
	// majors are how many event streams were opened by each version of HTTP.
	majors [3]atomic.Uint64
}

func newFleet(t *testing.T, url string, replicas, edges int, tune func(*sse.Config)) *fleet {
	f := &fleet{t: t, url: url}
	var addresses []string
	for range replicas {
		r := f.start()
		proxy := pgtest.Proxy(t, r.Addr)
		f.replicas, f.proxies = append(f.replicas, r), append(f.proxies, proxy)
		addresses = append(addresses, proxy.Addr())
	}
	for i := range edges {
		var options []clientlib.Option
		if i%2 == 0 {
			options = append(options, clientlib.WithSession())
		}
		e := &replaceableEdge{t: t, client: newClient(t, addresses, options...), tune: tune}
		for major := range e.https {
			e.https[major] = &http.Client{Transport: &http.Transport{Protocols: protocols(major == 0, major == 1)}}
		}
		e.serve()
		t.Cleanup(e.stop)
		f.edges = append(f.edges, e)
	}
	return f
}

func (f *fleet) start() *servicetest.Replica {
	return servicetest.Start(f.t, f.url, func(c *servicetest.Config) {
		backlog := int64(1_000_000)
		c.Backlog = &backlog
		c.Service.DrainDelay, c.Service.DrainGrace = 10*time.Millisecond, 500*time.Millisecond
	})
}

// replace has another replica in place of one, after a drain or at once.
func (f *fleet) replace(drain bool) {
	i := rand.IntN(len(f.replicas))
	next := f.start()
	if drain {
		if err := f.replicas[i].Drain(context.Background()); err != nil {
			f.t.Errorf("drain: %v", err)
		}
	}
	f.proxies[i].SetTarget(f.t, next.Addr)
	if err := f.replicas[i].Stop(); err != nil {
		f.t.Errorf("stop: %v", err)
	}
	f.replicas[i] = next
}

// client is a client of an edge, of all in turn, by HTTP/1.1 and by HTTP/2 in turn.
func (f *fleet) client() fanfarev1.FanfareServiceClient {
	n, edges := f.next.Add(1), uint64(len(f.edges))
	e := f.edges[n%edges]
	return &viaEdge{url: "http://" + e.address, http: e.https[n/edges%uint64(len(e.https))], majors: &f.majors}
}

// protocols are those of HTTP without TLS.
func protocols(http1, http2 bool) *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(http1)
	p.SetUnencryptedHTTP2(http2)
	return &p
}

// replaceableEdge is an edge whose address stays while handlers come and go.
type replaceableEdge struct {
	t       *testing.T
	client  *clientlib.Client
	tune    func(*sse.Config)
	address string
	handler *sse.Handler
	server  *http.Server
	// https are clients by HTTP/1.1 and by HTTP/2.
	https [2]*http.Client
}

func (e *replaceableEdge) serve() {
	if e.address == "" {
		e.address = pgtest.FreeAddress(e.t)
	}
	socket, err := net.Listen("tcp", e.address)
	if err != nil {
		e.t.Fatal(err)
	}
	config := sse.Config{Retry: time.Millisecond, Linger: 200 * time.Millisecond}
	if e.tune != nil {
		e.tune(&config)
	}
	e.handler = sse.New(e.client, config)
	server := &http.Server{Handler: e.handler, ReadHeaderTimeout: patience, Protocols: protocols(true, true)}
	e.server = server
	go func() { _ = server.Serve(socket) }()
}

func (e *replaceableEdge) stop() {
	e.handler.Close()
	_ = e.server.Close()
	for _, c := range e.https {
		c.CloseIdleConnections()
	}
}

// replace has another handler in place of the edge's, after a drain or at once.
func (e *replaceableEdge) replace(drain bool) {
	if drain {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		e.handler.Drain(ctx)
		if n := e.handler.Stats().Connections; n > 0 {
			e.t.Errorf("%d connections are left after the drain", n)
		}
	}
	e.stop()
	e.serve()
}

// Replicas are killed and drained, edges too, and connections to the replicas cut, while
// frames are published: every guarantee holds for browsers that come back with their last
// id, whichever edge they reach. The rings are so small that browsers are overtaken all
// the time. The long form has 150 faults.
func TestGuaranteesHoldForBrowsers(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Replicas}, func(t *testing.T, db servicetest.Database) {
		faults := 5
		if inLongForm() {
			faults = 150
		}
		f := newFleet(t, db.URL, 2, 2, func(c *sse.Config) { c.RelayBytes, c.MaxRelayBytes = 4<<10, 12<<10 })
		publishing := f.publishing()
		traffic := startTraffic(t, func() fanfarev1.FanfareServiceClient { return publishing }, f.client)
		for n := range faults {
			traffic.awaitConfirmed(20 + rand.IntN(100))
			switch n % 5 {
			case 0:
				f.replace(false)
			case 1:
				f.edges[rand.IntN(len(f.edges))].replace(true)
			case 2:
				f.replace(true)
			case 3:
				f.proxies[rand.IntN(len(f.proxies))].Reset()
			case 4:
				f.edges[rand.IntN(len(f.edges))].replace(false)
			}
		}
		traffic.finish(servicetest.Unbroken)
		for _, major := range []int{1, 2} {
			if n := f.majors[major].Load(); n < 5 {
				t.Errorf("%d event streams were opened by HTTP/%d", n, major)
			}
		}
		var overtaken uint64
		for _, e := range f.edges {
			overtaken += e.handler.Stats().Overtaken
		}
		t.Logf("%d frames, %d faults; since the edges were last replaced browsers were overtaken %d times", traffic.confirmed.Load(), faults, overtaken)
	})
}

// publishing is a client of the replicas for publishers.
func (f *fleet) publishing() fanfarev1.FanfareServiceClient {
	var addresses []string
	for _, p := range f.proxies {
		addresses = append(addresses, p.Addr())
	}
	conn := connect(f.t, addresses)
	return fanfarev1.NewFanfareServiceClient(conn)
}
