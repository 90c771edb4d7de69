package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/sse"
	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/transcode"
	"github.com/fanfare-io/fanfare/service/auth"
)

const (
	// signedURLTime is how long a signed URL is good, unless less is asked for: a page
	// asks for one each time that it connects.
	signedURLTime       = time.Minute
	maxSignedURLStreams = 50
	// maxSignedURLBytes is above 50 streams with names of 255 bytes, each escaped.
	maxSignedURLBytes = 256 << 10
)

// webAccess decides who may see streams over HTTP.
type webAccess struct {
	// verifier is nil if tokens are not required.
	verifier *auth.Verifier
	// cookie is the name of one that may hold a token; empty: none may.
	cookie string
	// signer is nil if URLs are not signed.
	signer *sse.Signer
}

// authorize is the Authorize hook of the event streams.
func (a *webAccess) authorize(r *http.Request, streams []clientlib.Stream) (sse.Grant, error) {
	switch {
	case a.verifier == nil && a.signer == nil:
		return sse.Grant{}, nil
	case a.signer != nil && (a.verifier == nil || r.URL.Query().Has("signature")):
		return a.signer.Verify(r, streams)
	}
	identity, err := a.identify(r)
	if errors.Is(err, auth.ErrUnknownKey) {
		return sse.Grant{}, auth.ErrUnknownKey // not a refusal, which an EventSource takes as final
	}
	if err != nil {
		return sse.Grant{}, err
	}
	if err := mayRead(identity, streams); err != nil {
		return sse.Grant{}, err
	}
	return sse.Grant{Expires: identity.Deadline()}, nil
}

// identify says who sends a request, where there is a verifier. The error is a
// *sse.Refusal if that is not known and will not be.
func (a *webAccess) identify(r *http.Request) (*auth.Identity, error) {
	tokens, err := a.tokens(r)
	if err != nil {
		return nil, err
	}
	var refused error
	for _, token := range tokens {
		identity, err := a.verify(r.Context(), token)
		if err == nil {
			return identity, nil
		}
		// What may pass, or can be renewed, says more than that another one is not valid.
		if refusal := (*sse.Refusal)(nil); refused == nil || !errors.As(err, &refusal) || refusal.Reason != "" {
			refused = err
		}
	}
	return nil, refused
}

// verify is identify for a token.
func (a *webAccess) verify(ctx context.Context, token string) (*auth.Identity, error) {
	identity, err := a.verifier.Verify(ctx, token)
	switch {
	case err == nil:
		return identity, nil
	case errors.Is(err, auth.ErrExpired):
		return nil, &sse.Refusal{Status: http.StatusUnauthorized, Reason: reasonTokenExpired, Message: "the token has expired", Cause: err}
	case errors.Is(err, auth.ErrInvalid):
		return nil, &sse.Refusal{Status: http.StatusUnauthorized, Message: "the token is not valid; the server's log says why", Cause: err}
	default:
		return nil, err
	}
}

// tokens are at least one: that of the header Authorization, or else those of all cookies
// of the name, of which a sibling domain may have set one.
func (a *webAccess) tokens(r *http.Request) (tokens []string, err error) {
	headers := r.Header.Values("Authorization")
	if len(headers) > 1 {
		return nil, &sse.Refusal{Status: http.StatusUnauthorized, Message: fmt.Sprintf("the header Authorization is there %d times; send it once", len(headers))}
	}
	if header := strings.Join(headers, ""); header != "" {
		scheme, token, _ := strings.Cut(header, " ")
		if !strings.EqualFold(scheme, "Bearer") || token == "" {
			return nil, &sse.Refusal{Status: http.StatusUnauthorized, Message: "the header Authorization must be Bearer and a token"}
		}
		return []string{strings.TrimSpace(token)}, nil
	}
	if a.cookie != "" {
		for _, cookie := range r.CookiesNamed(a.cookie) {
			if cookie.Value != "" {
				tokens = append(tokens, cookie.Value)
			}
		}
	}
	if len(tokens) > 0 {
		return tokens, nil
	}
	return nil, &sse.Refusal{Status: http.StatusUnauthorized, Message: "a token is required"}
}

func mayRead(identity *auth.Identity, streams []clientlib.Stream) error {
	for _, s := range streams {
		if !identity.Allows(auth.Subscribe, s.Channel, s.Scope) {
			return &sse.Refusal{Status: http.StatusForbidden, Message: fmt.Sprintf("the token does not allow to subscribe to %s", s)}
		}
	}
	return nil
}

// signRequest is the body of POST /v1/signed-url.
type signRequest struct {
	Streams []signedStream `json:"streams"`
	// Seconds is how long the URL is to be good; 0: a minute.
	Seconds int `json:"seconds"`
}

type signedStream struct {
	Channel string `json:"channel"`
	Scope   string `json:"scope"`
}

// sign answers POST /v1/signed-url. A URL shows no more than a token does, so without
// tokens nobody is given one.
func (routes *webRoutes) sign(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	access := routes.access
	if access.signer == nil {
		transcode.Refuse(w, http.StatusNotFound, "this server signs no URLs: it was not given a key with --signed-url-key-file")
		return
	}
	if access.verifier == nil {
		routes.events.Refuse(w, r, &sse.Refusal{Status: http.StatusForbidden, Message: "this server signs for nobody, as it verifies no tokens: sign where browsers sign in, with the same key"})
		return
	}
	identity, err := access.identify(r)
	if err != nil {
		routes.events.Refuse(w, r, err)
		return
	}
	request, field, message := readSignRequest(w, r)
	if request == nil {
		transcode.RefuseField(w, field, message)
		return
	}
	if err := mayRead(identity, request.names()); err != nil {
		routes.events.Refuse(w, r, err)
		return
	}
	expires := time.Now().Add(request.lifetime())
	if deadline := identity.Deadline(); !deadline.IsZero() && deadline.Before(expires) {
		expires = deadline
	}
	signed, err := access.signer.Sign(request.url(), expires)
	if err != nil {
		transcode.RefuseField(w, "streams", strings.TrimPrefix(err.Error(), "sse: "))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(struct { // the client has gone
		URL     string    `json:"url"`
		Expires time.Time `json:"expires"`
	}{signed.String(), expires.UTC().Truncate(time.Second)})
}

// readSignRequest returns nil if a field of the request is outside its limit, and which.
func readSignRequest(w http.ResponseWriter, r *http.Request) (request *signRequest, field, message string) {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return nil, "Content-Type", "Content-Type must be application/json"
	}
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxSignedURLBytes))
	decoder.DisallowUnknownFields()
	request = new(signRequest)
	if err := decoder.Decode(request); err != nil {
		return nil, "body", fmt.Sprintf("the body is not the JSON that is expected: %v", err)
	}
	if n := len(request.Streams); n < 1 || n > maxSignedURLStreams {
		return nil, "streams", fmt.Sprintf("streams must be 1 to %d, there are %d", maxSignedURLStreams, n)
	}
	if most := int(sse.MaxSignedFor / time.Second); request.Seconds < 0 || request.Seconds > most {
		return nil, "seconds", fmt.Sprintf("seconds must be from 1 to %d, or 0 for %d", most, signedURLTime/time.Second)
	}
	return request, "", ""
}

func (r *signRequest) names() []clientlib.Stream {
	names := make([]clientlib.Stream, len(r.Streams))
	for i, s := range r.Streams {
		names[i] = clientlib.Stream{Channel: s.Channel, Scope: s.Scope}
	}
	return names
}

func (r *signRequest) lifetime() time.Duration {
	if r.Seconds == 0 {
		return signedURLTime
	}
	return time.Duration(r.Seconds) * time.Second
}

// url is the URL of an event stream of the streams.
func (r *signRequest) url() *url.URL {
	query := url.Values{}
	if len(r.Streams) == 1 {
		query.Set("channel", r.Streams[0].Channel)
		query.Set("scope", r.Streams[0].Scope)
	} else {
		for _, s := range r.Streams {
			query.Add("stream", url.PathEscape(s.Channel)+"/"+url.PathEscape(s.Scope))
		}
	}
	return &url.URL{Path: "/v1/streams", RawQuery: query.Encode()}
}
