package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
)

// newAuthorizeCmd asks a business for permissions.
func newAuthorizeCmd(a *app) *cobra.Command {
	var req agent.AuthorizeRequest
	cmd := &cobra.Command{
		Use:   "authorize BUSINESS --scope SCOPE",
		Short: "Sign in at a business and allow the agent something there",
		Long: `Sign in at a business and allow the agent something there. On a terminal the
link is shown and the end of the sign-in waited for; elsewhere the sign-in is
left pending and the exit code is 3.`,
		Example: `  pactctl authorize larkline.example --scope flights:upcoming:read
  pactctl authorize larkline.example --scope flights:rebook \
      --purpose "move my Friday flight"`,
		Args: cobra.ExactArgs(1),
	}
	p := newProfile(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(req.Scopes) == 0 {
			return usagef("--scope ID is required: pactctl discover lists the permissions of a business")
		}
		req.Business = args[0]
		return p.with(cmd.Context(), func(ctx context.Context, ag *agent.Agent, c agent.Caller) error {
			r, err := ag.Authorize(ctx, c, req)
			if err != nil {
				return err
			}
			return p.ended(r, func(pr *printer) { printGranted(pr, r) })
		})
	}
	cmd.Flags().StringSliceVar(&req.Scopes, "scope", nil, "permission `ID` of the card; may be repeated")
	cmd.Flags().StringVar(&req.Purpose, "purpose", "", "`TEXT` that reminds you what it is for")
	return cmd
}

func printGranted(p *printer, r agent.Result) {
	if g := r.Grant; g != nil {
		p.say(0, "%s allows: %s", g.BusinessName, strings.Join(g.Scopes, " "))
		p.fields("grant", g.ID, "until", p.at(g.Expires))
	}
}

// newAuthorizationCmd shows and ends sign-ins.
func newAuthorizationCmd(a *app) *cobra.Command {
	cmd := newGroupCmd("authorization", "List sign-ins, wait for one, give one up")
	cmd.Aliases = []string{"authorizations"}
	cmd.Example = `  pactctl authorization list
  pactctl authorization wait signin-3f9k2m
  pactctl authorization cancel signin-3f9k2m`
	p := newProfile(a, cmd)
	cmd.AddCommand(newAuthorizationListCmd(p), newAuthorizationWaitCmd(p), newAuthorizationCancelCmd(p))
	return cmd
}

func newAuthorizationListCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List sign-ins, pending and ended",
		Example: `  pactctl authorization list
  pactctl authorization list -o json | jq '.authorizations[].state'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.with(cmd.Context(), func(ctx context.Context, ag *agent.Agent, c agent.Caller) error {
				list, err := ag.Authorizations(ctx, c)
				if err != nil {
					return err
				}
				return p.app.print(map[string]any{"authorizations": list}, func(pr *printer) {
					if len(list) == 0 {
						pr.line("No sign-ins.")
						return
					}
					var rows [][]string
					for _, v := range list {
						state, when := v.State, pr.ago(v.Settled)
						if v.State == "pending" {
							when = "ends " + pr.ago(v.Deadline)
						}
						rows = append(rows, []string{v.ID, state, when, v.BusinessName, strings.Join(v.Scopes, " ")})
					}
					pr.table([]string{"ID", "STATE", "WHEN", "BUSINESS", "SCOPES"}, rows)
				})
			})
		},
	}
}

func newAuthorizationWaitCmd(p *profile) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait ID",
		Short: "Show a pending sign-in's link again and wait for its end",
		Long: `Show a pending sign-in's link again, if this is a terminal, and wait for its
end. Exit code 3 if it is still pending when the wait is over.`,
		Example: `  pactctl authorization wait signin-3f9k2m
  pactctl authorization wait signin-3f9k2m --timeout 1m -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.with(cmd.Context(), func(ctx context.Context, ag *agent.Agent, c agent.Caller) error {
				if timeout > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, timeout)
					defer cancel()
				}
				r, err := ag.WaitAuthorization(ctx, c, args[0])
				if err != nil {
					return err
				}
				return p.ended(r, func(pr *printer) { printGranted(pr, r) })
			})
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "wait at most this `DURATION`")
	return cmd
}

func newAuthorizationCancelCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:     "cancel ID",
		Short:   "Give a pending sign-in up",
		Example: `  pactctl authorization cancel signin-3f9k2m`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.with(cmd.Context(), func(ctx context.Context, ag *agent.Agent, c agent.Caller) error {
				v, err := ag.CancelAuthorization(ctx, c, args[0])
				if err != nil {
					return err
				}
				return p.app.print(v, func(pr *printer) { pr.line("Sign-in %s is %s.", v.ID, v.State) })
			})
		},
	}
}
