package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fanfare-io/fanfare/backlog"
)

// boundFlags are the flags of fanfare policy set that change bounds.
type boundFlags struct{ backlog, retentionAge, streamRetention string }

func (b *boundFlags) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&b.backlog, "backlog", "", "how many of a stream's newest frames may be replayed: `N`, 0 for none, or inherit")
	f.StringVar(&b.retentionAge, "retention-age", "", "how old those may be: a `DURATION` such as 90m, 24h or 7d, any, or inherit")
	f.StringVar(&b.streamRetention, "stream-retention", "", "how long a stream is kept that is closed or has no frame left: a `DURATION`, or inherit")
	// FANFARE_BACKLOG is there for fanfare serve.
	onlyOnCommandLine(cmd, "backlog", "retention-age", "stream-retention")
}

// given reports whether the command line changes any bound.
func (b *boundFlags) given(cmd *cobra.Command) bool {
	f := cmd.Flags()
	return f.Changed("backlog") || f.Changed("retention-age") || f.Changed("stream-retention")
}

// change changes those bounds of a policy that stand on the command line.
func (b *boundFlags) change(cmd *cobra.Command, policy *backlog.Policy) error {
	var err error
	f := cmd.Flags()
	if f.Changed("backlog") {
		if policy.Backlog, err = parseBacklog(b.backlog); err != nil {
			return err
		}
	}
	if f.Changed("retention-age") {
		text := b.retentionAge
		if text == anyWord {
			text = "0"
		}
		if policy.RetentionAge, err = parseAge("retention-age", text, anyWord+" or "+inheritWord); err != nil {
			return err
		}
	}
	if f.Changed("stream-retention") {
		if policy.StreamRetention, err = parseAge("stream-retention", b.streamRetention, inheritWord); err != nil {
			return err
		}
	}
	return checkPolicy(*policy)
}

func (p *program) policySetCommand() *cobra.Command {
	var o policyOptions
	var bounds boundFlags
	cmd := &cobra.Command{
		Use:   "set CHANNEL",
		Short: "Change bounds for a channel, a prefix, or all channels",
		Long: `Changes the bounds that are given, leaves the others as they are, and shows the
outcome. "inherit" takes a bound back; a policy with no bound left is removed.

A change applies to existing streams at once. Frames that may no longer be
replayed are deleted soon after, and do not come back when a bound is raised.

It reads the policy and writes it: of two that change one policy at the same
time, the later may undo the earlier.`,
		Example: `  fanfare policy set chat/messages --backlog 5000
  fanfare policy set chat/messages --retention-age 7d            # the backlog stays 5000
  fanfare policy set chat/messages --backlog inherit
  fanfare policy set audit/ --prefix --backlog 1000000 --retention-age any --stream-retention 365d
  fanfare policy set --default --retention-age 24h`,
		RunE: action(func(cmd *cobra.Command, args []string) error {
			target, err := o.target(args)
			if err != nil {
				return err
			}
			if !bounds.given(cmd) {
				return usagef("nothing to change: give at least one of --backlog, --retention-age and --stream-retention")
			}
			// What is wrong with a flag is said before a server is asked.
			if err := bounds.change(cmd, &backlog.Policy{Channel: target.channel, Prefix: target.prefix}); err != nil {
				return err
			}
			set, err := o.policySet(cmd.Context())
			if err != nil {
				return err
			}
			policy := set.policy(target)
			if err := bounds.change(cmd, &policy); err != nil {
				return err
			}
			effective, err := o.setPolicy(cmd.Context(), policy)
			if err != nil {
				return err
			}
			return unprintedPolicy(p.printPolicy(&o, set.with(policy), target, effective))
		}),
	}
	o.addFlags(cmd)
	bounds.addFlags(cmd)
	return cmd
}

// unprintedPolicy adds to an error of standard output that the change is made.
func unprintedPolicy(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w; the policy is changed", err)
}

func (p *program) policyRemoveCommand() *cobra.Command {
	var o policyOptions
	cmd := &cobra.Command{
		Use:   "remove CHANNEL",
		Short: "Remove a policy: all its bounds are inherited again",
		Long: `Removes the policy of a channel, or with --prefix that of a prefix, and shows what
applies instead. With --default what is built in applies again. Removing a policy
that does not exist does nothing and is no error.`,
		Example: `  fanfare policy remove chat/messages
  fanfare policy remove metrics/ --prefix
  fanfare policy remove --default`,
		RunE: action(func(cmd *cobra.Command, args []string) error {
			target, err := o.target(args)
			if err != nil {
				return err
			}
			set, err := o.policySet(cmd.Context())
			if err != nil {
				return err
			}
			removed := backlog.Policy{Channel: target.channel, Prefix: target.prefix}
			effective, err := o.setPolicy(cmd.Context(), removed)
			if err != nil {
				return err
			}
			if before := set.policy(target); !before.Sets() {
				fmt.Fprintln(p.stderr, "there was no such policy")
			}
			return unprintedPolicy(p.printPolicy(&o, set.with(removed), target, effective))
		}),
	}
	o.addFlags(cmd)
	return cmd
}
