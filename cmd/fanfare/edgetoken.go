package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

const (
	// tokenCheckEvery is how often an edge asks the servers whether they take its token.
	tokenCheckEvery   = 2 * time.Second
	tokenCheckTimeout = 5 * time.Second
)

// watchToken notes whether the servers take the edge's token, until ctx ends. Only they
// know: an edge that was idle for long would else hear of it from the first browser.
func (h *edgeHealth) watchToken(ctx context.Context, t *clientToken, logger *slog.Logger) error {
	every := time.NewTicker(tokenCheckEvery)
	defer every.Stop()
	for {
		refusal, err := checkIdentity(ctx, h.conn, t)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && refusal == "": // a server that is away says nothing of the token
		case !h.noteToken(refusal):
		case err != nil:
			logger.Warn("the edge can serve nobody", "reason", refusal, "error", err)
		default:
			logger.Info("the servers take the edge's token")
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// checkIdentity has a server look at the edge's token, by a Session without subscriptions:
// that costs it nothing else. refusal is why the token does not do, for everybody to read;
// it is empty if the token does, and where err says that no server told.
func checkIdentity(ctx context.Context, conn *grpc.ClientConn, t *clientToken) (refusal string, err error) {
	ctx, cancel := context.WithTimeout(ctx, tokenCheckTimeout)
	defer cancel()
	var options []grpc.CallOption
	if shown := t.credentials(); shown != nil {
		if _, err := t.current(); err != nil {
			return "the edge's token cannot be read; its log says why", err
		}
		options = append(options, grpc.PerRPCCredentials(shown))
	}
	session, err := fanfarev1.NewFanfareServiceClient(conn).Session(ctx, options...)
	if err == nil {
		_ = session.CloseSend() // receiving says why it failed
		for err == nil {
			_, err = session.Recv()
		}
	}
	if errors.Is(err, io.EOF) {
		return "", nil
	}
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied:
		return "the servers refuse the edge's token: " + status.Convert(err).Message(), err
	case codes.Unimplemented:
		return "", nil // a server without Session has looked at the token before
	default:
		return "", err
	}
}
