package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// awaitTimeout bounds how long the last notifications are waited for.
const awaitTimeout = 30 * time.Second

// hearing is a connection that listens.
type hearing struct {
	conn *pgx.Conn
	// note is called with each notification, by one goroutine at a time.
	note  func(*pgconn.Notification)
	count int

	cancel context.CancelFunc
	// ended is closed when the goroutine has; err and count are then settled.
	ended chan struct{}
	err   error
}

// listen begins to listen.
func listen(ctx context.Context, url, notifyChannel string, note func(*pgconn.Notification)) (*hearing, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{notifyChannel}.Sanitize()); err != nil {
		return nil, errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
	}
	h := &hearing{conn: conn, note: note, ended: make(chan struct{})}
	ctx, h.cancel = context.WithCancel(ctx)
	go func() {
		defer close(h.ended)
		for h.err == nil {
			h.err = h.next(ctx)
		}
	}()
	return h, nil
}

func (h *hearing) next(ctx context.Context) error {
	n, err := h.conn.WaitForNotification(ctx)
	if err != nil {
		return err
	}
	h.count++
	h.note(n)
	return nil
}

// await returns when n notifications have been heard since the beginning. It may
// be called once.
func (h *hearing) await(ctx context.Context, n int) error {
	// A wait that is cancelled loses nothing; this goroutine goes on with it.
	h.cancel()
	<-h.ended
	if !errors.Is(h.err, context.Canceled) {
		return h.err
	}
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	for h.count < n {
		if err := h.next(ctx); err != nil {
			return fmt.Errorf("%d of %d notifications were heard: %w", h.count, n, err)
		}
	}
	return nil
}

func (h *hearing) close(ctx context.Context) error {
	h.cancel()
	<-h.ended
	return h.conn.Close(context.WithoutCancel(ctx))
}
