// Package sqlitebacklog is Fanfare's store on SQLite, embedded in the process
// that serves: the contract of package backlog in one file, with nothing else to
// install, for one process.
//
// # Durability
//
// The file is in WAL mode with synchronous=FULL: every commit is flushed to the
// disk before anybody is told of it, so a publish that was acknowledged survives
// a kill of the process and a loss of power, and a sequence that a subscriber has
// seen is never given to another frame. NORMAL, SQLite's advice for WAL, flushes
// at checkpoints only and could lose the newest commits. A flush is an fdatasync
// where the system has it, for the whole process (sqlite.Fdatasync). What it costs
// is shared: publications are gathered while one is in flight, and the next
// transaction carries them all.
//
// # Concurrency
//
// One connection writes, all writes of the process, in the order in which they
// came; others read, each read in a snapshot of its own. A file next to the
// database, with the suffix .lock, is locked while a store has it open, so that a
// second process is refused instead of numbering the same streams. On Linux the
// database's file is locked itself, too, which holds whatever becomes of that file
// and for every name of the database.
//
// A commit appends to a write-ahead log next to the database, with the suffix
// -wal; checkpoints move what it holds into the database between transactions, as
// a rule at some 16 MiB, so that it can be written from its start again. While
// somebody reads it may have to grow further; at some 64 MiB the store waits for
// those who read, and only a program that reads for longer than that makes it grow
// beyond. While a store has the file open, a copy of it is made by
// SQLite's own backup (sqlite3 PATH ".backup COPY"): a plain copy lacks the log.
//
// # Bad days
//
// A process that was killed leaves nothing to repair: the next one finds in the
// log what was committed. A full disk refuses publishes with
// [backlog.ErrDiskFull], reading goes on, and so does publishing when there is
// room. A transaction whose COMMIT meets an error of the disk is made again at
// once. If that fails too and the error was one of the flush, its outcome is
// unknown; a failed write has stored nothing. When the database, its log or its
// lock has been removed, moved or replaced, the transaction in flight has an
// unknown outcome, nothing is written from then on, and pings fail until the store
// is opened again; closing it touches nothing that has got their names. A lock of
// another program that a write has met fails pings until it is gone. A damage of
// the file that shows while it is open fails what needs the damaged pages and every
// ping from then on. All of these are logged once. What a file is not to be opened
// for is listed at [Open]. A clock that steps deletes nothing early; frames are in
// order by sequence, and times within a stream never descend.
//
// # The bus
//
// The [Bus] tells the hub of the process what was committed, in the order of
// commits. There is no other process to tell. Ephemeral frames go the same way,
// through the same transactions, so that they keep their place among the durable
// ones; but for the first of a stream, which marks its row, they write nothing.
package sqlitebacklog
