package sse

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"

	"github.com/rs/cors"
)

// preflightSeconds is how long browsers may remember what pages of an origin may send.
// No browser remembers it for longer than two hours.
const preflightSeconds = 7200

// corsFor has next's answers, errors too, say that pages of the allowed origins may read
// them, and answers preflights. It panics if allowed is not as [Config.AllowedOrigins].
func corsFor(allowed []string, next http.Handler) http.Handler {
	if err := CheckOrigins(allowed); err != nil {
		panic(err)
	}
	if len(allowed) == 0 { // to the library that means everybody
		return next
	}
	return cors.New(cors.Options{
		AllowedOrigins:   allowed,
		AllowedMethods:   []string{http.MethodGet, http.MethodHead},
		AllowedHeaders:   []string{"Accept", "Authorization", "Cache-Control", "Last-Event-ID"},
		AllowCredentials: !slices.Contains(allowed, "*"),
		MaxAge:           preflightSeconds,
	}).Handler(next)
}

// originPattern is scheme://host[:port] as browsers send it, or such with "*." before a
// host of two labels or more, the last of which begins with a letter: no address.
var originPattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://` +
	`([^*/?#@\s]+|\*\.[^*/?#@:.\s]+(\.[^*/?#@:.\s]+)*\.[A-Za-z][^*/?#@:.\s]*(:[0-9]+)?)$`)

// CheckOrigins returns what is wrong with origins as [Config.AllowedOrigins] has them:
// above all a * that would let pages in that nobody meant.
func CheckOrigins(origins []string) error {
	for _, o := range origins {
		if o != "*" && !originPattern.MatchString(o) {
			return fmt.Errorf("sse: the allowed origin %.300q is not one, such as https://app.example.com, nor https://*.example.com for all below a domain of two labels or more, nor *", o)
		}
	}
	return nil
}
