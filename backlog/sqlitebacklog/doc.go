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
// at checkpoints only and could lose the newest commits. What a flush costs is
// shared: publications are gathered while one is in flight, and the next
// transaction carries them all.
//
// # Concurrency
//
// One connection writes, all writes of the process, in the order in which they
// came; others read, each read in a snapshot of its own. A file next to the
// database, with the suffix .lock, is locked while a store has it open, so that a
// second process is refused instead of numbering the same streams.
//
// # The bus
//
// The [Bus] tells the hub of the process what was committed, in the order of
// commits. There is no other process to tell.
package sqlitebacklog
