//go:build unix

package bench

import (
	"context"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/service/servicetest"
)

// measureRunning runs a case on a replica in this process and returns its lines.
func measureRunning(t *testing.T, scenario, name string, sizes Sizes) map[string]Line {
	t.Helper()
	replica := servicetest.Start(t, "sqlite::memory:")
	lines := map[string]Line{}
	config := Config{
		Server: replica.Addr, PID: os.Getpid(), Rounds: 2, Time: 100 * time.Millisecond, Sizes: sizes,
		Report: func(l Line) { lines[l.What] = l },
	}
	s := Find(scenario)
	if err := s.Measure(t.Context(), config, s.Find(name)); err != nil {
		t.Fatal(err)
	}
	for what, l := range lines {
		if l.Rounds != 2 || l.Value <= 0 || math.IsInf(l.Value, 0) {
			t.Errorf("%s: the line is %+v", what, l)
		}
	}
	return lines
}

func TestFanoutScenarios(t *testing.T) {
	small := Sizes{Subscribers: 30, Connections: 4, Bytes: 100}
	paced := Sizes{Subscribers: 30, Connections: 4, Bytes: 100, Rate: 100}
	for _, c := range []struct {
		scenario, name string
		sizes          Sizes
		want           []string
	}{
		{"fanout", "1000-subscribers", small, []string{"server CPU for a million deliveries", "deliveries", "frames in a message"}},
		{"fanout", "behind", small, []string{"server CPU for a million deliveries", "frames in a message"}},
		{"fanout", "1000-paced", paced, []string{"server CPU for a million deliveries", "publish to receive, p50", "publish to receive, p99"}},
		{"latency", "one-subscriber", Sizes{}, []string{"publish to receive, p50", "publish to receive, p99"}},
	} {
		t.Run(c.scenario+" "+c.name, func(t *testing.T) {
			lines := measureRunning(t, c.scenario, c.name, c.sizes)
			for _, what := range c.want {
				if _, there := lines[what]; !there {
					t.Errorf("there is no line %q: %v", what, lines)
				}
			}
			if batched := lines["frames in a message"]; c.name == "behind" && batched.Value < 2 {
				t.Errorf("frames published in batches of 64 came %.1f to a message", batched.Value)
			}
		})
	}
}

func TestStalledSubscribersAreComparedWithNone(t *testing.T) {
	// Payloads so large that a few of them fill the window.
	lines := measureRunning(t, "slow", "tenth-stalled", Sizes{Subscribers: 20, Connections: 2, Bytes: 5000})
	l, there := lines["publish to receive with a tenth stalled, p99"]
	if !there || l.ComparedWith != nobodyStalled || l.Ratio == nil {
		t.Errorf("the lines are %v", lines)
	}
}

// What stalled subscribers cost is not shown by some that got everything.
func TestSubscribersThatDoNotStallFailTheCase(t *testing.T) {
	replica := servicetest.Start(t, "sqlite::memory:")
	s := Find("slow")
	err := s.Measure(t.Context(), Config{
		Server: replica.Addr, Rounds: 1, Time: 20 * time.Millisecond, Sizes: Sizes{Subscribers: 20, Connections: 2, Bytes: 1},
	}, s.Find("tenth-stalled"))
	if err == nil || !strings.Contains(err.Error(), "was to stall got all") {
		t.Errorf("got %v", err)
	}
}

func TestAudienceThatIsRefused(t *testing.T) {
	replica := servicetest.Start(t, "sqlite::memory:", func(c *servicetest.Config) { c.Service.MaxSubscriptions = 5 })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	a, err := seating{channel: "bench", connections: 2, seats: 20, streams: 1}.open(ctx, &Server{Address: replica.Addr}, newGate(1, 1))
	defer a.close()
	if err == nil || !strings.Contains(err.Error(), "a subscription ended") {
		t.Errorf("20 subscriptions of a server that admits 5: %v", err)
	}
}

func TestAudienceThatLosesItsServer(t *testing.T) {
	replica := servicetest.Start(t, "sqlite::memory:")
	s := Find("fanout")
	stopped := make(chan error, 1)
	err := s.Measure(t.Context(), Config{
		Server: replica.Addr, Rounds: 1, Time: time.Hour, Sizes: Sizes{Subscribers: 20, Connections: 2},
		Progress: func(text string) {
			if strings.Contains(text, "round 1") {
				go func() { stopped <- replica.Stop() }()
			}
		},
	}, s.Find("1000-subscribers"))
	if err == nil {
		t.Error("an hour of publishing to a server that stopped is no failure")
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
