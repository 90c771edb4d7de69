package clientlib

import (
	"context"
	"maps"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

const (
	// instrumentation names the library to OpenTelemetry.
	instrumentation = "github.com/fanfare-io/fanfare/clientlib"

	publishOperation = "publish"

	// The server's limits of headers, which a trace context must not exceed.
	maxHeaders     = 32
	maxHeaderBytes = 8 << 10
)

var messagingSystem = semconv.MessagingSystemKey.String("fanfare")

// telemetry is what a client tells OpenTelemetry. Streams are in spans only: as
// attributes of metrics they would be without bound.
type telemetry struct {
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator // may be nil

	duration      metric.Float64Histogram
	consumed      metric.Int64Counter
	interruptions metric.Int64Counter
	gaps          metric.Int64Counter
}

func (c *config) newTelemetry() telemetry {
	meter := c.meters.Meter(instrumentation, metric.WithSchemaURL(semconv.SchemaURL))
	counter := func(name, unit, description string) metric.Int64Counter {
		i, err := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
		c.complain(err)
		return i
	}
	duration, err := meter.Float64Histogram("messaging.client.operation.duration",
		metric.WithUnit("s"), metric.WithDescription("Duration of publishes with their retries."),
		metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10))
	c.complain(err)
	return telemetry{
		tracer:        c.tracers.Tracer(instrumentation, trace.WithSchemaURL(semconv.SchemaURL)),
		propagator:    c.propagator,
		duration:      duration,
		consumed:      counter("messaging.client.consumed.messages", "{message}", "Frames that subscriptions received."),
		interruptions: counter("fanfare.client.interruptions", "{interruption}", "Ends of calls that a subscription or publisher got over, or tries to."),
		gaps:          counter("fanfare.client.gaps", "{gap}", "Places where frames are missing, or may be."),
	}
}

// complain tells of an instrument that counts nothing now; the client works without.
func (c *config) complain(err error) {
	if err != nil {
		c.logger.Warn("an instrument does not measure", "error", err)
	}
}

// publishing is a publish while it goes on.
type publishing struct {
	telemetry *telemetry
	span      trace.Span
	began     time.Time
}

// publish begins the span of a publish of frames, at least one.
func (t *telemetry) publish(ctx context.Context, frames []NewFrame) (context.Context, publishing) {
	attributes := []attribute.KeyValue{
		messagingSystem,
		semconv.MessagingOperationName(publishOperation),
		semconv.MessagingOperationTypeSend,
	}
	name := publishOperation
	if len(frames) == 1 {
		f := &frames[0]
		name += " " + f.Channel
		attributes = append(attributes,
			semconv.MessagingDestinationName(f.Channel),
			attribute.String("fanfare.scope", f.Scope),
			semconv.MessagingMessageBodySize(len(f.Payload)))
	} else {
		attributes = append(attributes, semconv.MessagingBatchMessageCount(len(frames)))
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(attributes...))
	return ctx, publishing{telemetry: t, span: span, began: time.Now()}
}

// end ends it with what the caller is told.
func (p publishing) end(ctx context.Context, err error) {
	attributes := []attribute.KeyValue{messagingSystem, semconv.MessagingOperationName(publishOperation)}
	if err != nil {
		kind := semconv.ErrorTypeKey.String(errorType(err))
		attributes = append(attributes, kind)
		p.span.SetAttributes(kind)
		p.span.SetStatus(otelcodes.Error, err.Error())
	}
	p.telemetry.duration.Record(ctx, time.Since(p.began).Seconds(), metric.WithAttributes(attributes...))
	p.span.End()
}

// errorType is a reason or a code: few values.
func errorType(err error) string {
	e := errorOf(err)
	if e.Reason != "" {
		return e.Reason
	}
	return e.Code.String()
}

// inject adds the trace context of ctx to a frame's headers, in a copy. It leaves a
// frame that has one, one without room for it, and one with a key of the caller's: the
// digest under a key covers the headers, and another try would have another trace.
func (t *telemetry) inject(ctx context.Context, f *NewFrame) {
	if t.propagator == nil || f.IdempotencyKey != "" {
		return
	}
	added := propagation.MapCarrier{}
	t.propagator.Inject(ctx, added)
	bytes := 0
	for name, value := range f.Headers {
		if _, has := added[name]; has {
			return
		}
		bytes += len(name) + len(value)
	}
	for name, value := range added {
		bytes += len(name) + len(value)
	}
	if len(added) == 0 || len(f.Headers)+len(added) > maxHeaders || bytes > maxHeaderBytes {
		return
	}
	maps.Copy(added, f.Headers)
	f.Headers = added
}

// FrameContext returns ctx with the trace context that the publisher put into a frame's
// headers; ctx itself without [WithPropagator].
func (c *Client) FrameContext(ctx context.Context, frame *Frame) context.Context {
	if c.telemetry.propagator == nil {
		return ctx
	}
	return c.telemetry.propagator.Extract(ctx, propagation.MapCarrier(frame.Headers))
}

func (t *telemetry) interrupted(e *Error) {
	t.interruptions.Add(context.Background(), 1, metric.WithAttributes(messagingSystem, semconv.ErrorTypeKey.String(errorType(e))))
}

func (t *telemetry) received(items []item) {
	frames := int64(0)
	for _, i := range items {
		switch e := i.event.(type) {
		case *Frame:
			frames++
		case *Gap:
			t.gaps.Add(context.Background(), 1, metric.WithAttributes(messagingSystem, attribute.String("fanfare.gap.reason", e.Reason.String())))
		}
	}
	if frames > 0 {
		t.consumed.Add(context.Background(), frames, metric.WithAttributes(messagingSystem, semconv.MessagingOperationName("subscribe")))
	}
}
