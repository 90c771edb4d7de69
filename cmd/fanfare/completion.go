package main

import (
	"context"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

const (
	// completionTimeout bounds how long a shell waits for names from a server; it
	// then shows those that have come.
	completionTimeout = time.Second
	// maxCompletionPages bounds how many streams are read for their names.
	maxCompletionPages = 10
)

// flagWords are the words that flags take, or begin with. A flag that is not
// among them, nor among those of files, takes what nobody can guess.
var flagWords = map[string][]cobra.Completion{
	"color":            {"auto", "always", "never"},
	"from":             {"oldest", "live"},
	"content-type":     {"application/json", "text/plain", "application/octet-stream"},
	"migrate":          {"auto", "off"},
	"log-level":        {"debug", "info", "warn", "error"},
	"log-format":       {"text", "json"},
	"retention-age":    {"24h", "7d", "30d", anyWord, inheritWord},
	"stream-retention": {"24h", "7d", "30d", inheritWord},
	"http":             {"127.0.0.1:7480", "off"},
	"grpc":             {defaultAddress, unixPrefix + "/"},
	"server":           {defaultAddress, unixPrefix + "/"},
	"store":            {"sqlite:", "postgres://"},
	"database":         {"postgres://"},
}

// beginnings are flags whose words may go on.
var beginnings = []string{"grpc", "server", "store", "database"}

// fileFlags take the name of a file, directoryFlags that of a directory.
var (
	fileFlags      = []string{"file", "reference", tokenFileFlag, "jwt-secret-file", "jwt-public-key-file"}
	directoryFlags = []string{"data-dir"}
)

// addCompletion makes all commands below root complete their arguments and
// flags, and explains how a shell learns of it.
func (p *program) addCompletion(root *cobra.Command) {
	for _, command := range root.Commands() {
		switch command.Name() {
		case "publish", "subscribe", "close":
			command.ValidArgsFunction = p.completeStream
		case "health":
			command.ValidArgsFunction = cobra.FixedCompletions([]cobra.Completion{"liveness", fanfarev1.FanfareService_ServiceDesc.ServiceName}, cobra.ShellCompDirectiveNoFileComp)
		case "policy":
			for _, c := range command.Commands() {
				if c.Name() != "list" {
					c.ValidArgsFunction = p.completePolicy
				}
			}
		case "completion":
			explainCompletion(command)
		case "help":
			command.Example = "  fanfare help publish\n  fanfare help policy set"
		}
	}
	eachCommand(root, p.completeFlags)
}

// completeFlags completes the values of a command's flags, and offers no files
// where they make no sense.
func (p *program) completeFlags(cmd *cobra.Command) {
	if cmd.ValidArgsFunction == nil && cmd.ValidArgs == nil && !cmd.HasSubCommands() {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	complete := func(f *pflag.Flag) {
		if _, done := cmd.GetFlagCompletionFunc(f.Name); done || slices.Contains(fileFlags, f.Name) {
			return
		}
		// Its error is that there is no such flag.
		_ = cmd.RegisterFlagCompletionFunc(f.Name, p.flagCompletion(f.Name))
	}
	cmd.NonInheritedFlags().VisitAll(complete)
}

func (p *program) flagCompletion(name string) cobra.CompletionFunc {
	words, known := flagWords[name]
	switch {
	case name == "channel":
		return p.completeChannel
	case slices.Contains(directoryFlags, name):
		return func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		}
	case slices.Contains(beginnings, name):
		return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace)
	case known:
		return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
	default:
		return cobra.NoFileCompletions
	}
}

// explainCompletion teaches by example how a shell is told.
func explainCompletion(completion *cobra.Command) {
	completion.Short = "Make a shell complete commands, flags, channels and scopes"
	completion.Long = `Prints a script that makes a shell complete commands, flags and their values, and
the channels and scopes that are on the server: of those only the names that are
one plain word. Bash needs its package bash-completion.`
	completion.Example = `  source <(fanfare completion bash)         # in ~/.bashrc
  source <(fanfare completion zsh)          # in ~/.zshrc, after compinit
  fanfare completion fish | source          # in ~/.config/fish/config.fish
  fanfare completion powershell | Out-String | Invoke-Expression`
	// Without one, a shell that is misspelt would be answered with the help.
	completion.RunE = action(func(cmd *cobra.Command, _ []string) error { return cmd.Help() })
	for _, shell := range completion.Commands() {
		for line := range strings.Lines(completion.Example) {
			if strings.Contains(line, "completion "+shell.Name()) {
				shell.Example = strings.TrimRight(line, "\n")
			}
		}
	}
}

// completeStream completes CHANNEL and SCOPE.
func (p *program) completeStream(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return p.completeChannel(cmd, nil, "")
	case 1:
		return offer(p.streamNames(cmd, args[0], (*fanfarev1.Stream).GetScope)), cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

func (p *program) completeChannel(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return offer(p.streamNames(cmd, "", (*fanfarev1.Stream).GetChannel)), cobra.ShellCompDirectiveNoFileComp
}

// completePolicy completes CHANNEL by those that have a policy or a stream.
func (p *program) completePolicy(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c := p.completionConnection(cmd)
	var names []string
	// Without an answer there is nothing to offer, and nobody to tell.
	if answer, err := c.listPolicies(cmd.Context()); err == nil {
		for _, policy := range answer.GetPolicies() {
			names = append(names, policy.GetChannel())
		}
	}
	names = append(names, p.streamNames(cmd, "", (*fanfarev1.Stream).GetChannel)...)
	return offer(names), cobra.ShellCompDirectiveNoFileComp
}

// streamNames returns a name of each stream, of those of a channel if it is not
// empty: what can be had in a short time, nothing from a server that is away.
func (p *program) streamNames(cmd *cobra.Command, channel string, name func(*fanfarev1.Stream) string) (names []string) {
	c := p.completionConnection(cmd)
	_ = c.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn) error {
		client := fanfarev1.NewFanfareServiceClient(conn)
		request := &fanfarev1.ListStreamsRequest{Channel: channel, PageSize: streamsPageSize}
		for range maxCompletionPages {
			page, err := client.ListStreams(ctx, request)
			if err != nil {
				return err
			}
			for _, stream := range page.GetStreams() {
				names = append(names, name(stream))
			}
			if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
				break
			}
		}
		return nil
	})
	return names
}

// completionConnection leads to the server that the command line or the
// environment names.
func (p *program) completionConnection(cmd *cobra.Command) *connection {
	c := &connection{server: defaultAddress, timeout: completionTimeout}
	if server := p.env[variableName("server")]; server != "" {
		c.server = server
	}
	if f := cmd.Flags().Lookup("server"); f != nil && f.Changed {
		c.server = f.Value.String()
	}
	c.token.fixed = p.env[variableName(tokenFlag)]
	c.token.file = p.env[variableName(tokenFileFlag)]
	if f := cmd.Flags().Lookup(tokenFileFlag); f != nil && f.Changed {
		c.token.file = f.Value.String()
	}
	return c
}

// offer returns those names that a shell may put on a command line: each once,
// in order.
func offer(names []string) []cobra.Completion {
	names = slices.DeleteFunc(names, func(name string) bool { return !typable(name) })
	slices.Sort(names)
	return slices.Compact(names)
}

// typable reports whether a name is one word to every shell, and no flag. Others
// are not offered: whoever may publish chooses names, and scripts of completion
// put a common beginning of several names on the command line, and evaluate it,
// as it is.
func typable(name string) bool {
	if name == "" || name[0] == '-' || strings.HasPrefix(name, "_activeHelp_") {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./:@+,=%", r)
	})
}
