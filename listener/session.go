package listener

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	errRecovery = errors.New("the server is in recovery (a standby, or a demoted primary), where nothing is ever notified")
	errDeaf     = errors.New("the connection no longer listens to all its notify channels")
)

// pins are the session's settings, whatever the defaults of server, database and
// role. A session that does not read is ended by tcp_user_timeout, before it
// fills the notification queue. idle_session_timeout is not reset by received
// notifications, so it would end a busy listener.
const pins = `set_config('tcp_user_timeout', '10000', false), ` +
	`set_config('tcp_keepalives_idle', '10', false), ` +
	`set_config('tcp_keepalives_interval', '5', false), ` +
	`set_config('tcp_keepalives_count', '3', false), ` +
	`set_config('idle_session_timeout', '0', false), ` +
	`set_config('idle_in_transaction_session_timeout', '10000', false), ` +
	`set_config('statement_timeout', '5000', false), ` +
	`set_config('lock_timeout', '0', false), ` +
	`set_config('standard_conforming_strings', 'on', false)`

// session is one connection, from dial to loss. Only the goroutine of
// Listener.Run uses it.
type session struct {
	listener *Listener
	conn     *pgconn.PgConn
	dialer   *dialer

	// timeout bounds a command: CommandTimeout until everyone has been told of the
	// connection, then PingTimeout, since a dead connection may meet any of them.
	timeout    time.Duration
	connected  Connected
	backendPID uint32
	pooled     bool
	// listened has the notify channels for which LISTEN was executed, with their
	// consumers.
	listened map[string][]*attachment
	// received has notifications not yet delivered; pgconn's callback appends.
	received []pgconn.Notification
	nextPing time.Time
	probe    *probe // nil if none is on its way
	probed   bool   // a probe has been committed on this connection
}

// connect dials, pins settings and refuses a server in recovery.
func (l *Listener) connect(ctx context.Context) (*session, error) {
	s := &session{listener: l, dialer: newDialer(), timeout: l.config.CommandTimeout, listened: map[string][]*attachment{}}
	config := l.connection.Copy()
	config.DialFunc = s.dialer.dial
	config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { s.received = append(s.received, *n) }
	// Part of connecting, so that the next host is tried after a refusal.
	config.ValidateConnect = s.prepare
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		s.dialer.abandon()
		return nil, explain(err)
	}
	s.conn = conn
	return s, nil
}

// prepare is a pgconn.ValidateConnectFunc. Through a pooler the settings would
// stay on a session that belongs to others, unless it is known to be in session
// mode.
func (s *session) prepare(ctx context.Context, conn *pgconn.PgConn) error {
	sql := fmt.Sprintf("select pg_is_in_recovery(), pg_backend_pid(), pg_snapshot_xmin(pg_current_snapshot()); select %s where pg_backend_pid() = %d or %t",
		pins, conn.PID(), s.listener.poolerProven())
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return err
	}
	row, err := onlyRow(results, 3)
	if err != nil {
		return err
	}
	if string(row[0]) != "f" {
		return errRecovery
	}
	pid, err := strconv.ParseUint(string(row[1]), 10, 32)
	if err != nil {
		return fmt.Errorf("process id of the session: %w", err)
	}
	s.backendPID = uint32(pid)
	s.pooled = s.backendPID != conn.PID()
	s.connected.OldestTransaction, err = strconv.ParseUint(string(row[2]), 10, 64)
	return err
}

// onlyRow returns the row of the first result.
func onlyRow(results []*pgconn.Result, columns int) ([][]byte, error) {
	if len(results) == 0 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != columns {
		return nil, errors.New("the server answered a query with something else than its row")
	}
	return results[0].Rows[0], nil
}

// execute runs statements in one round trip.
func (s *session) execute(ctx context.Context, sql string) ([]*pgconn.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.conn.Exec(ctx, sql).ReadAll()
}

// listenFirst makes a new connection listen to all that is wanted, and asks the
// server who it is, in one round trip: frames wait for it.
func (s *session) listenFirst(ctx context.Context) error {
	changes := s.changes()
	origin := s.listener.config.OriginSQL
	if origin == "" {
		return s.apply(ctx, changes)
	}
	results, err := s.execute(ctx, origin+";"+changes.sql)
	if err != nil {
		if len(results) > 0 && results[0].Err == nil {
			return s.listenFailed(ctx, err)
		}
		return fmt.Errorf("read the server's origin: %w", explain(err))
	}
	row, err := onlyRow(results, 1)
	if err != nil {
		return fmt.Errorf("read the server's origin: %w", err)
	}
	if s.connected.Listening.Origin, err = strconv.ParseUint(string(row[0]), 10, 63); err != nil {
		return fmt.Errorf("read the server's origin: %w", err)
	}
	s.listened = changes.wanted
	return nil
}

// listen makes the connection follow what is wanted, in one round trip. It
// returns the names of channels it did not listen to before.
func (s *session) listen(ctx context.Context) ([]string, error) {
	changes := s.changes()
	return changes.added, s.apply(ctx, changes)
}

// changes is how to get from what a connection listens to to what is wanted.
type changes struct {
	wanted map[string][]*attachment
	added  []string
	sql    string // empty if there is nothing to do
}

func (s *session) changes() changes {
	c := changes{wanted: s.listener.takeWanted()}
	var sql strings.Builder
	for name := range c.wanted {
		if _, ok := s.listened[name]; !ok {
			c.added = append(c.added, name)
		}
	}
	slices.Sort(c.added)
	for _, name := range c.added {
		sql.WriteString("listen " + quote(name) + ";")
	}
	for name := range s.listened {
		if _, ok := c.wanted[name]; !ok && (s.probe == nil || name != s.probe.notifyChannel) {
			sql.WriteString("unlisten " + quote(name) + ";")
		}
	}
	c.sql = sql.String()
	if s.probe != nil {
		c.wanted[s.probe.notifyChannel] = nil
	}
	return c
}

func (s *session) apply(ctx context.Context, c changes) error {
	if c.sql != "" {
		if _, err := s.execute(ctx, c.sql); err != nil {
			return s.listenFailed(ctx, err)
		}
	}
	s.listened = c.wanted
	return nil
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// listenFailed handles a bug of servers before 15.17, 16.13, 17.9 and 18.3:
// LISTEN reads queue entries whose commit log VACUUM has truncated. Asking for
// the queue's usage moves its tail, which helps the next connection.
func (s *session) listenFailed(ctx context.Context, err error) error {
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == undefinedFile {
		// Whether it helps is seen at the next LISTEN.
		_, _ = s.execute(ctx, "select pg_notification_queue_usage()")
	}
	return explain(err)
}

// takeWanted returns the wanted channels with their consumers; later changes
// make the set dirty again.
func (l *Listener) takeWanted() map[string][]*attachment {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dirty = false
	all := make(map[string][]*attachment, len(l.channels)+1)
	for name, w := range l.channels {
		all[name] = w.attachments
	}
	return all
}

// tell tells consumers that their channels are listened to. It precedes the
// answer of Ensure, so that a consumer never hears of a listening later than
// those who ensured it.
func (s *session) tell() {
	for _, attachments := range s.listened {
		for _, a := range attachments {
			if !a.told {
				a.told = true
				a.consumer.Listening(s.connected)
			}
		}
	}
}

// lost tells everyone that the connection is gone. Before, its consumers get
// what arrived.
func (s *session) lost(err error) {
	s.deliver()
	s.listener.down(err)
	for _, attachments := range s.listened {
		for _, a := range attachments {
			if a.told {
				a.told = false
				a.consumer.Lost(err)
			}
		}
	}
}

// close ends the connection and waits for what belongs to it.
func (s *session) close() {
	if s.probe != nil {
		s.dropProbe()
	}
	s.dialer.close(s.conn)
}

// serve dispatches until the connection is lost or ctx ends. It never returns
// nil.
func (s *session) serve(ctx context.Context) error {
	s.timeout = s.listener.config.PingTimeout
	s.nextPing = time.Now().Add(s.listener.config.PingInterval)
	for ctx.Err() == nil {
		if err := s.follow(ctx); err != nil {
			return err
		}
		if !time.Now().Before(s.nextPing) {
			if err := s.check(ctx); err != nil {
				return err
			}
		}
		if err := s.wait(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// follow makes the connection follow changes of the set.
func (s *session) follow(ctx context.Context) error {
	if !s.listener.isDirty() {
		return nil
	}
	added, err := s.listen(ctx)
	s.deliver()
	if err != nil {
		return err
	}
	s.tell()
	s.listener.admit(s)
	for _, name := range added {
		s.listener.logger.Info("channel listen "+name, "listening", s.connected.Listening.Number)
	}
	return nil
}

func (l *Listener) isDirty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dirty
}

// wait dispatches notifications until the next ping is due, the set of channels
// changes or ctx ends.
func (s *session) wait(ctx context.Context) error {
	ctx, cancel := context.WithDeadline(ctx, s.nextPing)
	defer cancel()
	if !s.listener.waitUnlessDirty(cancel) {
		return nil
	}
	defer s.listener.waitEnded()
	defer s.endReadsWith(ctx)()
	// Steady traffic must not keep pings and changes waiting.
	for ctx.Err() == nil {
		// pgconn would begin to watch ctx, and stop, for each notification.
		err := s.conn.WaitForNotification(context.Background())
		s.deliver()
		if err != nil && (ctx.Err() == nil || s.conn.IsClosed()) {
			return explain(err)
		}
	}
	return nil
}

// endReadsWith has reads fail once ctx has ended, until the function that it returns is
// called. As with a wait that pgconn cancels, the connection stays healthy: what was
// read of a message is kept for the next read.
func (s *session) endReadsWith(ctx context.Context) (stop func()) {
	socket, done := s.conn.Conn(), make(chan struct{})
	watched := context.AfterFunc(ctx, func() {
		defer close(done)
		_ = socket.SetReadDeadline(time.Unix(1, 0)) // closed, if this fails
	})
	return func() {
		if !watched() {
			<-done
			_ = socket.SetReadDeadline(time.Time{})
		}
	}
}

// waitUnlessDirty registers the cancellation of a wait. A change that came
// before is seen here; one that comes later cancels.
func (l *Listener) waitUnlessDirty(interrupt context.CancelFunc) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dirty {
		return false
	}
	l.interrupt = interrupt
	return true
}

func (l *Listener) waitEnded() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.interrupt = nil
}

// deliver hands out what was received, also during other commands.
func (s *session) deliver() {
	for _, n := range s.received {
		if s.probe != nil && n.Channel == s.probe.notifyChannel {
			s.probe.received(n.Payload)
			continue
		}
		for _, a := range s.listened[n.Channel] {
			if a.told {
				a.consumer.Notify(Notification{PID: n.PID, Payload: n.Payload})
			}
		}
	}
	clear(s.received) // lets go of the payloads
	s.received = s.received[:0]
}

// check pings: does the server answer in time, is it still a primary, and does
// the session still listen? A server that was demoted keeps its connections.
func (s *session) check(ctx context.Context) error {
	if err := s.probeAside(ctx); err != nil {
		return err
	}
	results, err := s.execute(ctx, "select pg_is_in_recovery(), pg_notification_queue_usage(), (select count(*) from pg_listening_channels())")
	s.deliver()
	if err != nil {
		return fmt.Errorf("ping: %w", explain(err))
	}
	row, err := onlyRow(results, 3)
	if err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	if string(row[0]) != "f" {
		return errRecovery
	}
	// A session that listens to less has been swapped by a pooler or reset.
	if string(row[2]) != strconv.Itoa(len(s.listened)) {
		return errDeaf
	}
	if usage, err := strconv.ParseFloat(string(row[1]), 64); err == nil {
		s.listener.noteQueueUsage(usage)
	}
	s.nextPing = time.Now().Add(s.listener.config.PingInterval)
	return nil
}

// queueAlarm is a use of the notification queue that is worth a look: it is
// near 0 unless a session of the cluster listens and does not read.
const queueAlarm = 0.1

func (l *Listener) noteQueueUsage(usage float64) {
	l.mu.Lock()
	before := l.state.QueueUsage
	l.state.QueueUsage = usage
	l.mu.Unlock()
	if usage >= queueAlarm && before < queueAlarm {
		l.logger.Warn("PostgreSQL's notification queue fills up: a session that listens does not read, or is idle in a transaction; when the queue is full every publish fails",
			"usage", usage)
	}
}
