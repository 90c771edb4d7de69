package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The stream of the shop's changes. A stream is the unit of order: one for the
// whole shop puts the changes of all orders in one order.
const (
	channel = "shop/orders"
	scope   = "berlin"
)

// What an order can become.
const (
	paid      = "paid"
	cancelled = "cancelled"
)

// change is an order as a transaction left it: a row of shop.order_log, and the
// payload of a frame.
type change struct {
	OrderID int64  `json:"order_id"`
	Version int    `json:"version"`
	Status  string `json:"status"`
	Cents   int64  `json:"cents"`
	Receipt string `json:"receipt"`
}

// errNotOpen is the error of settling an order that another till has settled.
var errNotOpen = errors.New("the order is not open")

//go:embed schema.sql
var schemaSQL string

// setUp creates the shop's tables and role, all or nothing. The user of
// databaseURL must own Fanfare's schema and may create roles.
func setUp(ctx context.Context, databaseURL string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, schemaSQL); err != nil {
			return fmt.Errorf("set up the shop (fanfare serve creates the schema fanfare, has it run on this database?): %w", err)
		}
		return nil
	})
}

// connect returns connections of the application's role. The caller closes them.
func connect(ctx context.Context, databaseURL string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "set role orders_app")
		return err
	}
	return pgxpool.NewWithConfig(ctx, config)
}

// maxAttempts bounds how often a transaction is tried.
const maxAttempts = 10

// transact runs do in a transaction and commits if it returns nil. If PostgreSQL
// ended the transaction for the sake of others, nothing of it was stored or
// published, and transact begins again: do may run several times.
//
// An error of a connection lost during COMMIT does not tell whether the
// transaction was stored. Frame and rows were, or neither: the receipt in
// shop.order_log tells.
func transact(ctx context.Context, pool *pgxpool.Pool, do func(pgx.Tx) error) error {
	// One that comes back at once takes its locks again before the others, who
	// wait for them, are done: the same deadlock. Hence a random wait.
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval = 50 * time.Millisecond
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := pgx.BeginFunc(ctx, pool, do)
		if err != nil && !retryable(err) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(wait), backoff.WithMaxTries(maxAttempts))
	return err
}

// retryable reports whether a transaction failed because of others, which may
// hold the same orders or the same stream.
func retryable(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == "40P01" || e.Code == "40001") // deadlock_detected, serialization_failure
}

// open adds an order.
func open(ctx context.Context, tx pgx.Tx, cents int64, receipt string) (change, error) {
	return changeOrder(ctx, tx, `insert into shop.orders (cents, receipt) values ($1, $2)
		returning order_id, version, status, cents, receipt`, cents, receipt)
}

// settle makes an open order a paid or cancelled one; errNotOpen if it is not
// open.
func settle(ctx context.Context, tx pgx.Tx, orderID int64, status, receipt string) (change, error) {
	c, err := changeOrder(ctx, tx, `update shop.orders set status = $2, receipt = $3, version = version + 1
		where order_id = $1 and status = 'open'
		returning order_id, version, status, cents, receipt`, orderID, status, receipt)
	if errors.Is(err, pgx.ErrNoRows) {
		return change{}, errNotOpen
	}
	return c, err
}

func changeOrder(ctx context.Context, tx pgx.Tx, sql string, args ...any) (change, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return change{}, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[change])
}

// publish publishes changes as part of tx. Call it last: from the first frame to
// the end of the transaction the stream is locked, and other transactions that
// publish to it wait.
func publish(ctx context.Context, tx pgx.Tx, changes ...change) error {
	for _, c := range changes {
		payload, err := json.Marshal(c)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `select fanfare.publish($1, $2, $3, content_type => 'application/json', event_type => $4)`,
			channel, scope, payload, "order."+c.Status)
		if err != nil {
			return fmt.Errorf("publish %s: %w", c.Receipt, err)
		}
	}
	return nil
}
