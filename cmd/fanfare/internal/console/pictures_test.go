package console_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/browser/browsertest"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// busyStreams are what the pictures show: a stream, how many frames it gets per second
// and how many subscribers it has.
var busyStreams = []struct {
	channel, scope string
	perSecond      float64
	subscribers    int
}{
	{"chat/messages", "lobby", 3, 84},
	{"chat/messages", "design", 1, 12},
	{"chat/messages", "support", 2, 31},
	{"chat/presence", "lobby", 9, 84},
	{"deployments", "", 0.2, 6},
	{"https://shop.example/events", "eu-west", 6, 9},
	{"invoices", "tenant-0042", 0.5, 3},
	{"invoices", "tenant-0317", 0.4, 2},
	{"orders", "4711", 0.6, 1},
	{"orders", "4712", 0.3, 1},
	{"sensors/temperature", "hall-a", 14, 18},
	{"sensors/temperature", "hall-b", 11, 17},
	{"telemetry/vehicles", "fleet-7", 24, 40},
}

var sayings = []string{
	"good morning, everyone", "the new build is on staging", "can somebody look at ticket 1842?", "on it",
	"works for me after a reload", "lunch?", "the dashboard is green again", "thanks, that helped",
	"deploying in five minutes", "who owns the export job?", "I do – what about it?", "nothing, it is faster now :)",
}

// frameOf makes up a frame that fits its channel.
func frameOf(random *rand.Rand, channel, scope string) clientlib.NewFrame {
	frame := clientlib.NewFrame{Stream: clientlib.Stream{Channel: channel, Scope: scope}, ContentType: "application/json"}
	switch channel {
	case "chat/messages":
		names := []string{"ann", "ben", "chiara", "dmitri", "emre"}
		frame.EventType = "message"
		frame.Payload = fmt.Appendf(nil, `{"from":%q,"text":%q}`, names[random.IntN(len(names))], sayings[random.IntN(len(sayings))])
	case "sensors/temperature":
		frame.EventType = "reading"
		frame.Payload = fmt.Appendf(nil, `{"celsius":%.2f,"humidity":%d}`, 19+random.Float64()*4, 40+random.IntN(20))
	default:
		frame.EventType = "changed"
		frame.Payload = fmt.Appendf(nil, `{"id":%d,"state":"updated"}`, random.IntN(100_000))
	}
	return frame
}

// beBusy has the streams published to and subscribed to until the test ends.
func (s *server) beBusy() {
	for i, stream := range busyStreams {
		name := clientlib.Stream{Channel: stream.channel, Scope: stream.scope}
		s.publish(frameOf(rand.New(rand.NewPCG(1, uint64(i))), stream.channel, stream.scope))
		s.subscribe(name, stream.subscribers)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			random := rand.New(rand.NewPCG(2, uint64(i)))
			for began := time.Now(); ; {
				// Waves, so that a chart has something to show.
				wave := 1 + 0.6*float64(int(time.Since(began).Seconds()+float64(i)*3)%20)/20
				wait := time.Duration(random.ExpFloat64() / (stream.perSecond * wave) * float64(time.Second))
				select {
				case <-time.After(wait):
				case <-ctx.Done():
					return
				}
				frame := frameOf(random, stream.channel, stream.scope)
				frame.Ephemeral = stream.channel == "chat/messages" && random.IntN(6) == 0
				if frame.Ephemeral {
					frame.EventType, frame.Payload = "typing", []byte(`{"from":"emre"}`)
				}
				if _, err := s.client.Publish(ctx, frame); err != nil {
					return
				}
			}
		}()
		s.t.Cleanup(func() {
			cancel()
			<-done
		})
	}
}

// The pictures in the documents are taken by this test:
//
//	FANFARE_PICTURES=$PWD/docs/images go test -run TestPictures ./cmd/fanfare/internal/console
//
// writes them anew, after five minutes of traffic, which the charts show. Without the
// variable it takes them after some seconds, and looks at their sizes only.
func TestPictures(t *testing.T) {
	t.Parallel()
	directory, published := t.TempDir(), 300
	if wanted := os.Getenv("FANFARE_PICTURES"); wanted != "" {
		directory, published = wanted, 25_000
	}
	s := serve(t, servicetest.Database{URL: "sqlite::memory:"}, "--instance", "replica-a")
	s.beBusy()
	browser := browsertest.Start(t)

	light := s.console(browser, "")
	light.Size(1280, 860, false)
	light.Prefer("prefers-color-scheme", "light")
	dark := s.console(browser, "#/stream?channel=chat/messages&scope=lobby")
	dark.Size(1280, 860, false)
	dark.Prefer("prefers-color-scheme", "dark")
	phone := s.console(browser, "")
	phone.Size(390, 844, true)
	phone.Prefer("prefers-color-scheme", "light")
	s.awaitPublished(published)
	for name, page := range map[string]*browsertest.Page{"light": light, "dark": dark, "phone": phone} {
		path := filepath.Join(directory, "console-"+name+".png")
		page.Screenshot(path)
		if f, err := os.Stat(path); err != nil || f.Size() > 150_000 {
			t.Errorf("%s: %v, %d bytes; want less than 150,000", path, err, f.Size())
		}
	}
}

// awaitPublished waits until the server has been published so many frames.
func (s *server) awaitPublished(frames int) {
	s.t.Helper()
	deadline := time.Now().Add(patience + time.Duration(frames)*50*time.Millisecond)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		var health struct{ Published int }
		s.read("/healthz", &health)
		if health.Published >= frames {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%d frames were published, want %d", health.Published, frames)
		}
		<-tick.C
	}
}
