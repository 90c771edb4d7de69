package clientlib_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// A publish is a span of a producer, with what the conventions for messaging ask for, and
// its trace goes on where the frame is received.
func TestPublishesAreTraced(t *testing.T) {
	t.Parallel()
	r := servicetest.Start(t, "sqlite::memory:")
	spans := tracetest.NewSpanRecorder()
	traces := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	c := newClient(t, []string{r.Addr}, clientlib.WithTracerProvider(traces), clientlib.WithPropagator(propagation.TraceContext{}))
	ctx, parent := traces.Tracer("test").Start(t.Context(), "parent")
	s := stream("traced")
	if _, err := c.Publish(ctx, frame(s, "12345")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.PublishBatch(ctx, []clientlib.NewFrame{frame(s, ""), frame(s, "")}); err != nil {
		t.Fatal(err)
	}
	p := c.NewPublisher(t.Context())
	if _, err := p.Publish(ctx, frame(s, "")); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Publish(ctx, frame(clientlib.Stream{}, "")); err == nil {
		t.Fatal("a frame without a channel was published")
	}

	ended := spans.Ended()
	var names []string
	for _, s := range ended {
		names = append(names, s.Name())
		if s.SpanKind() != trace.SpanKindProducer || s.Parent().SpanID() != parent.SpanContext().SpanID() {
			t.Errorf("span %s is a %s of %s", s.Name(), s.SpanKind(), s.Parent().SpanID())
		}
	}
	if want := []string{"publish orders", "publish", "publish orders", "publish "}; !slices.Equal(names, want) {
		t.Fatalf("the spans are %q, want %q", names, want)
	}
	for i, want := range []map[string]string{
		{"messaging.system": "fanfare", "messaging.operation.name": "publish", "messaging.operation.type": "send",
			"messaging.destination.name": "orders", "fanfare.scope": "traced", "messaging.message.body.size": "5"},
		{"messaging.batch.message_count": "2"},
		{},
		{"error.type": "INVALID_FIELD"},
	} {
		got := map[string]string{}
		for _, a := range ended[i].Attributes() {
			got[string(a.Key)] = a.Value.String()
		}
		for key, value := range want {
			if got[key] != value {
				t.Errorf("span %d: %s is %q, want %q", i, key, got[key], value)
			}
		}
	}
	if got := ended[3].Status().Code; got != otelcodes.Error {
		t.Errorf("the status of a publish that was refused is %s", got)
	}

	sub := read(t, c.Subscribe(t.Context(), s, clientlib.Oldest()))
	for i := range 4 {
		span := trace.SpanContextFromContext(c.FrameContext(context.Background(), until[*clientlib.Frame](sub)))
		from := ended[[]int{0, 1, 1, 2}[i]].SpanContext()
		if span.SpanID() != from.SpanID() || span.TraceID() != from.TraceID() {
			t.Errorf("frame %d has the span %s, want %s", i+1, span.SpanID(), from.SpanID())
		}
	}
}

// Headers keep the server's limits and the caller's trace, and what is under a key of the
// caller's stays the same from try to try: its digest covers the headers.
func TestTraceContextStaysOutWhereItDoesHarm(t *testing.T) {
	t.Parallel()
	server := &publishes{}
	traces := sdktrace.NewTracerProvider()
	c := newClient(t, []string{(&fakeServer{publish: server.answer}).start(t)}, clientlib.WithPropagator(propagation.TraceContext{}))
	ctx, span := traces.Tracer("test").Start(t.Context(), "parent")
	defer span.End()
	many := map[string]string{}
	for i := range 32 {
		many[fmt.Sprint(i)] = ""
	}
	for name, test := range map[string]struct {
		headers map[string]string
		key     string
		added   bool
	}{
		"room":         {headers: map[string]string{"a": "b"}, added: true},
		"none":         {added: true},
		"own trace":    {headers: map[string]string{"traceparent": "own"}},
		"too many":     {headers: many},
		"too large":    {headers: map[string]string{"a": strings.Repeat("x", 8180)}},
		"key of one's": {key: "own"},
	} {
		f := frame(stream(""), "")
		f.Headers, f.IdempotencyKey = maps.Clone(test.headers), test.key
		if _, err := c.Publish(ctx, f); err != nil {
			t.Fatal(err)
		}
		got := server.seen[len(server.seen)-1].GetHeaders()
		if !test.added {
			if !maps.Equal(got, test.headers) {
				t.Errorf("%s: sent %v", name, got)
			}
			continue
		}
		if parent := got["traceparent"]; !strings.Contains(parent, span.SpanContext().TraceID().String()) || len(got) != len(test.headers)+1 {
			t.Errorf("%s: sent %v", name, got)
		}
		if !maps.Equal(f.Headers, test.headers) {
			t.Errorf("%s: the caller's headers became %v", name, f.Headers)
		}
	}
}

func TestWhatIsCounted(t *testing.T) {
	t.Parallel()
	r := servicetest.Start(t, "sqlite::memory:")
	proxy := pgtest.Proxy(t, r.Addr)
	metrics := sdkmetric.NewManualReader()
	c := newClient(t, []string{proxy.Addr()}, clientlib.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(metrics))))
	s := stream("counted")
	head := publish(t, c, frame(s, "1"), frame(s, "2"))
	if _, err := c.Publish(t.Context(), frame(clientlib.Stream{}, "")); err == nil {
		t.Fatal("a frame without a channel was published")
	}
	sub := read(t, c.Subscribe(t.Context(), s, clientlib.After(clientlib.Position{Epoch: head.Epoch, Sequence: 99})))
	sub.frames(2)
	until[*clientlib.CaughtUp](sub)
	proxy.Reset()
	until[*clientlib.Subscribed](sub)

	var collected metricdata.ResourceMetrics
	if err := metrics.Collect(t.Context(), &collected); err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, scope := range collected.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					got[m.Name+labels(p.Attributes)] += p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					got[m.Name+labels(p.Attributes)] += int64(p.Count) //nolint:gosec // a few
				}
			}
		}
	}
	for name, want := range map[string]int64{
		"messaging.client.operation.duration ":              2,
		"messaging.client.operation.duration INVALID_FIELD": 1,
		"messaging.client.consumed.messages ":               2,
		"fanfare.client.gaps AHEAD":                         1,
	} {
		if got[name] != want {
			t.Errorf("%q is %d, want %d; all: %v", name, got[name], want, got)
		}
	}
	if got["fanfare.client.interruptions Unavailable"] == 0 {
		t.Errorf("no interruption was counted: %v", got)
	}
}

// labels are the attributes that differ.
func labels(set attribute.Set) string {
	for _, key := range []attribute.Key{"error.type", "fanfare.gap.reason"} {
		if v, ok := set.Value(key); ok {
			return " " + v.String()
		}
	}
	return " "
}

// Without providers nothing is told to anybody: the global ones of the process stay as
// they are, and unused.
func TestTelemetryIsOffByDefault(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	otel.SetTextMapPropagator(propagation.TraceContext{})
	defer otel.SetTracerProvider(before)
	server := &publishes{}
	c := newClient(t, []string{(&fakeServer{publish: server.answer}).start(t)})
	ctx, span := otel.Tracer("test").Start(t.Context(), "parent")
	publish(t, c, frame(stream(""), ""))
	if _, err := c.Publish(ctx, frame(stream(""), "")); err != nil {
		t.Fatal(err)
	}
	span.End()
	if got := len(spans.Ended()); got != 1 || len(server.seen[1].GetHeaders()) != 0 {
		t.Errorf("%d spans, headers %v", got, server.seen[1].GetHeaders())
	}
	if ctx := c.FrameContext(t.Context(), &clientlib.Frame{Headers: map[string]string{"traceparent": "00-01-01-01"}}); ctx != t.Context() {
		t.Error("a trace was extracted")
	}
}
