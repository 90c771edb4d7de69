package clientlib

import (
	"context"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Publish publishes one frame.
func (c *Client) Publish(ctx context.Context, frame NewFrame) (Published, error) {
	answer, err := c.stub.Publish(ctx, &fanfarev1.PublishRequest{Frame: frame.proto()})
	if err != nil {
		return Published{}, errorOf(err)
	}
	return publishedOf(answer, false), nil
}

// PublishBatch publishes frames, all or none.
func (c *Client) PublishBatch(ctx context.Context, frames []NewFrame) ([]Published, error) {
	return nil, nil
}
