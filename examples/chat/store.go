package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// channel is that of all rooms; a room is a scope.
	channel = "chat/messages"
	// historyLength is how many messages a page begins with.
	historyLength = 100
)

// message is what somebody wrote: a row of chat.messages, and the payload of a frame.
type message struct {
	Key    string    `json:"key"`
	Author string    `json:"author"`
	Body   string    `json:"body"`
	Sent   time.Time `json:"sent"`
	Server string    `json:"server"`
}

// storedMessage is a message with its place in the room's stream.
type storedMessage struct {
	message
	Epoch    int64  `json:"-"`
	Sequence uint64 `json:"sequence"`
}

// position is the place as fanfare.js takes it.
func (m storedMessage) position() string {
	return strconv.FormatInt(m.Epoch, 10) + "-" + strconv.FormatUint(m.Sequence, 10)
}

// room is a room and how far its stream is.
type room struct {
	Name, Title string
	// Position is that of the newest message, and Newest its sequence; "" and 0 if there
	// is none.
	Position string
	Newest   uint64
}

// activity is what is of interest right now and never again: somebody is typing.
type activity struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

var (
	errNoRoom = errors.New("there is no such room")
	// errKeyUsed is the error of a key under which another message was written.
	errKeyUsed = errors.New("key was used for another message")
)

//go:embed schema.sql
var schemaSQL string

// setUp creates the chat's tables and role, all or nothing. The user of databaseURL
// must own Fanfare's schema and may create roles.
func setUp(ctx context.Context, databaseURL string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is under way
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, schemaSQL); err != nil {
			return fmt.Errorf("set up the chat (fanfare serve creates the schema fanfare, has it run on this database?): %w", err)
		}
		return nil
	})
}

// connect returns connections of the application's role. The caller closes them.
func connect(ctx context.Context, databaseURL string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "set role chat_app")
		return err
	}
	return pgxpool.NewWithConfig(ctx, config)
}

// post stores a message and publishes it, both or neither. One whose key is known was
// stored before and is not stored again.
func post(ctx context.Context, pool *pgxpool.Pool, room string, m message) (storedMessage, error) {
	payload, err := json.Marshal(m)
	if err != nil {
		return storedMessage{}, err
	}
	stored := storedMessage{message: m}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// From here to the end of the transaction the room's stream is held: so messages
		// are stored in the order of their sequences, and become visible in it.
		err := tx.QueryRow(ctx, `select epoch, sequence from fanfare.publish($1, $2, $3,
			content_type => 'application/json', event_type => 'message')`, channel, room, payload).
			Scan(&stored.Epoch, &stored.Sequence)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `insert into chat.messages (room, key, author, body, sent, server, epoch, sequence)
			values ($1, $2, $3, $4, $5, $6, $7, $8)`,
			room, m.Key, m.Author, m.Body, m.Sent, m.Server, stored.Epoch, stored.Sequence)
		return err
	})
	switch codeOf(err) {
	case "23503": // foreign_key_violation
		return storedMessage{}, errNoRoom
	case "23505": // unique_violation: what was published in this transaction is rolled back
		return known(ctx, pool, room, m)
	}
	return stored, err
}

// known returns what was stored under a message's key.
func known(ctx context.Context, pool *pgxpool.Pool, room string, m message) (storedMessage, error) {
	rows, err := pool.Query(ctx, selectMessages+"where room = $1 and key = $2", room, m.Key)
	if err != nil {
		return storedMessage{}, err
	}
	stored, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[storedMessage])
	if err == nil && (stored.Author != m.Author || stored.Body != m.Body) {
		err = errKeyUsed
	}
	return stored, err
}

func codeOf(err error) string {
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		return e.Code
	}
	return ""
}

const selectMessages = `select key::text, author, body, sent, server, epoch, sequence from chat.messages `

// history returns a room's newest messages, the oldest of them first. One statement
// reads one snapshot, and in a snapshot there are no holes: with a message it has all
// that stand before it in the stream, since they committed earlier. Whoever shows the
// history and subscribes after the position of its last message so misses nothing, and
// sees nothing twice, whatever commits in between.
func history(ctx context.Context, pool *pgxpool.Pool, room string) ([]storedMessage, error) {
	rows, err := pool.Query(ctx, selectMessages+"where room = $1 order by message_id desc limit $2", room, historyLength)
	if err != nil {
		return nil, err
	}
	messages, err := pgx.CollectRows(rows, pgx.RowToStructByPos[storedMessage])
	slices.Reverse(messages)
	return messages, err
}

// rooms returns all rooms and how far their streams are.
func rooms(ctx context.Context, pool *pgxpool.Pool) ([]room, error) {
	rows, err := pool.Query(ctx, `select r.name, r.title, coalesce(m.epoch || '-' || m.sequence, ''), coalesce(m.sequence, 0)
		from chat.rooms r
		left join lateral (select epoch, sequence from chat.messages where room = r.name order by message_id desc limit 1) m on true
		order by r.title`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[room])
}

// show publishes an activity: it reaches the pages that are open, and is not stored.
func show(ctx context.Context, pool *pgxpool.Pool, room string, a activity) error {
	payload, err := json.Marshal(a)
	if err != nil {
		return err
	}
	// The room must be there: a stream that exists for nobody would be kept for days.
	tag, err := pool.Exec(ctx, `select fanfare.publish_ephemeral($1, name, $3, content_type => 'application/json', event_type => 'activity')
		from chat.rooms where name = $2`, channel, room, payload)
	if err == nil && tag.RowsAffected() == 0 {
		err = errNoRoom
	}
	return err
}
