// Package hub delivers the frames of streams to subscriptions. It knows
// streams, tails and cursors; it knows neither gRPC nor SQL. Frames reach it as
// announcements of a [Bus] and as rows of a [Reader]; it hands out the bytes
// that its encoder made of them, once per frame.
//
// # Pattern
//
// A stream with at least one subscription is resident: it has a tail, the
// in-memory window of its newest frames. A subscription is a cursor, a position
// in a tail, and never a queue: a slow one costs a few hundred bytes, whatever
// it has not read. Everything a subscription does is one question, asked in
// [Subscription.TryNext]: what follows my cursor?
//
//	below the window   a page is read from the store, shared by all who need it
//	in the window      the encoded frames
//	an ephemeral one   as soon as the cursor has reached what it follows
//	at the end         CaughtUp, once; then how the tail ended, or wait
//
// Replay, the seam and live delivery are answers to that question at different
// times, so no phase can leak into the next.
//
// # Announcements and reads
//
// The table is the truth and an announcement an optimisation. Only one that is
// next in line in the numbering at hand, from the server listened to, is
// appended to the tail. One already seen is ignored. For anything else the rows
// are read: the announcement is held, and a refresh of the stream is queued,
// which begins after it and so must see what it told of. What a refresh does
// not find is logged as dropped and forgotten; a position never moves because
// an announcement said so.
//
// A refresh also verifies the row at the tail's head, as a resume would. It
// happens after every new listening, on a hint, and when an announcement does not
// fit. And once in the re-read interval the store is asked, of every resident stream,
// whether it is as it is known here, head and origin included; what is not is
// refreshed. That bounds the damage of an announcement that never came.
//
// Next in line counts only while the listening's server is the one that the tail
// was last read from. Another may have lost commits, and a frame with the next
// sequence would hide that; everything is held until the refresh has looked.
//
// # Ephemeral frames
//
// An ephemeral frame is nowhere but in its announcement. It goes into an array of
// its own in the tail, with the sequence that it follows; a cursor is a position
// and the number of the last of them that the subscription had. A subscription
// gets those that come after it was placed, but for one that follows less than
// the head of that moment and so was committed before. One that is ahead of the
// cursor waits for it, one that is behind is due at once, and none moves a
// position. One that follows what the tail does not have yet has it read; what a
// read begun later does not find, it does not wait for.
//
// What a subscription has not had is kept until the tail's bounds are reached.
// Then the oldest of either kind goes first, and a subscription that needed one of
// these is ended with [ErrSlowSubscriber], because no store has it. What all have
// had is not kept.
//
// A new listening, and what [Sink] Missed tells of, is an outage. It stands in the
// same array, between what came before and what came after, and becomes a [Gap]
// for every subscription that was there, if the stream has ever carried an
// ephemeral frame: the refresh that follows tells, which looks at the store after
// the outage.
//
// Those that come before a read of their stream was taken in are held, bounded and
// counted as in a tail. Only what is given up of them, for want of room, becomes a
// Gap, too.
//
// A read may overtake announcements. For durable frames that is harmless. But
// what was read and is not announced may have ephemeral frames before it on their
// way. So in a stream that carries them, and has subscriptions, what a read shows
// beyond the announcements is left out until it is announced: frames, a close, and
// the rest of a numbering that was replaced. New subscriptions that such a read was
// for are judged by all of it, and placed when the tail has got there. If the
// announcement does not come within the grace, the scheduler has the stream read
// again, the subscriptions are told of an outage, and everything is taken in; that is
// also done, without waiting, by the first read under a listening.
//
// # The life of a tail
//
//	loading   no tail yet: announcements are held, subscriptions wait
//	waiting   the stream does not exist or is closed; sequence 1 comes next
//	running   one numbering, growing
//	retired   the numbering was replaced while nobody looked; what is left of
//	          it is read before it ends
//	closing   a close was read whose announcement is awaited; a retired tail,
//	          too, may wait for that of its close
//	ended     closed: subscriptions get the rest, Closed, io.EOF
//	          cut: they get the rest, Gap, and go on in the next tail, where every
//	          ephemeral frame is for them
//
// A tail is cut when a read shows that the row at its head is not the one it
// holds: the database has lost commits, or the stream was replaced.
//
// # Sharing a place
//
// Subscriptions of a stream that stand at the same place are handed the same from then
// on. Whoever has several of them, as a session has, may have one stand for the others
// ([Subscription.Join], [Subscription.Split]). One whose client wants no frames for the
// time being asks for notices only ([Subscription.TryNotice]); it rests, and is woken by
// what it cannot do without knowing.
//
// # Starting
//
// Subscribe puts the stream into the map and returns; what comes of it is the
// subscription's first delivery. Once there is a listening, it is answered from the
// tail if the tail was confirmed under that listening and holds the start. Otherwise
// it joins the next round of loads: one query for up
// to a thousand streams with everybody who waits for them. A verdict that
// yields a Gap comes only from such a read, begun after the Subscribe arrived,
// because a replica a few milliseconds behind must not tell a client that its
// position is wrong. A load counts only if the listening it was begun under is
// still the current one: then every later commit is announced to a stream that
// is in the map.
//
// # Goroutines
//
// [Hub.Run] owns all of them and returns when they have, but for those that wait for
// a listening, which [Subscription.Close] ends: the loader (rounds for
// new subscriptions and for those whose page could not be read), the refresher
// (rounds for resident streams), the checker of the re-read, the scheduler of both,
// which also looks after announcements that are awaited, the pagers, and the
// sweeper (linger and memory). The bus calls [Sink] from a goroutine of its own.
//
// # Locks
//
//	Hub.mu       the map of streams, their reference counts, the idle list
//	stream.mu    a stream's tails, subscriptions and what waits
//	queue.mu, pager.mu, pageCache.mu, throttledLog.mu   leaves
//
// Hub.mu and a stream.mu are never held together, nor are two stream.mu. A leaf
// may be taken under a stream.mu. The bus, which may hold a lock of its own while
// it calls the sink, is called under none of them. Nothing blocks on the network or a consumer
// under any of them; wake hooks are called under none.
//
// # Memory
//
// Bounded whatever clients do: each tail in frames and bytes, of both kinds, and
// what is held for a stream; all of these together (past that the coldest are
// emptied and their subscriptions read from the store, or are ended or told); pages
// together, and of these those go first that were read ahead; and what one round of loads may bring.
//
// # What it does not do
//
// It does not bound the number of subscriptions, end slow ones that miss nothing,
// authenticate announcements or write to the store.
package hub
