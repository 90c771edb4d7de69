// Package listener owns a replica's one LISTEN connection, and turns what
// PostgreSQL notifies on it into announcements.
//
// # Who does what
//
// The goroutine of [Listener.Run] is the only one that touches the connection:
// it dials, executes, waits and closes. The connection never comes from a pool
// and never goes to one, because a pooled connection would hand its
// notifications to whoever borrows it next. Everyone else changes the set of
// wanted notify channels under a mutex and interrupts the wait; cancelling a
// wait is the one cancellation that leaves a pgx connection healthy, and it
// loses nothing.
//
// A notify channel is wanted as long as somebody holds a reference
// ([Listener.Ensure]) or a [Consumer] is attached to it ([Listener.Attach]).
// Consumers of one channel are independent of each other. They are called by
// the listener's goroutine and must not block: a LISTEN session that does not
// read fills the server's notification queue, holds back vacuum and in the end
// fails every publisher of the cluster. A [Bus] is such a consumer; it only
// queues, within bounds, and works in a goroutine of its own.
//
// # States
//
// The listener is down or up. It is up from the moment LISTEN has been executed
// for every wanted channel on a new connection until that connection is lost in
// any way; each time gets the next number ([backlog.Listening]). There is no
// list of errors that mean a loss: every error does.
//
//   - Connecting: a new dial, so that a changed DNS answer is seen; all hosts of
//     the URL in turn. A server in recovery is refused, since nothing is ever
//     notified there. The session's settings are pinned against defaults of the
//     role.
//   - LISTEN comes before anything is read: a notification is certain only for
//     transactions that commit after LISTEN did. So consumers are told of a new
//     listening first and then read what they missed.
//   - On the first connection a probe (a NOTIFY through the pool's URL) shows
//     that notifications arrive at all, before anything is acknowledged. A probe
//     that was committed and does not arrive ends Run with a [ProbeError] that
//     names the likely cause. Later probes only log.
//   - Up: notifications are dispatched as they come. A ping in regular intervals
//     finds half-open connections, demoted servers and lost registrations.
//   - Down: the first retry comes within milliseconds, later ones after an
//     exponentially growing, jittered time. [Listener.Ensure] waits, within
//     bounds, and fails with [ErrNotListening].
//
// # Trust
//
// Every role that can connect to a database can NOTIFY there. The [Authenticator]
// accepts an envelope only with a digest under a key that publishers hold, from
// the server process that it names, and once. Whatever else arrives is counted
// and becomes, at most once a second, a hint to read the table.
//
// # Ephemeral frames
//
// An ephemeral frame exists only in its announcement, so that no loss may be
// silent. A [Sink] is told that one may have been missed ([Sink.Missed]) whenever
// something is dropped that may have been one: notifications that were too many,
// an envelope of another version, or that cannot be judged because its key could
// not be loaded, an entry of an unknown kind, a split entry with a part missing.
// What is known to be a forgery is none of these.
//
// # Without LISTEN
//
// [Poll] is the bus for databases that cannot LISTEN. It has no connection of its
// own and announces nothing.
package listener
