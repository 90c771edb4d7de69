// Package backlog is the vocabulary and the contract of Fanfare's stores: what
// a stream, a frame and a position are, what may be published, and what a store
// promises to whoever publishes, reads and subscribes.
//
// It holds no driver and no wire format. Stores live in packages below it
// (pgbacklog on PostgreSQL), and each passes the suite in backlogtest.
//
// # Positions
//
// A stream is numbered 1, 2, 3, … in commit order. A [Position] adds an epoch
// to the sequence, because a number alone can be given twice: when a stream is
// closed and published to again it starts from 1, and when a database loses its
// newest commits (a restore, a promotion of a standby that lagged) the numbers
// of the lost frames are given to other frames.
//
// The epoch on the wire is the XOR of two numbers. The stream's own epoch is
// random, drawn when its row is created or reopened. The origin names the
// server process that numbered the frame (on PostgreSQL a hash of system
// identifier, timeline and start time) and is stored with each frame. So a
// restart or a switchover that loses nothing leaves every stored position
// valid, since rows remember the origin they were written under; a rolled-back
// server gives its frames another origin, so a reused number does not match.
//
// Example: a client has seen 41-7. The server is restored to frame 5, and
// publishes two more. The new row 7 has position 99-7: 41-7 is answered with a
// gap instead of silently skipping the two new frames.
package backlog
