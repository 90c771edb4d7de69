package sqlitebacklog

import (
	"context"
	"database/sql"
	"errors"
)

// commitNext commits what waits, in one transaction if it fits. What is submitted
// or withdrawn while somebody else writes is taken or left accordingly.
func (c *committer) commitNext(ctx context.Context) {
	conn, err := c.store.writer.Conn(ctx)
	if ctx.Err() != nil {
		c.stop()
	}
	items := c.take() // none if it is stopped
	if err != nil {
		c.fail(items, turnError(ctx, err))
		return
	}
	defer conn.Close() // gives the turn to the next
	if len(items) == 0 {
		return
	}
	c.commit(ctx, conn, items)
	clear(items) // what has been answered shall not be kept
	c.store.checkpoint(context.WithoutCancel(ctx), conn)
}

// commit writes items in one transaction and answers their callers. If it fails
// for a reason that may lie in one of them it is repeated in halves, so that the
// others are written.
func (c *committer) commit(ctx context.Context, conn *sql.Conn, items []*item) {
	err := c.write(context.WithoutCancel(ctx), conn, items)
	if isAboutData(err) && len(items) > 1 {
		half := len(items) / 2
		c.commit(ctx, conn, items[:half])
		c.commit(ctx, conn, items[half:])
		return
	}
	if err != nil {
		c.fail(items, writeError("publish", err))
		return
	}
	// What writes nothing, as most ephemeral frames and retries do, succeeds on a full
	// disk, too.
	if c.failing && c.tx.writes() {
		c.failing = false
		c.store.logger.Info("publishing works again", "file", c.store.Path())
	}
	// Before anybody is answered: a caller that subscribes after its answer finds
	// its frame announced. ctx ends the wait for a hub that does not keep up.
	c.store.bus.announce(ctx, c.tx.announcements)
	c.settle(items)
}

// fail answers callers whose transaction did not succeed.
func (c *committer) fail(items []*item, err error) {
	// A damage fails what needs its pages and nothing else, and has been logged, as
	// has a file that is gone.
	if !c.failing && len(items) > 0 && !isDamage(err) && !errors.Is(err, errFileReplaced) {
		c.failing = true
		c.store.logger.Warn("publishing fails", "file", c.store.Path(), "error", err)
	}
	for _, it := range items {
		it.refusal = err
	}
	c.settle(items)
}

// write runs a transaction. If it succeeds, items have their outcomes.
func (c *committer) write(ctx context.Context, conn *sql.Conn, items []*item) error {
	return c.store.transact(ctx, conn, func() error {
		err := conn.Raw(func(driverConn any) error {
			if err := c.statements.prepare(ctx, driverConn); err != nil {
				return err
			}
			c.tx.begin(c.store, &c.statements)
			return c.tx.run(ctx, items)
		})
		if err != nil {
			return err
		}
		return c.tx.trim(ctx, conn)
	})
}

// closeStatements must be called before the connection is closed that they were
// prepared on. conn is the writing one.
func (c *committer) closeStatements(conn *sql.Conn) {
	// Raw's error is that of a connection which is closed already.
	_ = conn.Raw(func(driverConn any) error {
		c.statements.close(driverConn)
		return nil
	})
}
