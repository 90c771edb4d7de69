package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
)

type replayOptions struct {
	database, schema string
	channel, scope   string
	frames           int
	repeat           int
}

// replayed is what replay prints.
type replayed struct {
	Frames int `json:"frames"`
	Bytes  int `json:"bytes"`
	// Seconds is the shortest of all repetitions.
	Seconds float64 `json:"seconds"`
}

func replayCommand() *cobra.Command {
	var o replayOptions
	cmd := reporting("replay", "Read a stream's frames from Fanfare's table with one SELECT", o.run)
	askDatabase(cmd, &o.database)
	cmd.Flags().StringVar(&o.schema, "schema", "fanfare", "Fanfare's schema")
	cmd.Flags().StringVar(&o.channel, "channel", "", "the stream's channel")
	cmd.Flags().StringVar(&o.scope, "scope", "", "the stream's scope")
	cmd.Flags().IntVar(&o.frames, "frames", 10_000, "how many frames to read, from the oldest on")
	cmd.Flags().IntVar(&o.repeat, "repeat", 5, "how often to read; the best counts")
	return cmd
}

func (o *replayOptions) run(ctx context.Context) (best replayed, err error) {
	if o.frames < 1 || o.repeat < 1 {
		return best, errors.New("--frames and --repeat are at least 1")
	}
	conn, err := pgx.Connect(ctx, o.database)
	if err != nil {
		return best, err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	schema := pgx.Identifier{o.schema}.Sanitize()
	sql := fmt.Sprintf(`
select f.sequence, f.origin, f.payload, f.content_type, f.event_type, f.headers, f.created
  from %[1]s.channel_frames f
 where f.stream_id = (select s.stream_id from %[1]s.streams s where s.channel = $1 and s.scope = $2)
 order by f.sequence
 limit $3`, schema)
	// The statement is prepared before the clock starts.
	if _, err := conn.Prepare(ctx, "replay", sql); err != nil {
		return best, err
	}
	for i := range o.repeat {
		r, err := o.read(ctx, conn)
		if err != nil {
			return best, err
		}
		if i == 0 || r.Seconds < best.Seconds {
			best = r
		}
	}
	return best, nil
}

// read reads the stream once.
func (o *replayOptions) read(ctx context.Context, conn *pgx.Conn) (r replayed, err error) {
	began := time.Now()
	rows, err := conn.Query(ctx, "replay", o.channel, o.scope, o.frames)
	if err != nil {
		return r, err
	}
	var (
		sequence, origin       int64
		payload, headers       []byte
		contentType, eventType string
		created                time.Time
	)
	_, err = pgx.ForEachRow(rows, []any{&sequence, &origin, &payload, &contentType, &eventType, &headers, &created}, func() error {
		r.Frames++
		r.Bytes += len(payload)
		return nil
	})
	r.Seconds = time.Since(began).Seconds()
	if err == nil && r.Frames < o.frames {
		err = fmt.Errorf("the stream has %d frames, not %d", r.Frames, o.frames)
	}
	return r, err
}
