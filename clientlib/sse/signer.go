package sse

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fanfare-io/fanfare/clientlib"
)

const (
	// MaxSignedFor is how long a signed URL may be good.
	MaxSignedFor = time.Hour
	// MinKeyBytes is the length of the shortest key of a [Signer].
	MinKeyBytes = 32

	// maxSkew is by how much the clocks of who signs and who verifies may differ.
	maxSkew = time.Minute

	expiresField   = "expires"
	signatureField = "signature"
)

// Signer makes URLs that are good for a while for whoever has them, and verifies them:
// EventSource sends no headers, and a token that is good for long does not belong into a
// URL, where logs and histories have it. Its methods may be called from any goroutine.
//
// A signature is over the method (GET, which is also good for HEAD), the route, the
// streams and the end. The start, the format and the heartbeat are not part of it: a page
// may change them.
type Signer struct {
	// MaxStreams is [Config.MaxStreams] of the handler that URLs are signed for: Sign
	// refuses more, as the handler does. Zero or negative: 50. It is set before Sign is
	// called.
	MaxStreams int

	keys [][]byte
}

// NewSigner returns a signer that signs with the first key and takes signatures of any,
// so that keys can be changed: first add the new one behind, everywhere, then put it
// first, and remove the old one an hour later. A key has at least [MinKeyBytes] bytes, from
// crypto/rand, and is for nothing else.
func NewSigner(keys ...[]byte) (*Signer, error) {
	if len(keys) == 0 {
		return nil, errors.New("sse: a signer needs a key")
	}
	s := &Signer{}
	for i, k := range keys {
		if len(k) < MinKeyBytes {
			return nil, fmt.Errorf("sse: key %d has %d bytes, the least is %d", i+1, len(k), MinKeyBytes)
		}
		s.keys = append(s.keys, slices.Clone(k))
	}
	return s, nil
}

// Sign returns u with an end and a signature in its query. u is a URL of a [Handler], and
// may have a prefix before /v1/streams. expires, which is cut to seconds, is in the future
// and at most [MaxSignedFor] away.
func (s *Signer) Sign(u *url.URL, expires time.Time) (*url.URL, error) {
	left := time.Until(expires)
	if left <= 0 || left > MaxSignedFor {
		return nil, fmt.Errorf("sse: a signed URL is good for up to %s, not for %s", MaxSignedFor, left.Round(time.Second))
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("sse: query: %w", err)
	}
	streams, err := s.streamsBelow(u.EscapedPath(), query)
	if err != nil {
		return nil, fmt.Errorf("sse: %w", err)
	}
	end := strconv.FormatInt(expires.Unix(), 10)
	query.Set(expiresField, end)
	query.Set(signatureField, signature(s.keys[0], streams, end))
	signed := *u
	signed.RawQuery = query.Encode()
	return &signed, nil
}

// streamsBelow reads the streams of a URL whose path has a prefix that somebody strips. The
// route may be there again as part of the prefix or as the names of a stream; of no URL two
// readings are possible.
func (s *Signer) streamsBelow(path string, query url.Values) (streams []clientlib.Stream, err error) {
	limit := s.MaxStreams
	setDefault(&limit, defaultMaxStreams)
	err = fmt.Errorf("the path does not have %s", route)
	for end := len(path); ; {
		at := strings.LastIndex(path[:end], route)
		if at < 0 {
			return nil, err
		}
		if below := path[at+len(route):]; below == "" || below[0] == '/' {
			if streams, err = streamsOf(path[at:], query, limit); err == nil {
				return streams, nil
			}
		}
		end = at
	}
}

// Verify reports whether r's URL was signed for streams and is still good; otherwise the
// error is a *[Refusal] with 401, and TOKEN_EXPIRED if it was good. It is made to be called
// by [Config.Authorize]. The grant ends when the URL does.
func (s *Signer) Verify(r *http.Request, streams []clientlib.Stream) (Grant, error) {
	query := r.URL.Query()
	for _, field := range []string{expiresField, signatureField} {
		if _, err := single(query, field); err != nil {
			return Grant{}, &Refusal{Status: http.StatusUnauthorized, Message: err.Error()}
		}
	}
	end, given := query.Get(expiresField), []byte(query.Get(signatureField))
	good := false
	for _, k := range s.keys { // all, so that the time does not tell which
		good = hmac.Equal([]byte(signature(k, streams, end)), given) || good
	}
	unix, err := strconv.ParseInt(end, 10, 64)
	if !good || err != nil {
		return Grant{}, &Refusal{Status: http.StatusUnauthorized, Message: "the URL has no valid signature"}
	}
	expires := time.Unix(unix, 0)
	switch left := time.Until(expires); {
	case left <= 0:
		return Grant{}, &Refusal{Status: http.StatusUnauthorized, Reason: reasonTokenExpired, Message: "the signed URL has expired"}
	case left > MaxSignedFor+maxSkew:
		return Grant{}, &Refusal{Status: http.StatusUnauthorized, Message: fmt.Sprintf("the URL was signed for longer than %s", MaxSignedFor)}
	}
	return Grant{Expires: expires}, nil
}

// signature is what a URL has. It is compared as text, as a decoder of base64 takes several
// texts for the same bytes. Lengths precede names, so that no two lists of streams are the
// same bytes.
func signature(key []byte, streams []clientlib.Stream, expires string) string {
	sorted := slices.SortedFunc(slices.Values(streams), func(a, b clientlib.Stream) int {
		return strings.Compare(a.Channel, b.Channel)*2 + strings.Compare(a.Scope, b.Scope)
	})
	h := hmac.New(sha256.New, key)
	field := func(s string) {
		_ = binary.Write(h, binary.BigEndian, uint32(len(s))) //nolint:gosec // a field of a URL
		h.Write([]byte(s))
	}
	field("fanfare signed URL 1")
	field(http.MethodGet)
	field(route)
	field(expires)
	for _, stream := range sorted {
		field(stream.Channel)
		field(stream.Scope)
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}
