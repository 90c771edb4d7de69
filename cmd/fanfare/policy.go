package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service"
)

func (p *program) policyCommand() *cobra.Command {
	list := p.policyListCommand()
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Show and change how much of streams is kept",
		Long: `A policy bounds the streams of a channel, of all channels that begin with a
prefix, or, as the default, of all channels. It has three bounds:

  backlog            how many of a stream's newest frames may be replayed
  retention-age      how old those may be
  stream-retention   how long a stream is kept that is closed or has no frame left

A bound that a policy does not set is inherited: of the policies that match a
channel, that of exactly the channel comes first, then those of prefixes, the
longest first, then the default, then what is built in.

Alone, the command lists all policies. Bounds in brackets are inherited.`,
		Example: `  fanfare policy
  fanfare policy get chat/messages                               # what applies there
  fanfare policy set chat/messages --backlog 5000 --retention-age 7d
  fanfare policy set metrics/ --prefix --backlog 0               # all that begin with it
  fanfare policy set --default --stream-retention 30d
  fanfare policy remove metrics/ --prefix`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownSubcommand(cmd, args[0])
			}
			return nil
		},
		RunE: list.RunE,
	}
	cmd.Flags().AddFlagSet(list.Flags())
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if given := c.Flags().Args(); c == cmd && len(given) > 0 {
			return unknownSubcommand(cmd, given[0]) // the flag is most likely its own
		}
		return err
	})
	cmd.AddCommand(list, p.policyGetCommand(), p.policySetCommand(), p.policyRemoveCommand())
	return cmd
}

func unknownSubcommand(cmd *cobra.Command, word string) error {
	return fmt.Errorf("unknown command %q for %q", word, cmd.CommandPath())
}

func (p *program) policyListCommand() *cobra.Command {
	var c connection
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List all policies, as fanfare policy alone does",
		Long: `Lists what is built in and all policies, in byte order of their channels. Bounds
in brackets are inherited. With --json each policy is an object on a line, with
null for what it inherits, 0 for any age, and what is effective.`,
		Example: `  fanfare policy list
  fanfare policy list --json | jq -r 'select(.prefix) | .channel'`,
		Args: noArguments,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			answer, err := c.listPolicies(cmd.Context())
			if err != nil {
				return err
			}
			return p.output(func(out io.Writer) error { return printPolicies(out, p.display(p.stdout), asJSON, answer) })
		}),
	}
	c.addFlags(cmd)
	c.addTimeoutFlag(cmd, defaultTimeout, "how long to wait for the answer")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object for each policy")
	return cmd
}

func (c *connection) listPolicies(ctx context.Context) (answer *fanfarev1.ListPoliciesResponse, err error) {
	err = c.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		answer, err = fanfarev1.NewFanfareServiceClient(conn).ListPolicies(ctx, &fanfarev1.ListPoliciesRequest{})
		return err
	})
	return answer, err
}

// printPolicies prints all policies and what applies to their streams.
func printPolicies(out io.Writer, d display, asJSON bool, answer *fanfarev1.ListPoliciesResponse) error {
	set := policySetOf(answer)
	if asJSON {
		lines := d.jsonLines(out)
		for _, policy := range set.policies {
			if err := lines.write(newPolicyJSON(policy, set.effective(policyTarget{policy.Channel, policy.Prefix}))); err != nil {
				return err
			}
		}
		return nil
	}
	t := newTable(out, d, column{title: "APPLIES TO"}, column{title: "CHANNEL"},
		column{title: "BACKLOG", number: true}, column{title: "RETENTION AGE", number: true}, column{title: "STREAM RETENTION", number: true})
	t.row(policyRow("built-in", "", backlog.Policy{
		Backlog: &set.builtIn.Backlog, RetentionAge: &set.builtIn.RetentionAge, StreamRetention: &set.builtIn.StreamRetention,
	}, set.builtIn)...)
	for _, policy := range set.policies {
		target := policyTarget{policy.Channel, policy.Prefix}
		t.row(policyRow(target.kind(), policy.Channel, policy, set.effective(target))...)
	}
	return t.flush()
}

// policyRow is the row of a policy in the list.
func policyRow(kind, channel string, p backlog.Policy, b backlog.Bounds) []cell {
	return []cell{
		{kind, nil},
		{channel, nil},
		boundCell(p.Backlog != nil, backlogText(b.Backlog)),
		boundCell(p.RetentionAge != nil, retentionAgeText(b.RetentionAge)),
		boundCell(p.StreamRetention != nil, ageText(b.StreamRetention)),
	}
}

func boundCell(set bool, text string) cell {
	if set {
		return cell{text, nil}
	}
	return cell{"(" + text + ")", quietStyle}
}

// policyTarget is what a policy is for.
type policyTarget struct {
	channel string
	prefix  bool
}

// kind says what is meant by the channel.
func (t policyTarget) kind() string {
	switch {
	case !t.prefix:
		return "channel"
	case t.channel == "":
		return "default"
	default:
		return "prefix"
	}
}

// policyOptions are the flags that the commands for one policy share.
type policyOptions struct {
	connection
	prefix, byDefault bool
	json              bool
}

func (o *policyOptions) addFlags(cmd *cobra.Command) {
	o.connection.addFlags(cmd)
	o.addTimeoutFlag(cmd, defaultTimeout, "how long to wait for each answer")
	f := cmd.Flags()
	f.BoolVar(&o.prefix, "prefix", false, "CHANNEL is a prefix: the policy is for all channels that begin with it")
	f.BoolVar(&o.byDefault, "default", false, "the policy is the default of all channels; without CHANNEL")
	f.BoolVar(&o.json, "json", false, "print a JSON object")
	onlyOnCommandLine(cmd, "prefix", "default")
}

// target is what the arguments and flags name.
func (o *policyOptions) target(args []string) (policyTarget, error) {
	switch {
	case o.byDefault && len(args) == 0:
		return policyTarget{prefix: true}, nil
	case o.byDefault:
		return policyTarget{}, usagef("--default is for all channels: it takes no CHANNEL, got %q", args[0])
	case len(args) != 1:
		return policyTarget{}, usagef("one CHANNEL is needed, or --default; got %s", counted(len(args), "argument"))
	}
	t := policyTarget{args[0], o.prefix}
	return t, checkPolicy(backlog.Policy{Channel: t.channel, Prefix: t.prefix})
}

// checkPolicy refuses what every server refuses.
func checkPolicy(p backlog.Policy) error {
	return limitUsage(p.Validate(), map[string]string{
		"backlog": "backlog", "retention_age": "retention-age", "stream_retention": "stream-retention",
	})
}

func (p *program) policyGetCommand() *cobra.Command {
	var o policyOptions
	cmd := &cobra.Command{
		Use:   "get CHANNEL",
		Short: "Show what is set for a channel, and what applies to its streams",
		Long: `Shows which bounds are set for exactly this channel, and those that are effective
for its streams, with the policy that each comes from: that of the channel, of a
prefix, the default, or what is built in. With --prefix those for all channels
that begin with CHANNEL and have no policy of their own. It is no error if nothing
is set.`,
		Example: `  fanfare policy get chat/messages
  fanfare policy get chat/ --prefix
  fanfare policy get --default
  fanfare policy get chat/messages --json | jq .effective.backlog`,
		RunE: action(func(cmd *cobra.Command, args []string) error {
			target, err := o.target(args)
			if err != nil {
				return err
			}
			set, err := o.policySet(cmd.Context())
			if err != nil {
				return err
			}
			return p.printPolicy(&o, set, target, set.effective(target))
		}),
	}
	o.addFlags(cmd)
	return cmd
}

// policySet asks for all policies.
func (o *policyOptions) policySet(ctx context.Context) (policySet, error) {
	answer, err := o.listPolicies(ctx)
	return policySetOf(answer), err
}

// setPolicy replaces a policy and returns what applies from now on.
func (o *policyOptions) setPolicy(ctx context.Context, policy backlog.Policy) (bounds backlog.Bounds, err error) {
	err = o.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		answer, err := fanfarev1.NewFanfareServiceClient(conn).SetPolicy(ctx, &fanfarev1.SetPolicyRequest{Policy: service.EncodePolicy(policy)})
		bounds = boundsOf(answer.GetEffective())
		return err
	})
	return bounds, orUnanswered(err, "the policy may have been changed, and the same command again does no harm")
}

// printPolicy prints the policy of a target, what applies to its streams, and
// from where in the set that is.
func (p *program) printPolicy(o *policyOptions, set policySet, t policyTarget, b backlog.Bounds) error {
	d := p.display(p.stdout)
	policy, from := set.policy(t), set.sources(t)
	return p.output(func(out io.Writer) error {
		if o.json {
			object := newPolicyJSON(policy, b)
			object.Source = newSourcesJSON(from)
			return d.jsonLines(out).write(object)
		}
		rows := newTable(out, d, column{title: "BOUND"}, column{title: "SET", number: true}, column{title: "EFFECTIVE", number: true}, column{title: "SOURCE"})
		rows.row(boundRow("backlog", setText(policy.Backlog, backlogText), backlogText(b.Backlog), from.backlog)...)
		rows.row(boundRow("retention-age", setText(policy.RetentionAge, retentionAgeText), retentionAgeText(b.RetentionAge), from.retentionAge)...)
		rows.row(boundRow("stream-retention", setText(policy.StreamRetention, ageText), ageText(b.StreamRetention), from.streamRetention)...)
		return rows.flush()
	})
}

func boundRow(name, set, effective string, from source) []cell {
	style := quietStyle
	if set != inheritWord {
		style = nil
	}
	return []cell{{name, nil}, {set, style}, {effective, goodStyle}, {sourceText(from), quietStyle}}
}

// setText is a bound of a policy as the flags of set take it.
func setText[T uint64 | time.Duration](bound *T, text func(T) string) string {
	if bound == nil {
		return inheritWord
	}
	return text(*bound)
}

// output hands print a buffer for standard output.
func (p *program) output(print func(out io.Writer) error) error {
	out := bufio.NewWriter(p.stdout)
	if err := print(out); err != nil {
		return &outputError{err}
	}
	return flush(out)
}
