package conformance_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// secret signs the tokens of the cases.
const secret = "the secret of the conformance cases"

// guarded are the flags of servers that want tokens. Clocks differ by nothing here, so a
// token is good for as long as it says.
func guarded(t *testing.T) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--jwt-secret-file", file, "--jwt-leeway", "0s"}
}

// token returns one that allows everything, for so long from now.
func token(t *testing.T, lifetime time.Duration) string {
	t.Helper()
	everything := []map[string]string{{"channel": "*", "scope": "*"}}
	signed, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"exp":     time.Now().Add(lifetime).Unix(),
		"fanfare": map[string]any{"subscribe": everything, "publish": everything, "admin": true},
	}).SignedString([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// bearer sends a token with each call of the runner.
type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b bearer) RequireTransportSecurity() bool { return false }
