package service

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

const (
	// callLogInterval is how often failures of one kind are logged. While the
	// database is away every call of every client fails, and clients retry.
	callLogInterval = 5 * time.Second
	// errorsAtOnce is how many lines at level ERROR one kind may have in an interval:
	// faults of the server are not all alike. At others it is one.
	errorsAtOnce = 10
)

// Names of fields of more than one kind of line.
const (
	codeField   = "grpc.code"
	reasonField = "reason"
)

// callLog logs the ends of calls. The first failure of a kind is logged at once,
// and those like it are counted: every callLogInterval one line tells how many there
// were, with the last of them. What is logged at level DEBUG is not bounded.
//
// There are as many kinds as methods have ways to fail, whatever clients do: calls
// of unknown methods do not come this far.
type callLog struct {
	logger *slog.Logger
	// counting has room for one: something was counted.
	counting chan struct{}

	mu    sync.Mutex // guards what follows
	kinds map[callKind]*callsAlike
}

// callKind is what calls have in common that are told of together.
type callKind struct{ service, method, code, reason string }

// callsAlike are the calls of one kind.
type callsAlike struct {
	// since is when the interval began, lines how many lines it has had.
	since time.Time
	lines int
	// leftOut counts calls of it without a line; level and fields are the last
	// one's.
	leftOut int
	level   slog.Level
	fields  []any
}

func newCallLog(logger *slog.Logger) *callLog {
	return &callLog{logger: logger, counting: make(chan struct{}, 1), kinds: map[callKind]*callsAlike{}}
}

// run tells of what was counted until ctx ends, and then of the rest.
func (l *callLog) run(ctx context.Context) {
	defer l.tell()
	for ctx.Err() == nil {
		select {
		case <-l.counting:
			sleep(ctx, callLogInterval)
			l.tell()
		case <-ctx.Done():
		}
	}
}

// unary is the interceptor that logs the ends of unary calls; logStream is that of
// the others.
func (l *callLog) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	began := time.Now()
	response, err := handler(ctx, req)
	l.ended(ctx, info.FullMethod, err, time.Since(began))
	return response, err
}

// ended logs the end of a call. It costs little if no line is due: there are very
// many calls.
func (l *callLog) ended(ctx context.Context, fullMethod string, err error, duration time.Duration) {
	service, method, _ := strings.Cut(strings.TrimPrefix(fullMethod, "/"), "/")
	code := status.Code(err)
	kind := callKind{service: service, method: method, code: code.String()}
	if f, ok := err.(*failure); ok && f.reason != fanfarev1.ErrorReason_ERROR_REASON_UNSPECIFIED { //nolint:errorlint // handlers do not wrap it
		kind.reason = reasonName(f.reason)
	}
	level := callLevel(code)
	if kind.isNormal() {
		level = slog.LevelDebug
	}
	if !l.logger.Enabled(ctx, level) {
		return
	}
	fields := append([]any{"grpc.service", kind.service, "grpc.method", kind.method}, peerFields(ctx)...)
	fields = append(fields, codeField, kind.code)
	if err != nil {
		fields = append(fields, "grpc.error", err.Error())
	}
	if kind.reason != "" {
		fields = append(fields, reasonField, kind.reason)
	}
	l.log(ctx, kind, level, "finished call", append(fields, "grpc.duration", duration.String()))
}

// callLevel is the level of the line at the end of a call, unless its reason is
// that of a normal end. What clients do wrong, and what is normal, must not fill the
// log of a busy server.
func callLevel(code codes.Code) slog.Level {
	switch code {
	case codes.OK, codes.Canceled, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.Aborted,
		codes.FailedPrecondition, codes.Unimplemented, codes.DeadlineExceeded:
		return slog.LevelDebug
	case codes.Unavailable, codes.ResourceExhausted, codes.Unknown, codes.Unauthenticated, codes.PermissionDenied:
		return slog.LevelWarn
	default:
		return slog.LevelError
	}
}

// log logs a line, or counts it.
func (l *callLog) log(ctx context.Context, kind callKind, level slog.Level, message string, fields []any) {
	if level > slog.LevelDebug && !l.first(kind, level, fields) {
		return
	}
	l.logger.Log(ctx, level, message, fields...)
}

// first reports whether a failure is to be logged at once; otherwise it is counted.
func (l *callLog) first(kind callKind, level slog.Level, fields []any) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	alike := l.kinds[kind]
	if alike == nil {
		alike = &callsAlike{}
		l.kinds[kind] = alike
	}
	if alike.leftOut == 0 && time.Since(alike.since) >= callLogInterval {
		*alike = callsAlike{since: time.Now()}
	}
	if alike.lines == 0 || level >= slog.LevelError && alike.lines < errorsAtOnce {
		alike.lines++
		return true
	}
	alike.leftOut++
	alike.level, alike.fields = level, fields
	select {
	case l.counting <- struct{}{}:
	default:
	}
	return false
}

// tell tells of everything that was counted.
func (l *callLog) tell() {
	for _, alike := range l.takeCounted() {
		l.logger.Log(context.Background(), alike.level, "more failures alike, this is the last",
			append([]any{"failures", alike.leftOut}, alike.fields...)...)
	}
}

func (l *callLog) takeCounted() (counted []callsAlike) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, alike := range l.kinds {
		if alike.leftOut > 0 {
			counted = append(counted, *alike)
			*alike = callsAlike{since: time.Now(), lines: 1} // the line that tells of them
		}
	}
	return counted
}

// isNormal reports whether calls end so although nothing is wrong.
func (k *callKind) isNormal() bool {
	switch k.reason {
	case reasonName(fanfarev1.ErrorReason_ERROR_REASON_DRAINING), reasonName(fanfarev1.ErrorReason_ERROR_REASON_MAX_STREAM_AGE),
		reasonName(fanfarev1.ErrorReason_ERROR_REASON_TOKEN_EXPIRED):
		return true
	}
	return false
}
