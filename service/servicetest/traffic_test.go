package servicetest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

func holdEverything(c *Config) { c.Backlog = new(int64(1 << 40)) }

// trafficOn starts traffic on a replica that a test may replace.
func trafficOn(t testing.TB, client func(fanfarev1.FanfareServiceClient) fanfarev1.FanfareServiceClient, r *Replica) (*Traffic, *atomic.Pointer[Replica]) {
	t.Helper()
	current := &atomic.Pointer[Replica]{}
	current.Store(r)
	return StartTraffic(t, func() fanfarev1.FanfareServiceClient { return client(current.Load().Client) }), current
}

func honest(c fanfarev1.FanfareServiceClient) fanfarev1.FanfareServiceClient { return c }

// On every store a server that is stopped without a warning and replaced loses
// nothing.
func TestTrafficOutlivesServers(t *testing.T) {
	OnEachStore(t, nil, func(t *testing.T, db Database) {
		traffic, current := trafficOn(t, honest, Start(t, db.URL, holdEverything))
		for range 5 {
			traffic.AwaitAcknowledged(500)
			if err := current.Load().Stop(); err != nil {
				t.Fatal(err)
			}
			current.Store(Start(t, db.URL, holdEverything))
		}
		traffic.Finish()
	})
}

// verdict is a test whose failures are kept.
type verdict struct {
	testing.TB
	failures []string
}

func (v *verdict) Helper() {}
func (v *verdict) Errorf(format string, args ...any) {
	v.failures = append(v.failures, fmt.Sprintf(format, args...))
}

// liar acknowledges one frame that it has not published.
type liar struct {
	fanfarev1.FanfareServiceClient
	lied *atomic.Bool
}

func (l liar) Publish(ctx context.Context, request *fanfarev1.PublishRequest, options ...grpc.CallOption) (*fanfarev1.PublishResponse, error) {
	if l.lied.CompareAndSwap(false, true) {
		return &fanfarev1.PublishResponse{Position: &fanfarev1.Position{Epoch: 1, Sequence: 1}}, nil
	}
	return l.FanfareServiceClient.Publish(ctx, request, options...)
}

// One acknowledged frame among thousands that is not there is found.
func TestTrafficFindsWhatWasLost(t *testing.T) {
	OnEachStore(t, nil, func(t *testing.T, db Database) {
		var lied atomic.Bool
		found := &verdict{TB: t}
		traffic, _ := trafficOn(found, func(c fanfarev1.FanfareServiceClient) fanfarev1.FanfareServiceClient {
			return liar{c, &lied}
		}, Start(t, db.URL, holdEverything))
		traffic.AwaitAcknowledged(1000)
		traffic.Finish()
		if all := strings.Join(found.failures, "\n"); !strings.Contains(all, "Resumable is broken 3 times") {
			t.Errorf("a lost frame was reported as %q", all)
		}
	})
}
