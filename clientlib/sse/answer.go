package sse

import (
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fanfare-io/fanfare/clientlib"
)

// answer answers a request that CORS has nothing against.
func (h *Handler) answer(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store, no-transform")
	header.Set("X-Accel-Buffering", "no")
	header.Set("X-Content-Type-Options", "nosniff")
	// A signed URL is a credential while it is good.
	header.Set("Referrer-Policy", "no-referrer")
	if path := r.URL.EscapedPath(); path != route && !strings.HasPrefix(path, route+"/") {
		h.refuse(w, http.StatusNotFound, problem{Message: "there is nothing here but " + route})
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		h.answerGet(w, r)
	case http.MethodOptions:
		header.Set("Allow", allowed)
		w.WriteHeader(http.StatusNoContent)
	default:
		header.Set("Allow", allowed)
		h.refuse(w, http.StatusMethodNotAllowed, problem{Message: "the method is not one of " + allowed})
	}
}

const allowed = "GET, HEAD, OPTIONS"

func (h *Handler) answerGet(w http.ResponseWriter, r *http.Request) {
	h.requests.Add(1)
	a, err := parse(r, h.config.MaxStreams, h.config.Parameters)
	if bad := (*fieldError)(nil); errors.As(err, &bad) {
		h.refuse(w, http.StatusBadRequest, problem{Message: bad.message, Reason: clientlib.ReasonInvalidField, Field: bad.field})
		return
	}
	if h.client == nil {
		h.newConn(w, r, a, Grant{}).postpone(reasonUnavailable)
		return
	}
	grant, err := h.authorize(r, a.streams)
	if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
		h.refuseAccess(w, r, refusal)
		return
	}
	c := h.newConn(w, r, a, grant)
	switch {
	case err != nil:
		h.tellUnauthorized(r, err)
		c.postpone(reasonUnavailable)
	case r.Method == http.MethodHead:
		c.header()
	case !h.join(c):
		c.postpone(reasonLimitReached)
	default:
		defer h.leave(c)
		end, ok := h.config.Begin(r)
		if !ok {
			c.postpone(reasonLimitReached)
			return
		}
		defer end()
		c.serve(r.Context())
	}
}

func (h *Handler) authorize(r *http.Request, streams []clientlib.Stream) (Grant, error) {
	if h.config.Authorize == nil {
		return Grant{}, nil
	}
	g, err := h.config.Authorize(r, slices.Clone(streams))
	if err == nil && !g.Expires.IsZero() && !time.Now().Before(g.Expires) {
		return g, &Refusal{Status: http.StatusUnauthorized, Reason: reasonTokenExpired, Message: "the credential has expired"}
	}
	return g, err
}

// Refuse answers a request for something else than event streams, such as for a signed URL,
// with an error as [Config.Authorize] returns them, and logs it in the same way. A *[Refusal]
// is final; anything else is trouble that passes, and 503.
func (h *Handler) Refuse(w http.ResponseWriter, r *http.Request, err error) {
	if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
		h.refuseAccess(w, r, refusal)
		return
	}
	h.tellUnauthorized(r, err)
	w.Header().Set("Retry-After", "1")
	h.refuse(w, http.StatusServiceUnavailable, problem{Message: "credentials cannot be verified at the moment; try again", Reason: reasonUnavailable})
}

// tellUnauthorized logs that it is not known what a browser may see.
func (h *Handler) tellUnauthorized(r *http.Request, err error) {
	h.log.tell(r.Context(), slog.LevelError, "cannot authorize a browser", err)
}

// refuseAccess answers what Authorize has refused, and logs it.
func (h *Handler) refuseAccess(w http.ResponseWriter, r *http.Request, refusal *Refusal) {
	status, p := http.StatusForbidden, problem{Message: refusal.Message, Reason: refusal.Reason}
	if refusal.Status == http.StatusUnauthorized {
		status = http.StatusUnauthorized
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if p.Reason == "" {
		p.Reason = strings.ToUpper(codes[status])
	}
	level := slog.LevelWarn
	if p.Reason == reasonTokenExpired { // what is normal must not fill the log
		level = slog.LevelDebug
	}
	h.log.tellRefusal(r.Context(), level, p.Reason, refusal, "peer.address", r.RemoteAddr)
	h.refuse(w, status, p)
}

// problem is the body of an answer that is final. It has the form of the errors of JSON
// over HTTP.
type problem struct {
	// Code is that of gRPC, in lower case.
	Code    string `json:"code"`
	Message string `json:"message"`
	Reason  string `json:"reason,omitempty"`
	Field   string `json:"field,omitempty"`
}

// codes are the codes of the statuses of problems.
var codes = map[int]string{
	http.StatusBadRequest:         "invalid_argument",
	http.StatusUnauthorized:       "unauthenticated",
	http.StatusForbidden:          "permission_denied",
	http.StatusNotFound:           "unimplemented",
	http.StatusMethodNotAllowed:   "unimplemented",
	http.StatusServiceUnavailable: "unavailable",
}

// refuse answers what is final. The code follows from the status.
func (h *Handler) refuse(w http.ResponseWriter, status int, p problem) {
	h.refused.Add(1)
	p.Code = codes[status]
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(line(p), '\n'))
}
