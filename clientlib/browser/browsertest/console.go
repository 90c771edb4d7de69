package browsertest

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// console judges what a page writes to its console.
type console struct {
	t    testing.TB
	done chan struct{}

	mu sync.Mutex
	// allowed and bad are judged against each other when the page is closed.
	allowed []*regexp.Regexp
	bad     []string
	// settled is closed when the last line that the harness had the page write is read.
	settled chan struct{}
}

// lastLine is what a page is made to write when it is closed: everything before it
// has been read then.
const lastLine = "browsertest: the page is closed"

func listen(t testing.TB, tab context.Context) *console {
	c := &console{t: t, done: make(chan struct{}), settled: make(chan struct{})}
	messages := chromedp.Console(tab)
	go func() {
		defer close(c.done)
		for message, err := range messages {
			if err != nil {
				return
			}
			c.take(message)
		}
	}()
	return c
}

func (c *console) take(message chromedp.ConsoleMessage) {
	if message.Text == lastLine {
		close(c.settled)
		return
	}
	line := message.String()
	if message.URL != "" {
		line += fmt.Sprintf(" (%s:%d)", message.URL, message.Line+1)
	}
	c.t.Log("console: " + line)
	switch message.Type {
	case chromedp.ConsoleWarning, chromedp.ConsoleError, chromedp.ConsoleException, "assert":
		c.mu.Lock()
		c.bad = append(c.bad, line)
		c.mu.Unlock()
	}
}

func (c *console) allow(pattern string) {
	c.t.Helper()
	compiled, err := regexp.Compile(pattern)
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	c.allowed = append(c.allowed, compiled)
	c.mu.Unlock()
}

// settle waits until all that the page has written was read.
func (c *console) settle(p *Page) {
	ctx, cancel := p.limited()
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.Evaluate[chromedp.Void]("console.debug('"+lastLine+"')")); err != nil {
		// A page that is frozen or crashed cannot write.
		c.t.Logf("the console may not have been read to its end: %v", err)
		return
	}
	select {
	case <-c.settled:
	case <-time.After(Patience):
		c.t.Error("the console was not read to its end")
	}
}

// wait waits for the end of the goroutine, after the tab was closed, and judges.
func (c *console) wait() {
	<-c.done
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, line := range c.bad {
		if !c.isAllowed(line) {
			c.t.Errorf("the page wrote to its console, and that was not allowed: %s", line)
		}
	}
}

func (c *console) isAllowed(line string) bool {
	for _, pattern := range c.allowed {
		if pattern.MatchString(line) {
			return true
		}
	}
	return false
}
