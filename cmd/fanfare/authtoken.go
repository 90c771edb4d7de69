package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fanfare-io/fanfare/service/auth"
)

// tokenOptions are the flags of fanfare token.
type tokenOptions struct {
	secretFiles              []string
	subscribe, publish, work []string
	admin                    bool
	subject                  string
	issuer, audience         string
	expiresIn                time.Duration
}

func (p *program) tokenCommand() *cobra.Command {
	var o tokenOptions
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Sign a token, for development and tests",
		Long: `Signs a token with the secret that a server was given by --jwt-secret-file, and
prints it. Whoever has it may do what its flags say until it expires; in production
an issuer of your own hands out tokens, with claims of the same form.

--subscribe and --publish take CHANNEL=SCOPE, or CHANNEL alone for every scope of it.
Either may end in *, which stands for any rest. Neither can have a = here.`,
		Example: `  head -c 32 /dev/urandom | base64 > secret
  fanfare serve --jwt-secret-file secret
  fanfare token --jwt-secret-file secret --subscribe 'chat/*' --publish chat/messages=lobby > token
  fanfare publish chat/messages lobby --data hello --token-file token`,
		Args: noArguments,
		RunE: action(func(*cobra.Command, []string) error {
			token, err := o.sign()
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintln(p.stdout, token); err != nil {
				return &outputError{err}
			}
			return nil
		}),
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.secretFiles, "jwt-secret-file", nil, "the file with the secret, `[KID=]PATH`; of several the first is used")
	f.StringArrayVar(&o.subscribe, "subscribe", nil, "allow to subscribe to `CHANNEL[=SCOPE]`; may be repeated")
	f.StringArrayVar(&o.publish, "publish", nil, "allow to publish to `CHANNEL[=SCOPE]`; may be repeated")
	f.StringArrayVar(&o.work, "work", nil, "allow to take tasks of `CHANNEL[=GROUP]`; may be repeated")
	f.BoolVar(&o.admin, "admin", false, "allow to close streams, and to see and set policies")
	f.StringVar(&o.subject, "subject", "", "who the token is for (sub)")
	f.StringVar(&o.issuer, "jwt-issuer", "", "who issues it (iss), if the server asks for that")
	f.StringVar(&o.audience, "jwt-audience", "", "for which service (aud), if the server asks for that")
	f.DurationVar(&o.expiresIn, "expires-in", time.Hour, "for how long it is valid")
	onlyOnCommandLine(cmd, "subscribe", "publish", "work", "admin", "subject", "expires-in")
	return cmd
}

func (o *tokenOptions) sign() (string, error) {
	if len(o.secretFiles) == 0 {
		return "", usagef("--jwt-secret-file is needed: the file that the server was given")
	}
	if o.expiresIn < time.Second {
		return "", usagef("--expires-in must be at least 1s")
	}
	granted := auth.Permissions{Admin: o.admin}
	for _, right := range []struct {
		flag     string
		patterns []string
		to       *[]auth.Permission
	}{
		{"subscribe", o.subscribe, &granted.Subscribe}, {"publish", o.publish, &granted.Publish}, {"work", o.work, &granted.Work},
	} {
		var err error
		if *right.to, err = permissions(right.flag, right.patterns); err != nil {
			return "", err
		}
	}
	var key auth.Key
	err := readKeyFile("jwt-secret-file", o.secretFiles[0], func(id string, text []byte) (err error) {
		key, err = auth.ParseSecret(id, text)
		return err
	})
	if err != nil {
		return "", err
	}
	return auth.Sign(key, auth.Grant{
		Subject: o.subject, Issuer: o.issuer, Audience: o.audience, Lifetime: o.expiresIn, Permissions: granted,
	})
}

// permissions reads a flag's patterns of the form CHANNEL[=SCOPE].
func permissions(flag string, patterns []string) ([]auth.Permission, error) {
	var all []auth.Permission
	for _, pattern := range patterns {
		channel, scope, hasScope := strings.Cut(pattern, "=")
		if strings.Contains(scope, "=") {
			return nil, usagef("--%s %q has more than one =, and either a channel or a scope may be meant to have it: for such names, sign the claims with a library", flag, pattern)
		}
		if !hasScope {
			scope = "*"
		}
		all = append(all, auth.Permission{Channel: channel, Scope: scope})
	}
	return all, nil
}
