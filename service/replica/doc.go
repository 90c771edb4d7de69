// Package replica puts a Fanfare server together from its parts: a store, its bus,
// the hub and the gRPC surface. The command and a worker that serves itself
// (clientlib/failover) run the same.
//
// [OpenPostgreSQL] makes an [OpenStore]; whoever has another kind of store makes
// one. [Parts] then runs everything, each part on those before it, and ends them
// in reverse. Sockets and drains are the caller's.
//
// Programs that import it carry no embedded store.
package replica
