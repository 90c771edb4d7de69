package sse

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/fanfare-io/fanfare/clientlib"
)

// route is where a Handler's URLs begin, after a prefix that somebody strips.
const route = "/v1/streams"

// maxNameBytes is the limit of channels and scopes.
const maxNameBytes = 255

// fieldError says what of a request is outside its limit. The message is a sentence.
type fieldError struct{ field, message string }

func (e *fieldError) Error() string { return e.message }

// badField completes a sentence that begins with the field.
func badField(field, format string, args ...any) error {
	return &fieldError{field, field + " " + fmt.Sprintf(format, args...)}
}

// asked is what a request asks for.
type asked struct {
	streams []clientlib.Stream
	// starts are where each begins.
	starts []start
	// resumes is true if a Last-Event-ID said so: the browser was here before.
	resumes bool
	json    bool
	// heartbeats is true if heartbeats are to be events.
	heartbeats bool
}

// start is where a stream begins. It is comparable, unlike a clientlib.Start, so that
// those who begin at the same place find each other.
type start struct {
	kind     startKind
	position clientlib.Position
	last     uint64
}

type startKind uint8

const (
	fromOldest startKind = iota
	fromLive
	fromAfter
	fromLast
)

func after(p clientlib.Position) start { return start{kind: fromAfter, position: p} }

func (s start) upstream() clientlib.Start {
	switch s.kind {
	case fromLive:
		return clientlib.Live()
	case fromAfter:
		return clientlib.After(s.position)
	case fromLast:
		return clientlib.Last(s.last)
	default:
		return clientlib.Oldest()
	}
}

// parse reads a request, of which others know some parameters of the query. The error is a
// *fieldError.
func parse(r *http.Request, maxStreams int, others []string) (asked, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return asked{}, badField("query", "is not percent-encoded")
	}
	if err := checkParameters(query, others); err != nil {
		return asked{}, err
	}
	var a asked
	if a.streams, err = streamsOf(r.URL.EscapedPath(), query, maxStreams); err != nil {
		return asked{}, err
	}
	if a.json, err = jsonOf(query, len(a.streams)); err != nil {
		return asked{}, err
	}
	if a.heartbeats, err = heartbeatsOf(query); err != nil {
		return asked{}, err
	}
	a.starts, a.resumes, err = startsOf(r.Header.Values("Last-Event-ID"), query, len(a.streams))
	return a, err
}

// parameters are those of the query; those of a signed URL follow.
var parameters = []string{"channel", "scope", "stream", "after", "last", "from", "format", "heartbeat"}

// checkParameters refuses a parameter that nobody knows: with one that is misspelt another
// stream would be meant, and nobody told.
func checkParameters(query url.Values, others []string) error {
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if name != expiresField && name != signatureField && !slices.Contains(parameters, name) && !slices.Contains(others, name) {
			known := strings.Join(append(slices.Clone(parameters), others...), ", ")
			return &fieldError{name, fmt.Sprintf("the query has the parameter %.64q, which is none of %s", name, known)}
		}
	}
	return nil
}

// streamsOf reads the streams of a URL, at least one.
func streamsOf(escapedPath string, query url.Values, maxStreams int) ([]clientlib.Stream, error) {
	var streams []clientlib.Stream
	switch rest, below := strings.CutPrefix(escapedPath, route+"/"); {
	case below && (query.Has("channel") || query.Has("scope") || query.Has("stream")):
		return nil, &fieldError{"stream", "the path names a stream, and the query must not name another"}
	case below:
		s, err := pairOf("path", rest)
		if err != nil {
			return nil, err
		}
		streams = append(streams, s)
	case query.Has("stream") && (query.Has("channel") || query.Has("scope")):
		return nil, &fieldError{"stream", "stream excludes channel and scope; name several streams by stream=CHANNEL/SCOPE each"}
	case query.Has("stream"):
		if n := len(query["stream"]); n > maxStreams {
			return nil, badField("stream", "is there %d times, the limit is %d", n, maxStreams)
		}
		for _, text := range query["stream"] {
			s, err := pairOf("stream", text)
			if err != nil {
				return nil, err
			}
			streams = append(streams, s)
		}
	case len(query["channel"]) > 1 || len(query["scope"]) > 1:
		return nil, &fieldError{"channel", "channel and scope must be there once at most; name several streams by stream=CHANNEL/SCOPE each"}
	default:
		streams = append(streams, clientlib.Stream{Channel: query.Get("channel"), Scope: query.Get("scope")})
	}
	return streams, checkStreams(streams)
}

// pairOf reads CHANNEL/SCOPE, both percent-encoded.
func pairOf(field, text string) (clientlib.Stream, error) {
	channel, scope, found := strings.Cut(text, "/")
	if !found || strings.Contains(scope, "/") {
		return clientlib.Stream{}, badField(field, "is not CHANNEL/SCOPE with one slash; one in a name is %%2F")
	}
	s := clientlib.Stream{}
	var channelErr, scopeErr error
	s.Channel, channelErr = url.PathUnescape(channel)
	s.Scope, scopeErr = url.PathUnescape(scope)
	if channelErr != nil || scopeErr != nil {
		return clientlib.Stream{}, badField(field, "is not percent-encoded")
	}
	return s, nil
}

func checkStreams(streams []clientlib.Stream) error {
	seen := map[clientlib.Stream]bool{}
	for _, s := range streams {
		if s.Channel == "" {
			return badField("channel", "is empty; it has 1 to %d bytes", maxNameBytes)
		}
		if err := checkName("channel", s.Channel); err != nil {
			return err
		}
		if err := checkName("scope", s.Scope); err != nil {
			return err
		}
		if seen[s] {
			return badField("stream", "names %s twice", s)
		}
		seen[s] = true
	}
	return nil
}

func checkName(field, name string) error {
	if len(name) > maxNameBytes {
		return badField(field, "has %d bytes, the limit is %d", len(name), maxNameBytes)
	}
	if !utf8.ValidString(name) {
		return badField(field, "is not valid UTF-8")
	}
	if at := strings.IndexFunc(name, unicode.IsControl); at >= 0 {
		r, _ := utf8.DecodeRuneInString(name[at:])
		return badField(field, "contains the control character U+%04X", r)
	}
	return nil
}

func jsonOf(query url.Values, streams int) (bool, error) {
	text, err := single(query, "format")
	switch {
	case err != nil:
		return false, err
	case text == "json":
		return true, nil
	case text == "" || text == "plain" && streams == 1:
		return streams > 1, nil
	default:
		return false, badField("format", "is %.32q; it is json or, for one stream, plain", text)
	}
}

func heartbeatsOf(query url.Values) (bool, error) {
	text, err := single(query, "heartbeat")
	switch {
	case err != nil:
		return false, err
	case text == "event":
		return true, nil
	case text == "" || text == "comment":
		return false, nil
	default:
		return false, badField("heartbeat", "is %.32q; it is comment or event", text)
	}
}

// startsOf reads where the streams begin. What Last-Event-ID says beats the query, which
// is the same at each reconnect of an EventSource.
func startsOf(lastEventID []string, query url.Values, streams int) (starts []start, resumes bool, err error) {
	if len(lastEventID) > 1 {
		return nil, false, badField("Last-Event-ID", "is there %d times", len(lastEventID))
	}
	if len(lastEventID) == 1 && lastEventID[0] != "" {
		starts, err = positionsOf("Last-Event-ID", lastEventID[0], streams)
		return starts, true, err
	}
	given := 0
	for _, field := range []string{"after", "last", "from"} {
		text, err := single(query, field)
		if err != nil {
			return nil, false, err
		}
		if text != "" {
			given++
		}
	}
	if given > 1 {
		return nil, false, &fieldError{"after", "after, last and from exclude each other"}
	}
	if text := query.Get("after"); text != "" {
		starts, err = positionsOf("after", text, streams)
		return starts, false, err
	}
	s, err := startOf(query)
	for range streams {
		starts = append(starts, s)
	}
	return starts, false, err
}

func startOf(query url.Values) (start, error) {
	if text := query.Get("last"); text != "" {
		n, err := strconv.ParseUint(text, 10, 63)
		if err != nil {
			return start{}, badField("last", "is not a decimal number below 2^63")
		}
		return start{kind: fromLast, last: n}, nil
	}
	switch text := query.Get("from"); text {
	case "", "oldest":
		return start{}, nil
	case "live":
		return start{kind: fromLive}, nil
	default:
		return start{}, badField("from", "is %.32q; it is oldest or live", text)
	}
}

// positionsOf reads one position for each stream.
func positionsOf(field, text string, streams int) ([]start, error) {
	parts := strings.Split(text, ",")
	if len(parts) != streams {
		return nil, badField(field, "has %d positions, and there are %d streams", len(parts), streams)
	}
	starts := make([]start, streams)
	for i, part := range parts {
		p, err := clientlib.ParsePosition(part)
		if err != nil {
			return nil, &fieldError{field, field + ": " + err.Error()}
		}
		starts[i] = after(p)
	}
	return starts, nil
}

func single(query url.Values, field string) (string, error) {
	if n := len(query[field]); n > 1 {
		return "", badField(field, "is there %d times", n)
	}
	return query.Get(field), nil
}
