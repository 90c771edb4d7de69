// Package pgtest gives tests real PostgreSQL servers, because a mock of a
// database proves nothing about SQL, locks or notifications.
//
// [NewDatabase] is what most tests need: an empty database on one server that
// the tests of a process share. It is the server of FANFARE_TEST_DATABASE_URL
// if that is set, and otherwise one that the first call starts. [Run] stops it.
// [Start] gives a test a server of its own, to be stopped, crashed and
// restarted, and [Proxy] breaks the network in between.
//
// Servers listen on a random loopback port, trust every connection, keep fsync
// on and live in a temporary directory. A server's watchdog, a shell that holds
// the reading end of a pipe, stops it and removes the directory when the test
// process ends, however it ends.
//
// Binaries (initdb and postgres) are taken from the directory that
// FANFARE_TEST_POSTGRES_BIN names, else from PATH, else from
// /usr/lib/postgresql/*/bin. Tests fail, and are never skipped, when there are
// none. PostgreSQL refuses to run as root, so root runs it as the user postgres
// or, where there is none, nobody.
package pgtest
