// Package sse delivers streams to browsers: a [Handler] is an http.Handler that speaks
// server-sent events, exactly as the WHATWG HTML standard has them (section 9.2), over
// a [clientlib.Client] to Fanfare servers.
//
// # Requests
//
//	GET /v1/streams/{channel}/{scope}            both percent-encoded; a slash in them is %2F
//	GET /v1/streams?channel=CHANNEL&scope=SCOPE  any names; no scope is the empty one
//	GET /v1/streams?stream=S&stream=S&…          several, at most 50, each once
//
// S is CHANNEL/SCOPE, each of the two percent-encoded by itself before the whole is
// encoded as a query's value. In JavaScript:
//
//	'stream=' + encodeURIComponent(encodeURIComponent(channel) + '/' + encodeURIComponent(scope))
//
// A connection begins after the position in the header Last-Event-ID or, without that,
// where at most one of these says:
//
//	after=POSITION   after a position
//	last=N           with the newest N frames of each stream, or as many as may be replayed
//	from=oldest      with everything that may be replayed; the default
//	from=live        with what is published from now on
//
// Two parameters say what is sent: format, below, and heartbeat, which is event or, by
// default, comment.
//
// As for every subscriber, a closed stream that is asked for from the beginning is waited
// for until it is opened again; a position of another numbering than the stream's is told
// as a gap, and the next numbering is waited for in the same way if this one is closed.
//
// POSITION is EPOCH-SEQUENCE as everywhere, and with several streams those of all, in the
// order of the URL, joined by commas: as many as there are streams.
//
// # The event stream
//
// It is sent as soon as all streams are subscribed to: what commits after the first byte
// arrives. It begins with retry: and a bare id:, a block without data, which moves
// lastEventId and dispatches nothing. Idle connections get a comment and the id again,
// every heartbeat.
//
// EventSource does not show comments, so that a page cannot tell a connection that is dead
// from one that is idle. With heartbeat=event it gets fanfare.heartbeat: right after the
// beginning, and then every heartbeat, idle or not, as a page does not see events of types
// that it does not listen to either. Where none came for two or three times as long as the
// last one said, the page should open the stream anew, after its last id. Where EventSource
// tells of an error and comes back by itself, that is only after what retry: said, which it
// shows pages as little; so the event says that, too.
//
// A frame is an event. Its id is the position after it; an ephemeral frame has none and
// leaves lastEventId as it is. There are two formats.
//
// Plain, the default for one stream: the event's type is the frame's (without one it is
// message), and its data the payload. What cannot be sent so is sent as the event
// fanfare.frame, whose data is the frame as JSON. That is a payload that is not UTF-8 or
// contains a carriage return or U+0000, and an event type that contains a line break or
// U+0000, begins with "fanfare.", or is open or error, which are EventSource's own.
//
// With format=json, and always with several streams, each frame is a message event (no
// event: line, whatever the frame's event type is), and its data the frame as JSON on
// one line:
//
//	{"stream": {"channel": "orders", "scope": "7"}, "position": "5-12", "payload": "…",
//	 "content_type": "text/plain", "event_type": "placed", "headers": {"name": "value"},
//	 "created": "2026-01-02T15:04:05.123456Z"}
//
// An ephemeral frame has "ephemeral": true and no position. A payload that is not UTF-8
// is payload_base64 (RFC 4648, section 4, padded) instead of payload. What is empty is
// left out, but for the payload.
//
// What else a page must know comes as events without id, with JSON as data. All but
// the last two name their stream as above; positions and sequences are strings.
//
//	fanfare.gap        {"stream", "reason", "requested", "oldest", "head", "resume_after"}
//	                   Frames are missing here. reason is TRIMMED, EPOCH_CHANGED, AHEAD or
//	                   EPHEMERAL_MAYBE_MISSED; take another for a loss. A bare id: follows.
//	fanfare.caught_up  {"stream", "position"}: what was stored before has been sent
//	fanfare.status     {"stream", "listening"}: false while the server does not hear of new
//	                   frames: durable ones wait, ephemeral ones may be missed
//	fanfare.closed     {"stream", "last"}: the stream was closed. When all are, the
//	                   connection ends
//	fanfare.heartbeat  {"interval_ms", "retry_in_ms"}: the connection is alive, and this
//	                   comes again after the one; the other is what its retry: said. With
//	                   heartbeat=event only
//	fanfare.reconnect  {"reason", "retry_in_ms"}: the connection ends, and EventSource comes
//	                   back by itself. reason is DRAINING, TOKEN_EXPIRED, LIMIT_REACHED or
//	                   UNAVAILABLE; treat another alike. A bare id: precedes it
//
// # Answers
//
// EventSource gives up for ever on any answer but 200. So that is what trouble gets that
// may pass: 200, retry:, the request's Last-Event-ID as a bare id:, fanfare.reconnect, and
// the end. Final are 400 (a field of the request is outside its limit, or a parameter of the
// query is not known), 401 and 403 (refused), 404, 405, and 204: all streams are closed,
// and the request's positions are at their ends. The body of an error is JSON, as that of
// calls over HTTP: code, message, and as far as there are any reason and field. With 401
// the reason is TOKEN_EXPIRED if another token will do, and UNAUTHENTICATED otherwise.
//
// # Ephemeral frames
//
// One arrives if it is published while a connection is in force, from its first byte on.
// Those in between are missed, and a connection that goes on from Last-Event-ID is told so
// (EPHEMERAL_MAYBE_MISSED), once: at its beginning if the stream has ever carried any, which
// the server says when the edge subscribes; otherwise before the first that it hands on. It
// is told of what may have been missed, so also where nothing was. The same is told to a
// connection that stays, when the edge had to subscribe anew.
//
// One that was received may come a second time to a browser that changes to an edge which
// is behind the one before: it has no position that would tell the two apart. A page for
// which that matters gives them an identity in the payload.
//
// # How it works
//
// A relay subscribes to a stream once for all browsers that watch it, and keeps its
// newest events in a ring, encoded once. A browser is a cursor into the ring, never a
// queue. One whose position the ring does not hold reads pages by subscriptions of their
// own, which those share who need the same, until it stands in the ring; how many are
// read at a time is bounded, and so is what is held of them, and of large events, until it
// is written. A browser that takes less than 16 KiB in the write timeout, of more, is ended,
// and goes on after its last id. A relay stays for ten seconds after its last browser.
package sse
