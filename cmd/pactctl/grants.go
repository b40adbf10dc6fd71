package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
)

// newGrantsCmd lists what businesses allow.
func newGrantsCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "grants",
		Short: "List what you allowed at businesses",
		Example: `  pactctl grants
  pactctl grants -o json | jq '.grants[] | select(.state == "active")'`,
		Args: cobra.NoArgs,
	}
	p := newProfile(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return p.with(cmd.Context(), func(ctx context.Context, ag *agent.Agent, c agent.Caller) error {
			list, err := ag.Grants(ctx, c)
			if err != nil {
				return err
			}
			return a.print(map[string]any{"grants": list}, func(pr *printer) {
				if len(list) == 0 {
					pr.line("No grants.")
					return
				}
				var rows [][]string
				for _, g := range list {
					when := "until " + stamp(pr, g.Expires)
					if !g.Ended.IsZero() {
						when = "ended " + pr.ago(g.Ended)
					}
					rows = append(rows, []string{g.ID, g.State, when, g.BusinessName, strings.Join(g.Scopes, " ")})
				}
				pr.table([]string{"ID", "STATE", "WHEN", "BUSINESS", "SCOPES"}, rows)
			})
		})
	}
	return cmd
}

// newDisconnectCmd ends a grant.
func newDisconnectCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "disconnect GRANT",
		Short: "End what you allowed at a business",
		Long: `End a grant: its tokens are deleted here, and revoked at the business if it
has a way for that. What it says tells which.`,
		Example: `  pactctl disconnect grant-3f9k2m`,
		Args:    cobra.ExactArgs(1),
	}
	p := newProfile(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return p.with(cmd.Context(), func(ctx context.Context, ag *agent.Agent, c agent.Caller) error {
			v, err := ag.Disconnect(ctx, c, args[0])
			if err != nil {
				return refused(err)
			}
			return a.print(v, func(pr *printer) {
				pr.line("Grant %s is %s here.", v.Grant.ID, v.Grant.State)
				if v.RevokedAtBusiness {
					pr.line("%s confirmed that it revoked it.", v.Grant.BusinessName)
				} else {
					pr.line("Not revoked at %s: %s", v.Grant.BusinessName, v.Detail)
				}
			})
		})
	}
	return cmd
}
