package sqlitebacklog

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"slices"

	"github.com/fanfare-io/fanfare/backlog"
)

// transaction decides what becomes of items, and then writes that. Everything is
// decided in the order of arrival, on rows that are read once; each is written
// back once. An atomic batch that is refused half-way is undone before anything
// has been written.
//
// The rules are those of _publish and _close in the first migration of
// pgbacklog.
type transaction struct {
	store      *Store
	statements *statements
	now        int64 // microseconds

	rows map[backlog.StreamName]*streamRow
	// order has the rows as they were first needed.
	order []*streamRow
	keys  map[keyName]keyRow

	frames        []newFrame
	newKeys       []keyName
	retired       []streamRow // as they were when they were reopened
	announcements []backlog.Announcement

	// atomic is true while an atomic batch is decided; undo then has the rows as
	// they were before each change.
	atomic bool
	undo   []streamRow
}

// newFrame is a row of channel_frames to be.
type newFrame struct {
	*publication
	streamID, sequence, created int64
}

type keyName struct {
	backlog.StreamName
	key string
}

// keyRow is what is known under a key.
type keyRow struct {
	digest   []byte
	position backlog.Position
}

// trimEvery is after how many frames of a stream it is trimmed, so that deleting
// costs each publish little. It is a power of two.
const trimEvery = 64

// begin prepares for a new transaction.
func (t *transaction) begin(s *Store, statements *statements) {
	t.store, t.statements, t.now = s, statements, s.clock.now().UnixMicro()
	if t.rows == nil {
		t.rows, t.keys = map[backlog.StreamName]*streamRow{}, map[keyName]keyRow{}
	}
	clear(t.rows)
	clear(t.keys)
	clear(t.order)
	clear(t.frames)
	clear(t.newKeys)
	t.order, t.frames, t.newKeys, t.retired, t.undo = t.order[:0], t.frames[:0], t.newKeys[:0], t.retired[:0], t.undo[:0]
	t.announcements = nil // the bus has them
}

// run decides and writes items. An error means that nothing may be committed.
func (t *transaction) run(ctx context.Context, items []*item) error {
	for _, it := range items {
		if err := t.decide(ctx, it); err != nil {
			return err
		}
	}
	return t.write(ctx)
}

func (t *transaction) decide(ctx context.Context, it *item) (err error) {
	switch {
	case it.closing != nil:
		it.refusal, err = t.decideClose(ctx, it.closing)
	case it.atomic:
		it.refusal, err = t.decideBatch(ctx, it.publications)
	default:
		it.refusal, err = t.decidePublication(ctx, &it.publications[0])
	}
	return err
}

// decidePublication numbers a frame, or says why not. An ephemeral one, which has
// no key and no expectation, is never refused.
func (t *transaction) decidePublication(ctx context.Context, p *publication) (refusal, err error) {
	row, err := t.row(ctx, p.Stream)
	if err != nil {
		return nil, err
	}
	if p.Ephemeral {
		t.passEphemeral(row, p)
		return nil, nil
	}
	// Before the rest: a retry gets its old answer, also of a closed stream.
	if p.digest != nil {
		known, err := t.key(ctx, keyName{p.Stream, p.IdempotencyKey})
		switch {
		case err != nil:
			return nil, err
		case known.digest != nil && !bytes.Equal(known.digest, p.digest):
			return &backlog.KeyConflictError{Position: known.position}, nil
		case known.digest != nil:
			p.outcome = backlog.Outcome{Position: known.position, Duplicate: true}
			return nil, nil
		}
	}
	head := row.expectable()
	if e := p.Expected; e != nil && (e.Sequence != head.Sequence || e.Epoch != nil && *e.Epoch != head.Epoch) {
		return &backlog.ExpectationError{Head: head}, nil
	}
	if head.Sequence == backlog.MaxPositionValue {
		return backlog.ErrSequenceExhausted, nil
	}
	t.number(row, p)
	return nil, nil
}

// number gives a frame the next sequence of its stream, which it creates or
// reopens if need be.
func (t *transaction) number(row *streamRow, p *publication) {
	t.remember(row)
	t.open(row)
	row.head++
	row.headOrigin = int64(t.store.origin)
	row.storedBytes += int64(len(p.Payload))
	created := row.touch(t.now)
	p.outcome = backlog.Outcome{Position: row.position()}
	t.frames = append(t.frames, newFrame{publication: p, streamID: row.streamID, sequence: row.head, created: created})
	if p.digest != nil {
		name := keyName{p.Stream, p.IdempotencyKey}
		t.keys[name] = keyRow{p.digest, p.outcome.Position}
		t.newKeys = append(t.newKeys, name)
	}
	t.announce(backlog.AnnounceFrame, row, p, created)
}

// passEphemeral has an ephemeral frame announced after the frames that its stream
// has by then. Only the first one changes the stream's row, which is created or
// reopened if need be, and marked, and one in each backlog.UseInterval notes that
// the stream is in use.
func (t *transaction) passEphemeral(row *streamRow, p *publication) {
	if !row.exists || row.closed || !row.ephemeral {
		t.remember(row)
		t.open(row)
		row.ephemeral, row.renewed = true, true
		row.touch(t.now)
	}
	if row.updated < t.now-backlog.UseInterval.Microseconds() {
		t.remember(row)
		row.touch(t.now)
	}
	p.outcome = backlog.Outcome{} // it has no place of its own
	t.announce(backlog.AnnounceEphemeral, row, p, max(row.updated, t.now))
}

// open makes a row that frames may be published to.
func (t *transaction) open(row *streamRow) {
	switch origin := int64(t.store.origin); {
	case !row.exists:
		row.create(origin, t.now)
	case row.closed:
		t.retired = append(t.retired, *row)
		row.reopen(origin)
	}
}

// announce announces a whole frame at the head.
func (t *transaction) announce(kind backlog.AnnouncementKind, row *streamRow, p *publication, created int64) {
	t.announcements = append(t.announcements, backlog.Announcement{
		Kind: kind, Stream: p.Stream, OwnEpoch: uint64(row.epoch), Origin: t.store.origin,
		Frame: backlog.Frame{
			Position: row.position(), Ephemeral: p.Ephemeral, ContentType: p.ContentType, EventType: p.EventType,
			Headers: p.Headers, Payload: p.Payload, Created: timeOf(created),
		},
	})
}

// decideBatch does all of an atomic batch, or nothing: then it says why not, or
// the durable frames are duplicates, which the ephemeral ones go with.
func (t *transaction) decideBatch(ctx context.Context, batch []publication) (refusal, err error) {
	before := t.progress()
	t.atomic = true
	defer func() { t.atomic, t.undo = false, t.undo[:0] }()
	durable, duplicates := 0, 0
	for i := range batch {
		refusal, err = t.decidePublication(ctx, &batch[i])
		if err != nil {
			return nil, err
		}
		if refusal != nil {
			refusal = &backlog.BatchError{Index: i, Err: refusal}
			break
		}
		if !batch[i].Ephemeral {
			durable++
		}
		if batch[i].outcome.Duplicate {
			duplicates++
		}
	}
	if refusal == nil && duplicates == 0 {
		return nil, nil
	}
	if refusal == nil && duplicates < durable {
		refusal = backlog.ErrPartlyDuplicate
	}
	t.goBack(before)
	return refusal, nil
}

// progress is how much a transaction has decided.
type progress struct{ frames, newKeys, retired, announcements int }

func (t *transaction) progress() progress {
	return progress{len(t.frames), len(t.newKeys), len(t.retired), len(t.announcements)}
}

// goBack undoes what was decided since a batch began.
func (t *transaction) goBack(to progress) {
	for i := len(t.undo) - 1; i >= 0; i-- {
		*t.rows[t.undo[i].name] = t.undo[i]
	}
	for _, name := range t.newKeys[to.newKeys:] {
		t.keys[name] = keyRow{}
	}
	t.frames, t.newKeys = t.frames[:to.frames], t.newKeys[:to.newKeys]
	t.retired, t.announcements = t.retired[:to.retired], t.announcements[:to.announcements]
}

// remember keeps a row that is about to be changed if that may be undone.
func (t *transaction) remember(row *streamRow) {
	if t.atomic {
		t.undo = append(t.undo, *row)
	}
}

func (t *transaction) decideClose(ctx context.Context, c *closing) (refusal, err error) {
	row, err := t.row(ctx, c.stream)
	if err != nil {
		return nil, err
	}
	last := row.position()
	switch {
	case row.exists && c.epoch != nil && *c.epoch != last.Epoch:
		return &backlog.ExpectationError{Head: last}, nil
	case !row.exists || row.closed:
		c.outcome = backlog.CloseOutcome{Last: last, AlreadyClosed: true}
		return nil, nil
	}
	row.close(t.now)
	c.outcome = backlog.CloseOutcome{Last: last}
	t.announcements = append(t.announcements, backlog.Announcement{
		Kind: backlog.AnnounceClosed, Stream: c.stream, OwnEpoch: uint64(row.epoch), Origin: uint64(row.headOrigin),
		Frame: backlog.Frame{Position: last},
	})
	return nil, nil
}

// row returns the row of a stream.
func (t *transaction) row(ctx context.Context, name backlog.StreamName) (*streamRow, error) {
	if row := t.rows[name]; row != nil {
		return row, nil
	}
	row, err := readRow(ctx, t.statements, name)
	if err != nil {
		return nil, err
	}
	t.rows[name] = row
	t.order = append(t.order, row)
	return row, nil
}

// key returns what is known under a key; nothing if its digest is nil.
func (t *transaction) key(ctx context.Context, name keyName) (keyRow, error) {
	if known, ok := t.keys[name]; ok {
		return known, nil
	}
	s := t.statements
	values, err := s.query(ctx, s.selectKey, 3, name.Channel, name.Scope, name.key)
	if err != nil || values == nil {
		return keyRow{}, err
	}
	digest, ok := values[0].([]byte)
	epoch, ok1 := values[1].(int64)
	sequence, ok2 := values[2].(int64)
	if !ok || !ok1 || !ok2 {
		return keyRow{}, fmt.Errorf("an idempotency key's row has a %T, a %T and a %T", values[0], values[1], values[2])
	}
	known := keyRow{digest, backlog.Position{Epoch: uint64(epoch), Sequence: uint64(sequence)}}
	t.keys[name] = known
	return known, nil
}

// writes reports whether what has been decided changes anything that is stored.
func (t *transaction) writes() bool {
	return slices.ContainsFunc(t.order, func(row *streamRow) bool { return row.changed })
}

// write writes what has been decided.
func (t *transaction) write(ctx context.Context) error {
	s := t.statements
	for i := range t.frames {
		f := &t.frames[i]
		var headers driver.Value
		if f.headers != "" {
			headers = f.headers
		}
		if err := s.exec(ctx, s.insertFrame, f.streamID, f.sequence, int64(len(f.Payload)), int64(t.store.origin), f.created,
			f.ContentType, f.EventType, headers, f.Payload); err != nil {
			return err
		}
	}
	for _, k := range t.newKeys {
		known := t.keys[k]
		if err := s.exec(ctx, s.insertKey, k.Channel, k.Scope, k.key, known.digest,
			int64(known.position.Epoch), int64(known.position.Sequence), t.now); err != nil {
			return err
		}
	}
	for i := range t.retired {
		r := &t.retired[i]
		if err := s.exec(ctx, s.insertRetired, r.streamID, r.name.Channel, r.name.Scope, r.epoch, r.head, r.headOrigin, r.floor, r.floorOrigin,
			r.created, t.now); err != nil {
			return err
		}
	}
	for _, row := range t.order {
		if row.changed {
			if err := row.write(ctx, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// trim trims the streams that have got many frames since they were trimmed last.
func (t *transaction) trim(ctx context.Context, conn *sql.Conn) error {
	for _, row := range t.order {
		if !row.changed || row.first/trimEvery == row.head/trimEvery {
			continue
		}
		if uint64(row.head-row.floor) <= t.store.bounds(row.name.Channel).Backlog {
			continue
		}
		if _, err := t.store.trim(ctx, conn, row.name.Channel, row.name.Scope); err != nil {
			return fmt.Errorf("trim: %w", err)
		}
	}
	return nil
}
