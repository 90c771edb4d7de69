package bench

import (
	"context"
	"strconv"
	"time"
)

func stormScenario() Scenario {
	return Scenario{
		Name:  "storm",
		Short: "subscribers that all come back at once, after a restart",
		Cases: []Case{
			{
				Name: "many-streams", Short: "10,000 subscribers of as many streams, 5 frames each to replay",
				Sizes: Sizes{Subscribers: 10_000, Connections: 100, Streams: 10_000, Frames: 5, Bytes: 200},
				Run:   storm("bare grpc-go, nothing to replay (c)", false, 40), Restarts: true,
			},
			{
				Name: "one-stream", Short: "10,000 subscribers of one stream with 1,000 frames to replay",
				Sizes: Sizes{Subscribers: 10_000, Connections: 100, Streams: 1, Frames: 1000, Bytes: 200},
				Run:   storm("bare grpc-go, sending the same (c)", true, 3), Restarts: true,
			},
		},
	}
}

// mostStormRatio is how much longer than the reference a storm may take.
const mostStormRatio = 1.5

// stormed is what one storm gives.
type stormed struct {
	seconds, cpu float64
	// queries is how many statements read the backlog; nil if nobody counts.
	queries *int64
}

// storm measures how long it takes until all subscribers have what they are due.
// The reference sends the frames too if replays is true.
func storm(reference string, replays bool, mostQueries float64) func(context.Context, *Run) error {
	return func(ctx context.Context, r *Run) error {
		server, channel, err := r.filled(ctx, r.Sizes.Streams)
		if err != nil {
			return err
		}
		sides := []Side[stormed]{{Fanfare, func(ctx context.Context) (stormed, error) {
			if err := server.Restart(ctx); err != nil {
				return stormed{}, err
			}
			return stormOnce(ctx, r, server, channel, r.Sizes.Frames, true)
		}}}
		if r.Config.Reference != "" {
			sides = append(sides, Side[stormed]{reference, func(ctx context.Context) (stormed, error) {
				return referenceStorm(ctx, r, replays)
			}})
		}
		m, err := Rounds(ctx, r, sides...)
		if err != nil {
			return err
		}
		return reportStorm(r, m, reference, mostQueries)
	}
}

func reportStorm(r *Run, m *Measured[stormed], reference string, mostQueries float64) error {
	milliseconds := func(s stormed) float64 { return s.seconds * 1000 }
	figures := []Figure{{
		What: "until all subscribers have caught up", Unit: "ms", Values: m.Of(Fanfare, milliseconds),
		ComparedWith: reference, References: m.Of(reference, milliseconds), Target: AtMost(mostStormRatio),
	}}
	if !r.Running() || r.PID != 0 {
		cpu := func(s stormed) float64 { return s.cpu * 1000 }
		figures = append(figures, Figure{
			What: "server CPU for it", Unit: "ms", Values: m.Of(Fanfare, cpu), ComparedWith: reference, References: m.Of(reference, cpu),
		})
	}
	counted := true
	queries := m.Of(Fanfare, func(s stormed) float64 {
		if s.queries == nil {
			counted = false
			return 0
		}
		return float64(*s.queries)
	})
	switch {
	case counted:
		figures = append(figures, Figure{What: "queries of the backlog", Values: queries, Target: AtMost(mostQueries)})
	case r.Database != "":
		r.Notef("%s %s: queries of the backlog are counted by the extension pg_stat_statements, through the program given with --reference; it is not there, or the database has not loaded it", r.Scenario, r.Case)
	}
	for _, f := range figures {
		if err := r.ReportFigure(f); err != nil {
			return err
		}
	}
	return nil
}

// referenceStorm has a new reference server meet the same storm.
func referenceStorm(ctx context.Context, r *Run, replays bool) (stormed, error) {
	frames := 0
	if replays {
		frames = r.Sizes.Frames
	}
	server, err := r.ReferenceServer(ctx, "--mode", "bare", "--backlog", strconv.Itoa(frames))
	if err != nil {
		return stormed{}, err
	}
	channel := r.Channel()
	if err := server.Fill(ctx, channel, r.Sizes.Streams, strconv.Itoa, frames, r.Sizes.Bytes); err != nil {
		return stormed{}, err
	}
	s, err := stormOnce(ctx, r, server, channel, frames, false)
	return s, firstOf(err, server.Stop())
}

// stormOnce has all subscribers come at once.
func stormOnce(ctx context.Context, r *Run, server *Server, channel string, frames int, count bool) (s stormed, err error) {
	var before, after Usage
	if server.PID != 0 {
		if before, err = server.Usage(); err != nil {
			return s, err
		}
	}
	var queriesBefore, queriesAfter *int64
	if count {
		if queriesBefore, err = r.countQueries(ctx); err != nil {
			return s, err
		}
	}
	scopes := make([]string, r.Sizes.Streams)
	for i := range scopes {
		scopes[i] = strconv.Itoa(i)
	}
	began := time.Now()
	crowd, err := gather(ctx, server, r.Sizes.Connections, r.Sizes.Subscribers, uint64(frames), oldestRequests(channel, scopes...))
	if err != nil {
		return s, firstOf(err, crowd.close())
	}
	s.seconds = crowd.last.Sub(began).Seconds()
	if server.PID != 0 {
		if after, err = server.Usage(); err != nil {
			return s, firstOf(err, crowd.close())
		}
		s.cpu = (after.CPU - before.CPU).Seconds()
	}
	if queriesBefore != nil {
		if queriesAfter, err = r.countQueries(ctx); err == nil && queriesAfter != nil {
			n := *queriesAfter - *queriesBefore
			s.queries = &n
		}
	}
	return s, firstOf(err, crowd.close())
}

// countQueries returns how many statements have read the backlog so far; nil if
// nobody counts.
func (r *Run) countQueries(ctx context.Context) (*int64, error) {
	if r.Database == "" || r.Config.Reference == "" {
		return nil, nil
	}
	var answer struct {
		Queries *int64 `json:"queries"`
	}
	err := r.AskReference(ctx, &answer, "queries", "--database", r.Database)
	return answer.Queries, err
}
