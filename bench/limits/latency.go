package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
)

type latencyOptions struct {
	database string
	rate     int
	bytes    int
	length   time.Duration
}

func latencyCommand() *cobra.Command {
	var o latencyOptions
	cmd := reporting("latency", "Measure from the commit of a row to its NOTIFY's arrival", o.run)
	askDatabase(cmd, &o.database)
	cmd.Flags().IntVar(&o.rate, "rate", 50, "frames a second")
	cmd.Flags().IntVar(&o.bytes, "bytes", 200, "size of a payload")
	cmd.Flags().DurationVar(&o.length, "time", 3*time.Second, "how long to publish")
	return cmd
}

func (o *latencyOptions) run(ctx context.Context) (f figures, err error) {
	if o.rate < 1 || o.bytes < 0 {
		return f, errors.New("--rate is at least 1, --bytes is not negative")
	}
	s, err := newScratch(ctx, o.database)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, s.drop(ctx)) }()
	conn, err := pgx.Connect(ctx, o.database)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	arrived := make(map[int]time.Time) // by sequence
	heard, err := listen(ctx, s.url, s.notifyChannel(), func(n *pgconn.Notification) {
		if sequence, err := sequenceOf(n.Payload); err == nil {
			arrived[sequence] = time.Now()
		}
	})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, heard.close(ctx)) }()

	insert, payload := s.insertAndNotify(), make([]byte, o.bytes)
	if _, err := conn.Exec(ctx, insert, scatter(1), 0, payload, origin); err != nil { // prepares the statement
		return f, err
	}
	var called []time.Time // by sequence - 1
	interval := time.Second / time.Duration(o.rate)
	began := time.Now()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for range max(1, int(o.length/interval)) {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return f, context.Cause(ctx)
		}
		called = append(called, time.Now())
		if _, err := conn.Exec(ctx, insert, scatter(1), len(called), payload, origin); err != nil {
			return f, err
		}
	}
	elapsed := time.Since(began)
	if err := heard.await(ctx, len(called)+1); err != nil {
		return f, err
	}
	var took []time.Duration
	for i, at := range called {
		arrival, ok := arrived[i+1]
		if !ok {
			return f, fmt.Errorf("of frame %d no notification was heard", i+1)
		}
		took = append(took, arrival.Sub(at))
	}
	return newFigures(len(called), elapsed, took), nil
}

// sequenceOf reads what insertAndNotify announces.
func sequenceOf(payload string) (int, error) {
	_, rest, _ := strings.Cut(payload, "\t")
	sequence, _, _ := strings.Cut(rest, "\t")
	return strconv.Atoi(sequence)
}
