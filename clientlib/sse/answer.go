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
		h.refuse(w, http.StatusNotFound, "", "", "there is nothing here but "+route)
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
		h.refuse(w, http.StatusMethodNotAllowed, "", "", "the method is not one of "+allowed)
	}
}

const allowed = "GET, HEAD, OPTIONS"

func (h *Handler) answerGet(w http.ResponseWriter, r *http.Request) {
	h.requests.Add(1)
	a, err := parse(r, h.config.MaxStreams)
	if bad := (*fieldError)(nil); errors.As(err, &bad) {
		h.refuse(w, http.StatusBadRequest, clientlib.ReasonInvalidField, bad.field, bad.Error())
		return
	}
	grant, err := h.authorize(r, a.streams)
	if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
		h.refuseAccess(w, refusal)
		return
	}
	c := h.newConn(w, r, a, grant)
	switch {
	case err != nil:
		h.log.tell(r.Context(), slog.LevelError, "cannot authorize a browser", err)
		c.postpone(reasonUnavailable)
	case r.Method == http.MethodHead:
		c.header()
	case !h.join(c):
		c.postpone(reasonLimitReached)
	default:
		defer h.leave(c)
		c.serve(r.Context())
	}
}

func (h *Handler) authorize(r *http.Request, streams []clientlib.Stream) (Grant, error) {
	if h.config.Authorize == nil {
		return Grant{}, nil
	}
	g, err := h.config.Authorize(r, slices.Clone(streams))
	if err == nil && !g.Expires.IsZero() && !time.Now().Before(g.Expires) {
		return g, &Refusal{http.StatusUnauthorized, "the credential has expired"}
	}
	return g, err
}

func (h *Handler) refuseAccess(w http.ResponseWriter, r *Refusal) {
	if r.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
		h.refuse(w, http.StatusUnauthorized, "UNAUTHENTICATED", "", r.Message)
		return
	}
	h.refuse(w, http.StatusForbidden, "PERMISSION_DENIED", "", r.Message)
}

// refuse answers what is final.
func (h *Handler) refuse(w http.ResponseWriter, status int, reason, field, message string) {
	h.refused.Add(1)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(line(struct {
		Reason  string `json:"reason,omitempty"`
		Field   string `json:"field,omitempty"`
		Message string `json:"message"`
	}{reason, field, message}), '\n'))
}
