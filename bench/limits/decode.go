package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/listener"
)

type decodeOptions struct {
	database string
	channel  string
	length   time.Duration
	frames   int
	each     int
	bytes    int
}

// decoded is what decode prints.
type decoded struct {
	Frames        int `json:"frames"`
	Notifications int `json:"notifications"`
	// CPU is the processor time of one frame, in microseconds.
	CPU float64 `json:"cpu_us_each"`
}

func decodeCommand() *cobra.Command {
	var o decodeOptions
	cmd := reporting("decode", "Receive and decode announcements, and throw them away", o.run)
	cmd.Long = `Receives and decodes announcements, and throws them away.

With --notify-channel it hears what Fanfare announces there for --time, at the same
time as a server that is measured: fanfare_SCHEMA is the notify channel of a
schema. Without it, announcements of --frames frames, --each to a notification,
are made first, and then notified by one transaction.`
	askDatabase(cmd, &o.database)
	cmd.Flags().StringVar(&o.channel, "notify-channel", "", "hear what Fanfare announces on this notify channel")
	cmd.Flags().DurationVar(&o.length, "time", 3*time.Second, "how long to hear, with --notify-channel")
	cmd.Flags().IntVar(&o.frames, "frames", 50_000, "how many frames are announced, without --notify-channel")
	cmd.Flags().IntVar(&o.each, "each", 1, "frames of a notification, without --notify-channel")
	cmd.Flags().IntVar(&o.bytes, "bytes", 200, "size of a payload, without --notify-channel")
	return cmd
}

func (o *decodeOptions) run(ctx context.Context) (decoded, error) {
	if o.frames < 1 || o.each < 1 || o.bytes < 0 {
		return decoded{}, errors.New("--frames and --each are at least 1, --bytes is not negative")
	}
	if o.channel != "" {
		return o.overhear(ctx)
	}
	return o.ownAnnouncements(ctx)
}

// overhear hears what others announce.
func (o *decodeOptions) overhear(ctx context.Context) (decoded, error) {
	var d decoder
	h, err := listen(ctx, o.database, o.channel, d.note)
	if err != nil {
		return decoded{}, err
	}
	select {
	case <-time.After(o.length):
	case <-h.ended:
	case <-ctx.Done():
	}
	if err := h.await(ctx, 0); err != nil {
		return decoded{}, errors.Join(err, h.close(ctx))
	}
	result, err := d.result()
	return result, errors.Join(err, h.close(ctx))
}

// ownAnnouncements has the database notify payloads like those of Fanfare's
// functions. They are made and stored before; this process spends nothing on
// sending them.
func (o *decodeOptions) ownAnnouncements(ctx context.Context) (result decoded, err error) {
	s, err := newScratch(ctx, o.database)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, s.drop(ctx)) }()
	conn, err := pgx.Connect(ctx, o.database)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	if _, err := conn.Exec(ctx, "create table "+s.schema+".envelopes (n bigint primary key, envelope text not null)"); err != nil {
		return result, err
	}
	n := (o.frames + o.each - 1) / o.each
	_, err = conn.CopyFrom(ctx, pgx.Identifier{s.schema, "envelopes"}, []string{"n", "envelope"},
		pgx.CopyFromSlice(n, func(i int) ([]any, error) { return []any{i, o.envelope(i)}, nil }))
	if err != nil {
		return result, err
	}
	var d decoder
	h, err := listen(ctx, s.url, s.notifyChannel(), d.note)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, h.close(ctx)) }()
	notify := fmt.Sprintf("select count(pg_notify('%s', e.envelope)) from (select envelope from %s.envelopes order by n) e", s.notifyChannel(), s.schema)
	if _, err := conn.Exec(ctx, notify); err != nil {
		return result, err
	}
	if err := h.await(ctx, n); err != nil {
		return result, err
	}
	return d.result()
}

// envelope is the i-th: of frames of a stream each.
func (o *decodeOptions) envelope(i int) string {
	e := listener.Envelope{Origin: uint64(origin), PID: 1 << 20, Transaction: uint64(1<<30 + i), Index: 1}
	for frame := i * o.each; frame < min((i+1)*o.each, o.frames); frame++ {
		own := uint64(scatter(int64(frame)) | 1<<62)
		e.Announcements = append(e.Announcements, backlog.Announcement{
			Kind:     backlog.AnnounceFrame,
			Stream:   backlog.StreamName{Channel: "bench/announcements", Scope: strconv.Itoa(frame)},
			Origin:   e.Origin,
			OwnEpoch: own,
			Frame: backlog.Frame{
				Position: backlog.Position{Epoch: own ^ e.Origin, Sequence: 1},
				Payload:  make([]byte, o.bytes),
				Created:  time.Now(),
			},
		})
	}
	return listener.EncodeEnvelope(listener.Key{ID: 1, Secret: make([]byte, 32)}, e)
}

// decoder decodes notifications, and counts what was in them.
type decoder struct {
	notifications, frames int
	// first are the frames of the notification that started the clock: what it cost
	// to receive that one is not known.
	first int
	began time.Duration
	err   error // the first one
}

func (d *decoder) note(n *pgconn.Notification) {
	e, err := listener.DecodeEnvelope(n.Payload)
	d.fail(err)
	d.notifications++
	d.frames += len(e.Announcements)
	if d.notifications == 1 {
		d.first = d.frames
		d.began, err = processorTime()
		d.fail(err)
	}
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// result is of all that was noted so far. Nothing else may have happened since the
// first notification.
func (d *decoder) result() (decoded, error) {
	now, err := processorTime()
	d.fail(err)
	timed := d.frames - d.first
	if d.err == nil && timed == 0 {
		d.err = fmt.Errorf("%d notifications were heard: too few to tell", d.notifications)
	}
	if d.err != nil {
		return decoded{}, d.err
	}
	return decoded{Frames: d.frames, Notifications: d.notifications, CPU: microseconds(now-d.began) / float64(timed)}, nil
}
