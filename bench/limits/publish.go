package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

// defaultConnections that callers with a transaction each share.
const defaultConnections = 64

type publishOptions struct {
	mode     string
	database string
	callers  int
	// connections is the most of mode row-notify.
	connections int
	streams     int
	bytes       int
	length      time.Duration
	newStreams  bool
	rows        int
}

func publishCommand() *cobra.Command {
	var o publishOptions
	cmd := reporting("publish", "Store frames without Fanfare, with or without NOTIFY", o.run)
	cmd.Flags().StringVar(&o.mode, "mode", "row-notify", "row-notify: a row and its NOTIFY in a transaction each; rows: many rows in a transaction, no NOTIFY")
	askDatabase(cmd, &o.database)
	cmd.Flags().IntVar(&o.callers, "callers", 64, "publishes that are under way at any time")
	cmd.Flags().IntVar(&o.connections, "connections", defaultConnections, "most connections that the callers of mode row-notify share")
	cmd.Flags().IntVar(&o.streams, "streams", 1000, "streams that are published to in turn")
	cmd.Flags().IntVar(&o.bytes, "bytes", 200, "size of a payload")
	cmd.Flags().DurationVar(&o.length, "time", 3*time.Second, "how long to publish")
	cmd.Flags().BoolVar(&o.newStreams, "new-streams", false, "give every frame a stream of its own")
	cmd.Flags().IntVar(&o.rows, "rows", 512, "most rows of a transaction of mode rows")
	return cmd
}

func (o *publishOptions) run(ctx context.Context) (f figures, err error) {
	if o.callers < 1 || o.connections < 1 || o.streams < 1 || o.rows < 1 || o.bytes < 0 {
		return f, errors.New("--callers, --connections, --streams and --rows are at least 1, --bytes is not negative")
	}
	publish := o.rowNotify
	switch o.mode {
	case "row-notify":
	case "rows":
		publish = o.setsOfRows
	default:
		return f, fmt.Errorf("--mode %q is neither row-notify nor rows", o.mode)
	}
	s, err := newScratch(ctx, o.database)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, s.drop(ctx)) }()
	return publish(ctx, s)
}

// numbers gives frames their stream and sequence. It may be used by many callers.
type numbers struct {
	streams int64 // 0: a new one each time
	next    atomic.Int64
}

func (o *publishOptions) numbers() *numbers {
	if o.newStreams {
		return &numbers{}
	}
	return &numbers{streams: int64(o.streams)}
}

// take spreads streams over the whole range of ids, as random ones are: the index
// then grows everywhere and not at its end alone.
func (n *numbers) take() (stream, sequence int64) {
	i := n.next.Add(1) - 1
	if n.streams == 0 {
		return scatter(i), 1
	}
	return scatter(i % n.streams), i/n.streams + 1
}

// scatter is one to one on 62 bits.
func scatter(i int64) int64 { return i * 0x1e3779b97f4a7c15 & (1<<62 - 1) }

// rowNotify publishes one frame to a transaction. A listener hears of all, since
// without one PostgreSQL has less to do than anybody who uses it has.
func (o *publishOptions) rowNotify(ctx context.Context, s *scratch) (f figures, err error) {
	config, err := pgxpool.ParseConfig(s.url)
	if err != nil {
		return f, err
	}
	config.MaxConns = int32(min(o.callers, o.connections))
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return f, err
	}
	defer pool.Close()
	heard, err := listen(ctx, s.url, s.notifyChannel(), func(*pgconn.Notification) {})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, heard.close(ctx)) }()

	insert, numbers, payload := s.insertAndNotify(), o.numbers(), make([]byte, o.bytes)
	publish := func(ctx context.Context, on executor) error {
		stream, sequence := numbers.take()
		_, err := on.Exec(ctx, insert, stream, sequence, payload, origin)
		return err
	}
	if err := connectAll(ctx, pool, publish); err != nil {
		return f, err
	}
	f, err = publishFor(ctx, o.length, o.callers, func(ctx context.Context) error { return publish(ctx, pool) })
	if err != nil {
		return f, err
	}
	return f, heard.await(ctx, int(numbers.next.Load()))
}

// executor is a pool or one of its connections.
type executor interface {
	Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error)
}

// connectAll opens all connections of the pool and publishes once on each: to
// connect and to prepare the statement is no part of a publish.
func connectAll(ctx context.Context, pool *pgxpool.Pool, publish func(context.Context, executor) error) error {
	for range pool.Config().MaxConns {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		if err := publish(ctx, conn); err != nil {
			return err
		}
	}
	return nil
}

// setsOfRows inserts as many rows in a transaction as callers wait for, on one
// connection.
func (o *publishOptions) setsOfRows(ctx context.Context, s *scratch) (f figures, err error) {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()

	insert, numbers := s.insertMany(), o.numbers()
	n := min(o.rows, o.callers)
	streams, sequences, payloads := make([]int64, n), make([]int64, n), make([][]byte, n)
	for i := range payloads {
		payloads[i] = make([]byte, o.bytes)
	}
	many := func(ctx context.Context) error {
		for i := range n {
			streams[i], sequences[i] = numbers.take()
		}
		_, err := conn.Exec(ctx, insert, streams, sequences, payloads, origin)
		return err
	}
	if err := errors.Join(many(ctx), many(ctx)); err != nil {
		return f, err
	}
	f, err = publishFor(ctx, o.length, 1, many)
	f.Publishes *= n
	f.PerSecond *= float64(n)
	return f, err
}

// publishFor has callers publish, each again and again, until the time is over
// and the last of them is through.
func publishFor(ctx context.Context, length time.Duration, callers int, publish func(context.Context) error) (figures, error) {
	took := make([][]time.Duration, callers)
	began := time.Now()
	end := began.Add(length)
	calling, ctx := errgroup.WithContext(ctx)
	for caller := range callers {
		calling.Go(func() error {
			for before := began; before.Before(end); {
				if err := publish(ctx); err != nil {
					return err
				}
				after := time.Now()
				took[caller] = append(took[caller], after.Sub(before))
				before = after
			}
			return nil
		})
	}
	if err := calling.Wait(); err != nil {
		return figures{}, err
	}
	elapsed := time.Since(began)
	all := slices.Concat(took...)
	return newFigures(len(all), elapsed, all), nil
}
