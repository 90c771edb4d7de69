package browsertest

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/chromedp/chromedp"
)

// shared is the Chromium that the tests of a package have in common.
type shared struct {
	mu sync.Mutex // guards what follows
	// running is true while Run runs the tests.
	running bool
	// newProfile returns the context of a window with a new profile, and what leaves it;
	// nil while there is no Chromium.
	newProfile func() (context.Context, context.CancelFunc)
	gone       <-chan struct{} // closed when it has ended
	end        func() error
}

var common shared

// Run runs the tests of a package, for its TestMain: m is a *testing.M, or what calls it.
// The tests have one Chromium in common, which is started for the first and saves the
// others most of a second.
func Run(m interface{ Run() int }) int {
	common.setRunning(true)
	code := m.Run()
	if err := common.setRunning(false); err != nil {
		fmt.Fprintf(os.Stderr, "Chromium had to be killed: %v\n", err)
	}
	return code
}

func (s *shared) setRunning(running bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = running
	if running || s.newProfile == nil {
		return nil
	}
	s.newProfile = nil
	return s.end()
}

func (s *shared) used() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// profile returns the context of a window with a new profile. A Chromium that has
// crashed is replaced.
func (s *shared) profile() (context.Context, context.CancelFunc, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newProfile != nil {
		select {
		case <-s.gone:
			_ = s.end() // what is left of it
			s.newProfile = nil
		default:
		}
	}
	if s.newProfile == nil {
		ctx, end, err := start(nil)
		if err != nil {
			return nil, nil, err
		}
		s.gone, s.end = ctx.Done(), end
		s.newProfile = func() (context.Context, context.CancelFunc) {
			return chromedp.NewContext(ctx, chromedp.WithNewBrowserContext())
		}
	}
	ctx, leave := s.newProfile()
	return ctx, leave, nil
}
