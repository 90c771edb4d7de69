package replica_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/fanfare-io/fanfare/service/replica"
)

// A part that ends by itself ends the server.
func TestParts(t *testing.T) {
	var order []string
	parts := replica.NewParts()
	for _, name := range []string{"first", "second"} {
		parts.Start(name, func(ctx context.Context) error {
			<-ctx.Done()
			order = append(order, name)
			return nil
		})
	}
	parts.Start("third", func(context.Context) error { return nil })
	if err := <-parts.Failed(); err == nil || err.Error() != "third: ended by itself" {
		t.Errorf("failed with %v", err)
	}
	parts.Stop()
	if fmt.Sprint(order) != "[second first]" {
		t.Errorf("ended in the order %v", order)
	}
}
