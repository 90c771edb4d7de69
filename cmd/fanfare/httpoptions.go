package main

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fanfare-io/fanfare/clientlib/sse"
)

const (
	defaultHTTPAddress = "127.0.0.1:7480"
	// httpOff is the value of --http that serves no HTTP.
	httpOff = "off"

	defaultHTTPConnections = 20_000
	// mostHTTPConnections is above what one address can have of one client's ports.
	mostHTTPConnections = 1_000_000

	defaultHTTPRetry = 2 * time.Second
	leastHTTPRetry   = 100 * time.Millisecond
	mostHTTPRetry    = time.Hour
)

// webOptions are the flags that say who is served over HTTP.
type webOptions struct {
	http           string
	maxConnections int
	allowedOrigins []string
	cookie         string
	signingKeys    []string
	retry          time.Duration
	// timeouts are no flags: they are the program's.
	timeouts webTimeouts

	// signer is made by check; nil without keys.
	signer *sse.Signer
	// setHTTP and setConnections are true if the flag was given: a port that is in use
	// is then an error, and a bound that the system does not allow a warning.
	setHTTP, setConnections bool
	// required is true if a port that is in use is an error, whether it was chosen or not.
	required bool
}

func (o *webOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&o.maxConnections, "http-max-connections", defaultHTTPConnections, "how many connections over HTTP may have an event stream or a streaming call at a time; less if the system allows fewer open files")
	f.StringArrayVar(&o.allowedOrigins, "http-allowed-origin", nil, "let pages of this origin, as https://app.example.com, use HTTP (CORS); https://*.example.com is all below a domain, * alone every origin, without cookies; may be repeated")
	f.DurationVar(&o.retry, "http-retry", defaultHTTPRetry, "how long a browser waits, at the shortest, before it opens an event stream again; each is told another time, up to three times as long")
	f.StringVar(&o.cookie, "http-cookie", "", "the `NAME` of a cookie that may hold a browser's token for event streams")
	f.StringArrayVar(&o.signingKeys, "signed-url-key-file", nil, "let event streams be opened by signed URLs, and make such: a file with a key of 32 bytes or more; the first signs, others are still taken; may be repeated")
}

// check refuses what cannot be, and completes the options. tokens is true if they are
// verified.
func (o *webOptions) check(cmd *cobra.Command, tokens bool) error {
	o.setHTTP, o.setConnections = cmd.Flags().Changed("http"), cmd.Flags().Changed("http-max-connections")
	if o.maxConnections < 1 || o.maxConnections > mostHTTPConnections {
		return usagef("--http-max-connections must be from 1 to %d", mostHTTPConnections)
	}
	if o.retry < leastHTTPRetry || o.retry > mostHTTPRetry {
		return usagef("--http-retry must be from %s to %s", leastHTTPRetry, ageText(mostHTTPRetry))
	}
	for _, origin := range o.allowedOrigins {
		if err := checkOrigin(origin); err != nil {
			return err
		}
	}
	if o.cookie != "" && (&http.Cookie{Name: o.cookie, Value: "x"}).Valid() != nil {
		return usagef("--http-cookie %q is not a name that a cookie can have", o.cookie)
	}
	if o.cookie != "" && !tokens {
		return usagef("--http-cookie holds a token, and nothing verifies it: give --jwt-secret-file, --jwt-public-key-file or --jwt-jwks-url")
	}
	return o.readKeys()
}

// events is how event streams are served, as far as the flags say.
func (o *webOptions) events(logger *slog.Logger) sse.Config {
	return sse.Config{AllowedOrigins: o.allowedOrigins, Retry: o.retry, Logger: logger}
}

func checkOrigin(origin string) error {
	if origin == "*" {
		return nil
	}
	if sse.CheckOrigins([]string{origin}) != nil && strings.Contains(origin, "*") {
		return usagef("--http-allowed-origin %q: a * stands for what is below a domain of two labels or more, as in https://*.example.com, or alone for every origin, without cookies", origin)
	}
	u, err := url.Parse(strings.Replace(origin, "*", "any", 1))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.Path+u.RawQuery+u.Fragment != "" || strings.Contains(u.Host, "*") {
		return usagef("--http-allowed-origin %q is not an origin, such as https://app.example.com", origin)
	}
	return nil
}

func (o *webOptions) readKeys() error {
	if len(o.signingKeys) == 0 {
		return nil
	}
	var keys [][]byte
	for _, path := range o.signingKeys {
		key, err := readSmallFile(path)
		if err != nil {
			return usagef("--signed-url-key-file %s: %v", path, err)
		}
		if key = bytes.TrimSpace(key); len(key) < sse.MinKeyBytes {
			return usagef("--signed-url-key-file %s has %d bytes, the least is %d: make one with head -c 32 /dev/urandom | base64", path, len(key), sse.MinKeyBytes)
		}
		keys = append(keys, key)
	}
	signer, err := sse.NewSigner(keys...)
	o.signer = signer
	return err
}

// connections is the bound of connections with streams that the system has room for:
// half of the files that the process may open, as the server's other clients, its
// database and its files need some.
func (o *webOptions) connections(logger *slog.Logger) int {
	files, known := openFileLimit()
	if !known || o.maxConnections <= files/2 {
		return o.maxConnections
	}
	bound, tell := max(files/2, 1), logger.Debug
	if o.setConnections {
		tell = logger.Warn
	}
	tell("fewer connections over HTTP than --http-max-connections: the system allows too few open files (ulimit -n)",
		"connections", bound, "open_files", files)
	return bound
}
