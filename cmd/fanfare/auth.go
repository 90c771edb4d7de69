package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fanfare-io/fanfare/service/auth"
)

// maxKeyFileBytes is far above what keys take: another file was named by mistake.
const maxKeyFileBytes = 1 << 20

// authOptions are the flags of fanfare serve that say which tokens are valid.
type authOptions struct {
	secretFiles    []string
	publicKeyFiles []string
	jwksURL        string
	issuer         string
	audience       string
	leeway         time.Duration

	// keys are those of the files, once check has read them.
	keys []auth.Key
}

func (o *authOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&o.secretFiles, "jwt-secret-file", nil, "require tokens (JWT), signed with the secret in this file; `[KID=]PATH`, may be repeated")
	f.StringArrayVar(&o.publicKeyFiles, "jwt-public-key-file", nil, "require tokens, signed with the private key of a public one in this PEM file; `[KID=]PATH`, may be repeated")
	f.StringVar(&o.jwksURL, "jwt-jwks-url", "", "require tokens, signed with a key of the JWK set at this URL, which is https://, or http:// at this host")
	f.StringVar(&o.issuer, "jwt-issuer", "", "what iss of a token must be (default: anything)")
	f.StringVar(&o.audience, "jwt-audience", "", "what aud of a token must have (default: anything)")
	f.DurationVar(&o.leeway, "jwt-leeway", 30*time.Second, "by how much the clocks of who issues tokens and of this server may differ")
}

// configured reports whether callers need tokens.
func (o *authOptions) configured() bool {
	return len(o.secretFiles) > 0 || len(o.publicKeyFiles) > 0 || o.jwksURL != ""
}

// check reads the keys, and refuses what makes no sense.
func (o *authOptions) check() error {
	switch {
	case o.leeway < 0 || o.leeway > maxLeeway:
		return usagef("--jwt-leeway must be from 0 to %s", ageText(maxLeeway))
	case !o.configured() && (o.issuer != "" || o.audience != ""):
		return usagef("--jwt-issuer and --jwt-audience need keys: --jwt-secret-file, --jwt-public-key-file or --jwt-jwks-url")
	case o.jwksURL != "":
		// Who changes the keys on their way signs tokens that are valid.
		if u, err := url.Parse(o.jwksURL); err != nil || u.Host == "" || u.Scheme != "https" && !(u.Scheme == "http" && namesLoopback(u.Hostname())) {
			// The value is not repeated: it may hold a password.
			return usagef("--jwt-jwks-url must be a URL that begins with https://, or with http:// and localhost or a loopback address")
		}
	}
	o.keys = nil
	for _, file := range o.secretFiles {
		err := readKeyFile("jwt-secret-file", file, func(id string, text []byte) error {
			key, err := auth.ParseSecret(id, text)
			o.keys = append(o.keys, key)
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, file := range o.publicKeyFiles {
		err := readKeyFile("jwt-public-key-file", file, func(id string, text []byte) error {
			keys, err := auth.ParsePublicKeys(id, text)
			o.keys = append(o.keys, keys...)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// namesLoopback reports whether a host is this one by its name alone.
func namesLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return err == nil && address.Unmap().IsLoopback() || strings.EqualFold(host, "localhost")
}

// maxLeeway is more than any clock should be off.
const maxLeeway = time.Hour

// keyFile is a path that may have the id of a key before it.
var keyFile = regexp.MustCompile(`^([A-Za-z0-9._-]+)=(.+)$`)

// readKeyFile has parse make keys of the file that a flag names.
func readKeyFile(flag, value string, parse func(id string, text []byte) error) error {
	id, path := "", value
	if m := keyFile.FindStringSubmatch(value); m != nil {
		id, path = m[1], m[2]
	}
	text, err := readSmallFile(path)
	if err == nil {
		err = parse(id, text)
	}
	if err != nil {
		return usagef("--%s %s: %v", flag, path, err)
	}
	return nil
}

// readSmallFile reads a file that cannot be large.
func readSmallFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err.(*os.PathError).Err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxKeyFileBytes+1))
	if err == nil && len(text) > maxKeyFileBytes {
		err = fmt.Errorf("it has more than %d bytes", maxKeyFileBytes)
	}
	return text, err
}

// verifier returns what verifies tokens; nil if callers need none. It works until ctx
// ends.
func (o *authOptions) verifier(ctx context.Context, logger *slog.Logger) (*auth.Verifier, error) {
	if !o.configured() {
		return nil, nil //nolint:nilnil // none is needed
	}
	config := auth.Config{
		Keys: o.keys, JWKSURL: o.jwksURL, Issuer: o.issuer, Audience: o.audience, Leeway: o.leeway, Logger: logger,
	}
	if o.leeway == 0 {
		config.Leeway = -1 // none; 0 would be the default
	}
	return auth.NewVerifier(ctx, config)
}
