package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
)

// newPolicyCmd shows what may be done at all, and keeps the owner's part of it.
func newPolicyCmd(a *app) *cobra.Command {
	cmd := newGroupCmd("policy", "Show and set whether PACT may be used")
	cmd.Long = `Show and set whether PACT may be used. PACT_DISABLED and the administrator's
policy file come before what is set here: they can only narrow it.
PACT_DISABLED switches PACT off, whatever it is but empty, 0 or false.`
	cmd.Example = `  pactctl policy show
  pactctl policy prefer require-pact
  pactctl policy off`
	p := newProfile(a, cmd)
	cmd.AddCommand(newPolicyShowCmd(p), newPolicyPreferCmd(p), newPolicySwitchCmd(p, true), newPolicySwitchCmd(p, false))
	return cmd
}

func newPolicyShowCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Show what the administrator and this profile allow",
		Example: `  pactctl policy show
  pactctl policy show -o json | jq .available`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.with(cmd.Context(), p.showPolicy)
		},
	}
}

func (p *profile) showPolicy(ctx context.Context, ag personal, c agent.Caller) error {
	v, err := ag.Policy(ctx, c)
	if err != nil {
		return err
	}
	v.Detail = p.app.hints.text(v.Detail)
	return p.app.print(v, func(pr *printer) { printPolicy(pr, v) })
}

func printPolicy(p *printer, v agent.PolicyView) {
	if v.Available {
		p.line("PACT may be used.")
	} else {
		p.say(0, "PACT may not be used: %s: %s", v.Reason, v.Detail)
	}
	env := "not set"
	if v.DisabledByEnv { // in the process that the agent is in
		env = "set: off"
	}
	pairs := []string{
		"PACT_DISABLED", env,
		"administrator", onOff(v.Policy.Enabled),
		"automatic routing", onOff(v.Policy.AutoRoute),
		"blocked providers", or(strings.Join(v.Policy.BlockedProviders, " "), "none"),
		"profile", onOff(v.Enabled),
		"preference", or(string(v.Preference), "none, which is as disabled"),
		"changed by", byAnother(v.By),
	}
	for _, s := range v.Sources {
		state := "not there"
		switch {
		case s.Problem != "":
			state = s.Problem
		case s.Read:
			state = "read"
		}
		pairs = append(pairs, "policy file", s.Path+": "+strings.TrimPrefix(state, "policy file "+s.Path+": "))
	}
	p.fields(pairs...)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func newPolicyPreferCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:   "prefer PREFERENCE",
		Short: "Choose between PACT and other ways to a business",
		Long: `Choose between PACT and other ways to a business: prefer-pact takes PACT where a
business has it and else leaves other ways open, require-pact leaves none, and
disabled does not use PACT. A preference allows nothing by itself.`,
		Example: `  pactctl policy prefer prefer-pact
  pactctl policy prefer require-pact -o json`,
		Args:      cobra.ExactArgs(1),
		ValidArgs: []string{string(agent.PreferPACT), string(agent.RequirePACT), string(agent.DisabledPACT)},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(cmd.ValidArgs, args[0]) {
				return usagef("%q is no preference: say %s", args[0], listedOr(cmd.ValidArgs))
			}
			p.makes = true
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				if err := ag.SetPreference(ctx, c, agent.Preference(args[0])); err != nil {
					return err
				}
				return p.showPolicy(ctx, ag, c)
			})
		},
	}
}

func newPolicySwitchCmd(p *profile, on bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "off",
		Short:   "Switch PACT off in this profile; nothing is lost",
		Example: "  pactctl policy off",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.makes = true
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				if err := ag.SetEnabled(ctx, c, on); err != nil {
					return err
				}
				return p.showPolicy(ctx, ag, c)
			})
		},
	}
	if on {
		cmd.Use, cmd.Short, cmd.Example = "on", "Switch PACT on in this profile", "  pactctl policy on"
	}
	return cmd
}
