package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

const (
	tokenFlag     = "token"
	tokenFileFlag = "token-file"
)

// clientToken is the token that a command shows the server, from a file or a variable.
type clientToken struct {
	// file is the name of a file; fixed is what a variable has. Empty: none.
	file, fixed string

	mu sync.Mutex // guards what follows
	// last is what the file held when it was as info says.
	last string
	info fileState
}

// fileState tells whether a file has changed.
type fileState struct {
	changed time.Time
	size    int64
}

func (t *clientToken) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&t.file, tokenFileFlag, "", "show the server the token in this file, which is read again when it changes")
	f.StringVar(&t.fixed, tokenFlag, "", "the token itself, of the variable alone")
	_ = f.MarkHidden(tokenFlag) // its error is that there is no such flag
}

// refuseTokenOnCommandLine says why, and where it belongs instead.
func refuseTokenOnCommandLine(given map[string]bool) error {
	if !given[tokenFlag] {
		return nil
	}
	return usagef("a token on a command line can be read by everybody on this machine: put it into a file for --%s, or into %s", tokenFileFlag, variableName(tokenFlag))
}

// dialOptions add the token to calls, if there is one. The error says what is wrong with
// it now.
func (t *clientToken) dialOptions() ([]grpc.DialOption, error) {
	shown := t.credentials()
	if shown == nil {
		return nil, nil
	}
	if _, err := t.current(); err != nil {
		return nil, usagef("%v", err)
	}
	return []grpc.DialOption{grpc.WithPerRPCCredentials(shown)}, nil
}

// credentials are what calls show; nil: nothing.
func (t *clientToken) credentials() credentials.PerRPCCredentials {
	if t.file == "" && t.fixed == "" {
		return nil
	}
	return t
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (t *clientToken) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := t.current()
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. What is between here
// and the server is the user's to decide.
func (*clientToken) RequireTransportSecurity() bool { return false }

// current is the token as it is now.
func (t *clientToken) current() (string, error) {
	if t.file == "" {
		return checkToken(variableName(tokenFlag), t.fixed)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	info, err := os.Stat(t.file)
	if err != nil {
		return "", fmt.Errorf("--%s %s: %w", tokenFileFlag, t.file, err.(*os.PathError).Err)
	}
	state := fileState{info.ModTime(), info.Size()}
	if t.last != "" && state == t.info {
		return t.last, nil
	}
	text, err := readSmallFile(t.file)
	if err != nil {
		return "", fmt.Errorf("--%s %s: %w", tokenFileFlag, t.file, err)
	}
	token, err := checkToken("--"+tokenFileFlag+" "+t.file, string(bytes.TrimSpace(text)))
	if err != nil {
		return "", err
	}
	t.last, t.info = token, state
	return token, nil
}

// checkToken refuses what cannot be sent. It does not repeat it.
func checkToken(place, token string) (string, error) {
	strange := func(r rune) bool { return r <= ' ' || r > '~' }
	if token == "" || strings.ContainsFunc(token, strange) {
		return "", fmt.Errorf("%s holds no token: one is letters, digits and punctuation without spaces", place)
	}
	return token, nil
}
