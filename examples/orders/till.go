package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// errDeclined is the error of a payment that the bank declines.
var errDeclined = errors.New("the payment was declined")

// till is one of the shop's concurrent writers.
type till struct {
	pool *pgxpool.Pool
	tally
}

// tally has the receipts of what was done. Every transaction has one, and every
// savepoint, unlike all others.
type tally struct {
	committed, rolledBack []string
}

// sell lets tills work at once, each for a number of transactions.
func sell(ctx context.Context, pool *pgxpool.Pool, tills, transactions int) (tally, error) {
	day := rand.Text()[:6] // tells the receipts from those of another run
	working := make([]till, tills)
	group, ctx := errgroup.WithContext(ctx)
	for i := range working {
		working[i].pool = pool
		group.Go(func() error { return working[i].work(ctx, fmt.Sprintf("%s-%d", day, i+1), transactions) })
	}
	err := group.Wait()
	var all tally
	for _, t := range working {
		all.committed = append(all.committed, t.committed...)
		all.rolledBack = append(all.rolledBack, t.rolledBack...)
	}
	return all, err
}

// work does one transaction after the other, of all kinds.
func (t *till) work(ctx context.Context, name string, transactions int) error {
	kinds := []func(context.Context, string) error{t.order, t.order, t.checkOut, t.payTwo, t.decline, t.order, t.cancel}
	for i := range transactions {
		receipt := fmt.Sprintf("%s/%d", name, i+1)
		switch err := kinds[i%len(kinds)](ctx, receipt); {
		case err == nil:
			t.committed = append(t.committed, receipt)
		case errors.Is(err, errDeclined), errors.Is(err, errNotOpen):
			t.rolledBack = append(t.rolledBack, receipt)
		default:
			return fmt.Errorf("receipt %s: %w", receipt, err)
		}
	}
	return nil
}

// order opens an order.
func (t *till) order(ctx context.Context, receipt string) error {
	return transact(ctx, t.pool, func(tx pgx.Tx) error {
		opened, err := open(ctx, tx, 1990, receipt)
		if err != nil {
			return err
		}
		return publish(ctx, tx, opened)
	})
}

// cancel cancels any open order. Another till may be faster.
func (t *till) cancel(ctx context.Context, receipt string) error {
	return t.settleAny(ctx, 1, cancelled, receipt)
}

// payTwo pays two orders in one transaction. Tills that take the same two in
// opposite order deadlock, and one of them tries again.
func (t *till) payTwo(ctx context.Context, receipt string) error {
	return t.settleAny(ctx, 2, paid, receipt)
}

func (t *till) settleAny(ctx context.Context, n int, status, receipt string) error {
	orders, err := t.anyOpen(ctx, n)
	if err != nil {
		return err
	}
	return transact(ctx, t.pool, func(tx pgx.Tx) error {
		var settled []change
		for _, id := range orders {
			c, err := settle(ctx, tx, id, status, receipt)
			if err != nil {
				return err
			}
			settled = append(settled, c)
		}
		return publish(ctx, tx, settled...)
	})
}

// decline pays an order and rolls everything back after it was published.
func (t *till) decline(ctx context.Context, receipt string) error {
	orders, err := t.anyOpen(ctx, 1)
	if err != nil {
		return err
	}
	return transact(ctx, t.pool, func(tx pgx.Tx) error { return payDeclined(ctx, tx, orders[0], receipt) })
}

// checkOut opens an order and pays it within a savepoint. The payment is
// declined and rolled back after it was published; the order stays open.
func (t *till) checkOut(ctx context.Context, receipt string) error {
	payment := receipt + "/payment"
	err := transact(ctx, t.pool, func(tx pgx.Tx) error {
		opened, err := open(ctx, tx, 4990, receipt)
		if err != nil {
			return err
		}
		err = pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
			return payDeclined(ctx, savepoint, opened.OrderID, payment)
		})
		if !errors.Is(err, errDeclined) {
			return err
		}
		return publish(ctx, tx, opened)
	})
	if err == nil {
		t.rolledBack = append(t.rolledBack, payment)
	}
	return err
}

// payDeclined pays an order, publishes that, and returns errDeclined.
func payDeclined(ctx context.Context, tx pgx.Tx, orderID int64, receipt string) error {
	c, err := settle(ctx, tx, orderID, paid, receipt)
	if err != nil {
		return err
	}
	if err := publish(ctx, tx, c); err != nil {
		return err
	}
	return errDeclined
}

// anyOpen returns n orders that are open now; errNotOpen if there are fewer.
func (t *till) anyOpen(ctx context.Context, n int) ([]int64, error) {
	rows, err := t.pool.Query(ctx, `select order_id from shop.orders where status = 'open' order by random() limit $1`, n)
	if err != nil {
		return nil, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err == nil && len(ids) < n {
		err = errNotOpen
	}
	return ids, err
}
