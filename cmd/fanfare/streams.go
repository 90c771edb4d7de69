package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// streamsPageSize is the number of streams asked for at a time, the most that a
// page may have.
const streamsPageSize = 1000

func (p *program) streamsCommand() *cobra.Command {
	var c connection
	var channel string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "streams",
		Short: "List streams",
		Long: `Lists all streams, or those of one channel, in byte order of channel and scope.
Long names are cut short; --json prints them whole.`,
		Example: `  fanfare streams
  fanfare streams --channel chat/messages
  fanfare streams --json | jq -r 'select(.closed) | .scope'`,
		Args: noArguments,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			if channel != "" {
				if err := limitUsage(backlog.StreamName{Channel: channel}.Validate(), map[string]string{"channel": "channel"}); err != nil {
					return err
				}
			}
			out := bufio.NewWriter(p.stdout)
			err := c.listStreams(cmd.Context(), channel, newStreamLister(out, p.display(p.stdout), asJSON))
			if flushing := flush(out); err == nil {
				err = flushing
			}
			return err
		}),
	}
	c.addFlags(cmd)
	c.addTimeoutFlag(cmd, defaultTimeout, "how long to wait for each page")
	cmd.Flags().StringVar(&channel, "channel", "", "only streams of this channel")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object for each stream")
	return cmd
}

// listStreams hands every page of streams to list.
func (c *connection) listStreams(ctx context.Context, channel string, list func([]*fanfarev1.Stream) error) error {
	request := &fanfarev1.ListStreamsRequest{Channel: channel, PageSize: streamsPageSize}
	for {
		var page *fanfarev1.ListStreamsResponse
		err := c.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
			page, err = fanfarev1.NewFanfareServiceClient(conn).ListStreams(ctx, request)
			return err
		})
		if err != nil {
			return err
		}
		if err := list(page.GetStreams()); err != nil {
			return &outputError{err}
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return nil
		}
	}
}

// newStreamLister returns a function that prints a page of streams: as JSON, or
// as rows of a table.
func newStreamLister(out io.Writer, d display, asJSON bool) func([]*fanfarev1.Stream) error {
	if asJSON {
		lines := d.jsonLines(out)
		return func(page []*fanfarev1.Stream) error {
			for _, stream := range page {
				if err := lines.write(newStreamJSON(stream)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	t := newTable(out, d, column{title: "CHANNEL"}, column{title: "SCOPE"}, column{title: "HEAD"}, column{title: "OLDEST", number: true},
		column{title: "STATE"}, column{title: "SUBSCRIBERS", number: true}, column{title: "UPDATED"})
	return func(page []*fanfarev1.Stream) error {
		for _, s := range page {
			t.row(streamCells(s, d)...)
		}
		// Columns are aligned within a page, so that memory is bounded by one.
		return t.flush()
	}
}

func streamCells(s *fanfarev1.Stream, d display) []cell {
	state := cell{"open", nil}
	if s.GetClosed() {
		state = cell{"closed", quietStyle}
	}
	subscribers := cell{fmt.Sprint(s.GetSubscribers()), nil}
	if s.GetSubscribers() > 0 {
		subscribers.style = goodStyle
	}
	return []cell{
		{cutShort(d.clean(s.GetChannel())), nil},
		{cutShort(d.clean(s.GetScope())), nil},
		{positionText(s.GetHead()), nil},
		{fmt.Sprint(s.GetOldest()), nil},
		state,
		subscribers,
		{s.GetUpdated().AsTime().Format(time.RFC3339), quietStyle},
	}
}

// maxColumnRunes bounds the columns of names: one long name would push all other
// columns off a terminal.
const maxColumnRunes = 40

func cutShort(name string) string {
	if utf8.RuneCountInString(name) <= maxColumnRunes {
		return name
	}
	return string([]rune(name)[:maxColumnRunes-1]) + "…"
}

// streamJSON is what streams --json prints for a stream.
type streamJSON struct {
	Channel     string    `json:"channel"`
	Scope       string    `json:"scope"`
	Head        string    `json:"head"`
	Oldest      uint64    `json:"oldest"`
	Closed      bool      `json:"closed"`
	Subscribers uint32    `json:"subscribers"`
	Created     time.Time `json:"created"`
	Updated     time.Time `json:"updated"`
}

func newStreamJSON(s *fanfarev1.Stream) streamJSON {
	return streamJSON{
		Channel:     s.GetChannel(),
		Scope:       s.GetScope(),
		Head:        positionText(s.GetHead()),
		Oldest:      s.GetOldest(),
		Closed:      s.GetClosed(),
		Subscribers: s.GetSubscribers(),
		Created:     s.GetCreated().AsTime(),
		Updated:     s.GetUpdated().AsTime(),
	}
}
