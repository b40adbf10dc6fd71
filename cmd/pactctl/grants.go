package main

import (
	"context"
	"errors"
	"fmt"
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
		Args: unknownCommand,
	}
	p := newProfile(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return p.with(cmd.Context(), func(ctx context.Context, ag *agent.Agent, c agent.Caller) error {
			list, err := ag.Grants(ctx, c)
			if err != nil {
				return err
			}
			return a.print(map[string]any{"grants": list}, func(pr *printer) { printGrants(pr, list) })
		})
	}
	cmd.AddCommand(&cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "The same as pactctl grants",
		Example: "  pactctl grants list",
		Args:    cobra.NoArgs,
		RunE:    cmd.RunE,
	})
	return cmd
}

// printGrants writes two lines a grant, so that its id and permissions stand whole.
func printGrants(p *printer, list []agent.GrantView) {
	if len(list) == 0 {
		p.line("No grants.")
	}
	for _, g := range list {
		when := "until " + p.at(g.Expires)
		if !g.Ended.IsZero() {
			when = "ended " + p.ago(g.Ended)
		}
		p.say(0, "%s  %s, %s", g.ID, g.State, when)
		p.say(4, "%s: %s", g.BusinessName, strings.Join(g.Scopes, " "))
	}
}

// newDisconnectCmd ends a grant.
func newDisconnectCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "disconnect GRANT",
		Short: "End what you allowed at a business",
		Long: `End a grant: its tokens are deleted here, and revoked at the business if it
has a way for that. What it says tells which. Grants and their ids are listed by
pactctl grants.`,
		Example: `  pactctl grants
  pactctl disconnect grant-3f9k2m`,
		Args: cobra.ExactArgs(1),
	}
	p := newProfile(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return p.with(cmd.Context(), func(ctx context.Context, ag *agent.Agent, c agent.Caller) error {
			v, err := ag.Disconnect(ctx, c, args[0])
			if errors.Is(err, agent.ErrNotFound) {
				return fmt.Errorf("there is no grant %q: pactctl grants lists their ids", args[0])
			}
			if err != nil {
				return refused(err)
			}
			return a.print(v, func(pr *printer) { printDisconnected(pr, v) })
		})
	}
	return cmd
}

func printDisconnected(p *printer, v agent.DisconnectView) {
	g := v.Grant
	switch g.State {
	case "superseded":
		p.say(0, "Grant %s had ended: a newer grant took its place, see pactctl grants.", g.ID)
	case "disconnected":
		p.say(0, "Grant %s is disconnected here.", g.ID)
	default:
		p.say(0, "Grant %s had ended: %s.", g.ID, g.State)
	}
	if v.RevokedAtBusiness {
		p.say(0, "%s confirmed that it revoked it.", g.BusinessName)
	} else {
		p.say(0, "Not revoked at %s: %s.", g.BusinessName, strings.TrimSuffix(v.Detail, "."))
	}
}
