package pgbacklog

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The short way: a batch of durable frames that have neither a key nor an
// expectation is published by functions made for them, without BEGIN and COMMIT
// around the call.

// Casts as in publishCall.
const (
	batchFrameCall  = "._batch_frame($1::text, $2::text, $3::bytea, $4::text, $5::text, $6::text, $7::uuid, $8::int)"
	batchFramesCall = "._batch_frames($1::text[], $2::text[], $3::int[], $4::bigint[], $5::uuid[], " +
		"$6::int[], $7::int[], $8::uuid[], $9::text[], $10::text[], $11::bytea[], $12::text[], $13::text[], $14::text[], $15::int)"
)

// hasShortWay reports whether items may go it.
func hasShortWay(items []*item) bool {
	for _, it := range items {
		if p := &it.publication; it.call != nil || p.Ephemeral || p.IdempotencyKey != "" || p.Expected != nil {
			return false
		}
	}
	return true
}

// publishBatched runs the transaction of a batch that may wait for locks as long as
// the server's settings allow.
func (c *committer) publishBatched(ctx context.Context, conn *pgxpool.Conn, items []*item) ([]result, error) {
	if c.pinIsolation.Load() || !hasShortWay(items) {
		return c.publish(ctx, conn, modeBatch, items, waits{})
	}
	publish := c.publishFrames
	if len(items) == 1 {
		publish = c.publishFrame
	}
	results, err := publish(ctx, conn, items)
	if hasCode(err, codeSerializationError) {
		// The role's default is another level than READ COMMITTED, which BEGIN pins.
		c.pinIsolation.Store(true)
		return c.publish(ctx, conn, modeBatch, items, waits{})
	}
	return results, err
}

func (c *committer) publishFrame(ctx context.Context, conn *pgxpool.Conn, items []*item) ([]result, error) {
	it := items[0]
	p := &it.publication
	var row []pgtype.Int8 // null for what was not stored
	err := c.autocommit(ctx, conn, []any{&row}, c.batchFrameSQL, p.Stream.Channel, p.Stream.Scope, it.payload(), p.ContentType, p.EventType, it.headers,
		randomIDs(1)[0], c.lockTimeoutMillis(0))
	if err != nil {
		return nil, err
	}
	if len(row) != 3 {
		return nil, fmt.Errorf("the database answered with %d values for a frame", len(row))
	}
	return []result{{int16(row[0].Int64), position(row[1].Int64, row[2].Int64)}}, nil
}

func (c *committer) publishFrames(ctx context.Context, conn *pgxpool.Conn, items []*item) ([]result, error) {
	p := newFrames(items)
	var epoch, before, othersEpoch, othersSequence []pgtype.Int8
	var status []int16
	err := c.autocommit(ctx, conn, []any{&epoch, &before, &status, &othersEpoch, &othersSequence}, c.batchFramesSQL,
		p.streamChannel, p.streamScope, p.count, p.bytes, p.seed,
		p.stream, p.nth, p.id, p.channel, p.scope, p.payload, p.contentType, p.eventType, p.headers, c.lockTimeoutMillis(0))
	if err != nil {
		return nil, err
	}
	return p.results(epoch, before, status, othersEpoch, othersSequence)
}

// frames are the arrays that _batch_frames takes.
type frames struct {
	// By stream.
	streamChannel, streamScope []string
	count                      []int32
	bytes                      []int64
	seed                       []pgtype.UUID
	// By frame, those of a stream together and in order; place is the item's index.
	place                                  []int
	stream, nth                            []int32
	id                                     []pgtype.UUID
	channel, scope, contentType, eventType []string
	payload                                [][]byte
	headers                                []*string // nil if no frame has any
}

func newFrames(items []*item) frames {
	n := len(items)
	p := frames{
		place: make([]int, n), stream: make([]int32, n), nth: make([]int32, n), id: randomIDs(n),
		channel: make([]string, n), scope: make([]string, n), contentType: make([]string, n), eventType: make([]string, n),
		payload: make([][]byte, n),
	}
	for i := range p.place {
		p.place[i] = i
	}
	// In the order in which all batches lock streams.
	slices.SortFunc(p.place, func(a, b int) int {
		return cmp.Or(compareStreams(items[a].publication.Stream, items[b].publication.Stream), cmp.Compare(a, b))
	})
	for i, place := range p.place {
		it := items[place]
		pub := &it.publication
		last := len(p.count) - 1
		if i == 0 || pub.Stream != items[p.place[i-1]].publication.Stream {
			p.streamChannel, p.streamScope = append(p.streamChannel, pub.Stream.Channel), append(p.streamScope, pub.Stream.Scope)
			p.count, p.bytes = append(p.count, 0), append(p.bytes, 0)
			last++
		}
		p.count[last]++
		p.bytes[last] += int64(len(pub.Payload))
		p.stream[i], p.nth[i] = int32(last+1), p.count[last]
		p.channel[i], p.scope[i], p.contentType[i], p.eventType[i] = pub.Stream.Channel, pub.Stream.Scope, pub.ContentType, pub.EventType
		p.payload[i] = it.payload()
		if it.headers != nil {
			if p.headers == nil {
				p.headers = make([]*string, n)
			}
			p.headers[i] = it.headers
		}
	}
	p.seed = randomIDs(len(p.count))
	return p
}

var errMiscounted = errors.New("the database answered for another number of frames or streams")

// results puts what _batch_frames returns in the order of the items.
func (p *frames) results(epoch, before []pgtype.Int8, status []int16, othersEpoch, othersSequence []pgtype.Int8) ([]result, error) {
	if len(epoch) != len(p.count) || len(before) != len(p.count) || len(othersEpoch) != len(status) || len(othersSequence) != len(status) {
		return nil, errMiscounted
	}
	results := make([]result, len(p.place))
	others := 0
	for i, place := range p.place {
		if s := p.stream[i] - 1; before[s].Valid {
			results[place] = result{statusStored, position(epoch[s].Int64, before[s].Int64+int64(p.nth[i]))}
			continue
		}
		if others == len(status) {
			return nil, errMiscounted
		}
		results[place] = result{status[others], position(othersEpoch[others].Int64, othersSequence[others].Int64)}
		others++
	}
	if others != len(status) {
		return nil, errMiscounted
	}
	return results, nil
}

// randomIDs makes ids for rows. Made at once they cost a fraction of what making
// them one by one in the database does.
func randomIDs(n int) []pgtype.UUID {
	random := make([]byte, 16*n)
	_, _ = rand.Read(random) // never fails
	ids := make([]pgtype.UUID, n)
	for i := range ids {
		id := &ids[i]
		id.Valid = true
		copy(id.Bytes[:], random[16*i:])
		id.Bytes[6] = id.Bytes[6]&0x0f | 0x40 // RFC 9562, version 4
		id.Bytes[8] = id.Bytes[8]&0x3f | 0x80
	}
	return ids
}

// autocommit runs one statement that returns one row as a transaction of its own.
// A nil error means that it was committed; judge says what others mean.
func (c *committer) autocommit(ctx context.Context, conn *pgxpool.Conn, row []any, sql string, args ...any) error {
	return c.attend(ctx, conn, func() error {
		rows, err := conn.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		if !rows.Next() {
			rows.Close()
			return cmp.Or(rows.Err(), errNoRow)
		}
		if err := rows.Scan(row...); err != nil {
			return err
		}
		rows.Close()
		// The server commits after the statement's end. What it says then comes last.
		if err := rows.Err(); err != nil {
			return &commitError{err}
		}
		return nil
	})
}

var errNoRow = errors.New("the database answered without a row")
