package transcode

import (
	"context"
	"fmt"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"path"
	"strings"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/vanguard"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

const (
	// maxUnaryCalls bounds the unary calls that are under way, and with them what is
	// held of answers that clients are slow to take: pages of some MiB.
	maxUnaryCalls = 256
	// defaultPlaceTimeout is how long a call waits for one of these places, and for
	// memory each time that it needs more.
	defaultPlaceTimeout = 5 * time.Second
	// maxRequestsBytes bounds what is held of requests that are being read, and
	// maxAnswersBytes what of large frames in streams in JSON that their clients are slow to
	// take.
	maxRequestsBytes = 128 << 20
	maxAnswersBytes  = 128 << 20
	// maxOpenBytes bounds requests to the health service, which anybody may send: the
	// name of a service; and those of a subscription: names and a position.
	maxOpenBytes = 64 << 10
	// maxSessionBytes bounds a request of a Session: names, or a token.
	maxSessionBytes = 256 << 10
	// framingBytes is more than names, types and headers of a batch at its limits add.
	framingBytes = 2 << 20
	// maxResponseBytes is above what a server answers at most: a page of 1 MiB, or one
	// frame.
	maxResponseBytes = 16 << 20

	defaultUnaryTimeout = 25 * time.Second
	defaultWriteTimeout = 20 * time.Second
)

// Config tells a Handler what is in front of what. Dial and Rules are required.
type Config struct {
	// Dial opens a connection to a server, which speaks gRPC on it, without TLS. If its error
	// has a gRPC status, clients are told that, and otherwise UNAVAILABLE without a reason.
	Dial func(ctx context.Context) (net.Conn, error)
	// Rules are which call is at which path: the JSON of a google.api.Http.
	Rules []byte
	// MaxFrameBytes is the largest payload that the server takes. 0: 1 MiB.
	MaxFrameBytes int
	// UnaryTimeout bounds each message of a streaming call's request, from its first byte,
	// and a unary call, whatever time its client gives it: from the
	// request's header on the reading of the request, the wait for a place and the
	// server's answer. It must be below the http.Server's WriteTimeout, which runs from
	// the header, too, by what it takes to write an answer. 0: 25 s.
	UnaryTimeout time.Duration
	// WriteTimeout bounds each write of a streaming answer. It should be below the
	// server's own, which otherwise holds what the client does not take. 0: 20 s.
	WriteTimeout time.Duration
	// Authorize is called before a request is read, but for calls of the health service,
	// which is open. Its error, with its gRPC status, is what the client is told; nothing is
	// held for such a request. In the request's context a gRPC peer says who has connected.
	// It must read no body, and may be called concurrently. Nil: the server alone decides,
	// and whoever reaches the Handler can fill the memory for requests.
	Authorize func(*http.Request) error
	// Begin is called before the request of a streaming call is read, and what it returns
	// when the call has ended. False refuses it. Nil: any number.
	Begin func(*http.Request) (end func(), ok bool)
	// Logger gets what must not reach clients. Nil: slog.Default.
	Logger *slog.Logger
}

// Handler serves calls. It is an http.Handler for everything below /v1/ that the rules
// name, and for what [Handler.Services] names; its server must speak HTTP/1.1 and
// should speak HTTP/2, have a ReadTimeout and a WriteTimeout, which it replaces where
// an answer is a stream, and wrap no ResponseWriter that http.ResponseController does
// not reach through.
type Handler struct {
	config   Config
	upstream *upstream
	rest     http.Handler
	rpc      http.Handler
	// refusals writes errors in the protocols that name calls by service and method.
	refusals *connect.ErrorWriter
	// methods are the paths of all calls, of those named by service and method.
	methods map[string]bool
	// positions are the parameters that are positions, by path.
	positions map[string][]string
	// calls are the places of unary calls. Requests wait for one, and for memory, for
	// placeTimeout.
	calls        *semaphore.Weighted
	placeTimeout time.Duration
	requests     *memory
	answers      *memory
	// json is what streams are read and written in.
	json vanguard.Codec
	// maxBodyBytes bounds a request, and a message of a stream that publishes.
	maxBodyBytes int64
}

// New returns a Handler, which dials when it is first called. The error is one of the
// rules.
func New(config Config) (*Handler, error) {
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	config.UnaryTimeout = orDefault(config.UnaryTimeout, defaultUnaryTimeout)
	config.WriteTimeout = orDefault(config.WriteTimeout, defaultWriteTimeout)
	h := &Handler{
		config:       config,
		refusals:     connect.NewErrorWriter(),
		upstream:     newUpstream(config.Dial, config.Logger),
		calls:        semaphore.NewWeighted(maxUnaryCalls),
		placeTimeout: defaultPlaceTimeout,
		requests:     newMemory(maxRequestsBytes),
		answers:      newMemory(maxAnswersBytes),
		json:         newJSON(protoregistry.GlobalTypes, true),
		maxBodyBytes: maxBodyBytes(config.MaxFrameBytes),
	}
	described, err := annotated(config.Rules)
	if err != nil {
		return nil, err
	}
	// A misspelt name in JSON that somebody wrote is an error; one that a generated
	// client sends is of a newer protocol.
	rest, err := h.newTranscoder(false, vanguard.NewServiceWithSchema(described, h.upstream))
	if err != nil {
		return nil, err
	}
	var services []*vanguard.Service
	for _, name := range serviceNames {
		services = append(services, vanguard.NewService(name, h.upstream))
	}
	rpc, err := h.newTranscoder(true, services...)
	if err != nil {
		return nil, err
	}
	h.rest, h.rpc = withJSONErrors(rest), withJSONRefusals(rpc)
	h.positions = positionParameters(described)
	h.methods = methodPaths(fanfarev1.FanfareService_ServiceDesc, grpc_health_v1.Health_ServiceDesc)
	return h, nil
}

// orDefault is a duration that was given, or the default.
func orDefault(d, def time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return def
}

// maxBodyBytes admits the largest batch and the largest frame, in Base64.
func maxBodyBytes(maxFrameBytes int) int64 {
	return int64(max(backlog.MaxBatchBytes, maxFrameBytes)+framingBytes) * 4 / 3
}

func (h *Handler) newTranscoder(discardUnknown bool, services ...*vanguard.Service) (http.Handler, error) {
	transcoder, err := vanguard.NewTranscoder(services,
		vanguard.WithCodec(func(types vanguard.TypeResolver) vanguard.Codec {
			return newJSON(types, discardUnknown)
		}),
		vanguard.WithCompression(vanguard.CompressionGzip, newCompressor, newDecompressor(h.maxBodyBytes)),
		vanguard.WithDefaultServiceOptions(
			vanguard.WithTargetProtocols(vanguard.ProtocolGRPC),
			vanguard.WithTargetCodecs(vanguard.CodecProto),
			// The server may be sent what was compressed, but is not: it is on the same
			// machine or near, and its answers are not compressed.
			vanguard.WithNoTargetCompression(),
			vanguard.WithTypeResolver(protoregistry.GlobalTypes),
			vanguard.WithMaxMessageBufferBytes(uint32(max(h.maxBodyBytes, maxResponseBytes))),
		))
	if err != nil {
		return nil, fmt.Errorf("make the transcoder: %w", err)
	}
	return transcoder, nil
}

func newJSON(types vanguard.TypeResolver, discardUnknown bool) vanguard.Codec {
	codec := vanguard.NewJSONCodec(types)
	codec.MarshalOptions.EmitUnpopulated, codec.MarshalOptions.EmitDefaultValues = false, true
	codec.UnmarshalOptions.DiscardUnknown = discardUnknown
	return strictJSON{*codec}
}

// serviceNames are the services that may be called.
var serviceNames = []string{
	fanfarev1.FanfareService_ServiceDesc.ServiceName,
	grpc_health_v1.Health_ServiceDesc.ServiceName,
}

func methodPaths(services ...grpc.ServiceDesc) map[string]bool {
	paths := map[string]bool{}
	for _, service := range services {
		for _, method := range service.Methods {
			paths["/"+service.ServiceName+"/"+method.MethodName] = true
		}
		for _, stream := range service.Streams {
			paths["/"+service.ServiceName+"/"+stream.StreamName] = true
		}
	}
	return paths
}

// Services are the paths, each with a slash at its end, below which calls are named by
// service and method.
func (h *Handler) Services() []string {
	paths := make([]string, len(serviceNames))
	for i, name := range serviceNames {
		paths[i] = "/" + name + "/"
	}
	return paths
}

// Close closes connections to the server that carry no call; further calls make new ones.
func (h *Handler) Close() { h.upstream.close() }

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Answers are of their moment, and of their caller.
	w.Header().Set("Cache-Control", "no-store")
	if strings.HasPrefix(r.URL.Path, "/v1/") {
		h.serveREST(w, r)
		return
	}
	media, ok := mediaType(r)
	if media == "application/json" || media == "application/proto" {
		// Those who write requests by hand leave it out, and there is one version.
		r.Header.Set("Connect-Protocol-Version", "1")
	}
	switch {
	case !h.methods[r.URL.Path]:
		refuse(w, http.StatusNotFound, "there is no such method")
	case !ok || !isRPCType(media):
		refuse(w, http.StatusUnsupportedMediaType, "Content-Type must be application/json, application/proto, or that of the Connect protocol, gRPC or gRPC-Web (binary, not as text); if it has a charset, that is utf-8")
	case !isOpen(r.URL.Path) && !h.authorized(w, r):
	case isStreaming(r.URL.Path):
		h.serveStream(w, r)
	default:
		h.serveUnary(w, r, h.rpc)
	}
}

func (h *Handler) serveREST(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodOptions {
		// A web page can have a browser send anything else without asking first, and
		// what has no type at all, too.
		if media, ok := mediaType(r); !ok || media != "application/json" {
			refuse(w, http.StatusUnsupportedMediaType, "Content-Type must be application/json, in UTF-8")
			return
		}
	} else {
		r.Header.Del("Content-Type")
		if !h.readable(w, r) {
			return
		}
	}
	if h.authorized(w, r) {
		h.serveUnary(w, r, h.rest)
	}
}

// mediaType is the type of a request's body. It leaves nothing else in the header: the
// transcoder knows no parameters. ok is false if there is none, or in another charset.
func mediaType(r *http.Request) (media string, ok bool) {
	media, parameters, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if charset, given := parameters["charset"]; err != nil || given && !strings.EqualFold(charset, "utf-8") {
		return "", false
	}
	r.Header.Set("Content-Type", media)
	return media, true
}

// isRPCType reports whether no web page can have a browser send a request of the type
// to another origin without being asked first.
func isRPCType(media string) bool {
	return media == "application/json" || media == "application/proto" || isEnvelopedType(media)
}

// isEnveloped reports whether each message of the request has its length before it.
func isEnveloped(r *http.Request) bool { return isEnvelopedType(r.Header.Get("Content-Type")) }

func isEnvelopedType(media string) bool {
	protocol, _, _ := strings.Cut(media, "+")
	return protocol == "application/connect" || protocol == "application/grpc" || protocol == "application/grpc-web"
}

// isJSON reports whether the transcoder reads the messages of the request.
func isJSON(r *http.Request) bool {
	media := r.Header.Get("Content-Type")
	return media == "" || media == "application/json" || strings.HasSuffix(media, "+json")
}

// isStreaming reports whether the path is that of a call with many messages.
func isStreaming(urlPath string) bool {
	for _, desc := range fanfarev1.FanfareService_ServiceDesc.Streams {
		if path.Base(urlPath) == desc.StreamName {
			return true
		}
	}
	return urlPath == grpc_health_v1.Health_Watch_FullMethodName
}
