package main

import (
	"context"
	"fmt"
	"slices"
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
		return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
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
			if who := byAnother(g.EndedBy); who != "" {
				when += " by " + who
			}
		}
		p.labelled(g.ID+"  ", because(g.State, g.Reason)+", "+when)
		p.say(4, "%s: %s", businessOf(g.Business, g.BusinessName), strings.Join(g.Scopes, " "))
	}
}

// because is a state, and why, if that says more.
func because(state, reason string) string {
	if reason == "" || reason == state {
		return state
	}
	return state + " (" + reason + ")"
}

// businessOf names a business: by its id, for its name is its own word, and others may
// have the same (RD-4).
func businessOf(id, name string) string { return strings.TrimSpace(id + " " + name) }

// newDisconnectCmd ends a grant.
func newDisconnectCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "disconnect GRANT",
		Short: "End what you allowed at a business",
		Long: `End a grant: its tokens are deleted here, and revoked at the business if it
has a way for that. What it says tells which. Grants and their ids are listed by
pactctl grants.

It asks first; --yes answers. An operation of unknown outcome that was sent
under the grant can not be reconciled once that has ended.`,
		Example: `  pactctl grants
  pactctl disconnect grant-3f9k2m
  pactctl disconnect grant-3f9k2m --yes -o json`,
		Args: cobra.ExactArgs(1),
	}
	p := newProfile(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
			list, err := ag.Grants(ctx, c)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(list, func(g agent.GrantView) bool { return g.ID == args[0] })
			if i < 0 {
				return noGrant(args[0], list)
			}
			before := list[i]
			if before.State == "active" {
				open, err := ag.Reviews(ctx, c, false)
				if err != nil {
					return err
				}
				if err := a.confirm(ctx, p.app.hints.disconnectQuestion(before, open)); err != nil {
					return err
				}
			}
			v, err := ag.Disconnect(ctx, c, args[0])
			if err != nil {
				return err
			}
			return a.print(v, func(pr *printer) { printDisconnected(pr, v, before.State != "active") })
		})
	}
	return cmd
}

// noGrant says which grants a business has, if it was named instead of one.
func noGrant(id string, list []agent.GrantView) error {
	var active []string
	for _, g := range list {
		if g.Business == id && g.State == "active" {
			active = append(active, g.ID)
		}
	}
	if len(active) > 0 {
		return fmt.Errorf("%s is a business: name its grant, %s", id, strings.Join(active, " or "))
	}
	return fmt.Errorf("there is no grant %q: pactctl grants lists their ids", id)
}

// disconnectQuestion tells what ends with a grant; open is what waits for the owner.
func (h hints) disconnectQuestion(g agent.GrantView, open []agent.ReviewItem) string {
	text := fmt.Sprintf("This ends %s at %s: %s.", g.ID, businessOf(g.Business, g.BusinessName), strings.Join(g.Scopes, " "))
	for _, v := range open {
		if v.Kind == agent.ReviewOperation && v.Business == g.Business {
			text += fmt.Sprintf(" The outcome of %s there is unknown: if it was sent under this grant, it can not be reconciled after that (before: %s).", v.ID, h.text("pactctl reconcile "+v.Conversation))
		}
	}
	return clean(text) + " End it?"
}

// printDisconnected says what a disconnect did; ended: the grant had ended before.
func printDisconnected(p *printer, v agent.DisconnectView, ended bool) {
	g := v.Grant
	switch {
	case g.State == "superseded":
		p.say(0, "Grant %s had ended: a newer grant took its place, see pactctl grants.", g.ID)
	case ended && g.State == "disconnected":
		p.say(0, "Grant %s had been disconnected already, %s.", g.ID, p.ago(g.Ended))
	case g.State == "disconnected":
		p.say(0, "Grant %s is disconnected here.", g.ID)
	default:
		p.say(0, "Grant %s had ended: %s.", g.ID, because(g.State, g.Reason))
	}
	if ended {
		return
	}
	if v.RevokedAtBusiness {
		p.say(0, "%s confirmed that it revoked it.", g.BusinessName)
	} else {
		p.say(0, "Not revoked at %s: %s.", g.BusinessName, strings.TrimSuffix(v.Detail, "."))
	}
}
