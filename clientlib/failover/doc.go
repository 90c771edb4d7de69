// Package failover connects the worker processes of one host to Fanfare through one
// process, their hub, so that the host holds one LISTEN connection however many
// workers it runs; and has each worker serve itself when the hub fails it.
//
// A [Conn] is a gRPC connection to whichever serves at the moment. Subscriptions and
// publishes go over it as over any other, by the client library or by the generated
// stubs. The hub is an ordinary server on a Unix socket of the host:
//
//	fanfare serve --store postgres://… --grpc unix:///run/fanfare/fanfare.sock
//
// # States
//
// Calls go to the hub at first. The Conn leaves it, for good, when it
//
//   - is absent: nothing serves on its socket, or what does not answer within
//     [Config.ConnectTimeout];
//   - is lost: the connection broke, because the hub died, or stands still, or has
//     given up a worker that stood still itself;
//   - does not acknowledge a subscription within [Config.AckTimeout];
//   - has ended a subscription as too slow.
//
// It then runs a server in this process, on a LISTEN connection and a few others of
// its own (see [Config.Database]). When that server is there, calls under way on the
// hub are ended UNAVAILABLE, all subscriptions among them, and new ones go to it. A
// client that resumes from its positions, as the client library does by itself,
// misses no durable frame; after a resume, ephemeral frames may have been missed,
// and the client library says so with a Gap.
//
// The process keeps its own connections until it ends or the Conn is told to come
// back ([Conn.ReturnToHub]). A hub that comes and goes therefore moves each worker
// once.
//
// Nothing else leaves the hub. One that drains is waited for, for
// [Config.RestartWait], since it is usually being replaced. A call that is as old as
// calls may be goes on at the hub, as does one that is refused, whatever for. While
// the hub says that its database is away, an own connection would not help, and as
// many of them as there are workers would hinder the database's return.
//
// All workers of a hub that dies come to the database at the same time. They are let in
// one by one, and only while a tenth of the server's connections, and five at least,
// stay free for others.
//
// If the own server cannot be started either, calls fail UNAVAILABLE with both
// reasons, and the next ones try the hub first.
//
// # Calls under way
//
// A unary call that could not be sent to the hub is sent to the own server instead;
// its caller sees nothing. One that was sent when the hub died is answered
// UNAVAILABLE, and whether it was done is not known: publish with an idempotency
// key, which means the same frame on the hub and on the own connection, and try
// again. The client library does both.
//
// # Counting
//
// In pg_stat_activity a worker that serves itself has the application_name
// fanfare-listen/own:HOST-PID, unless [Config.Instance] says otherwise.
package failover
