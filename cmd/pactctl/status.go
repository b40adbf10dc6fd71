package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
)

// newStatusCmd tells whether the agent can act, and as whom.
func newStatusCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Tell who you are, and whether the signer signs",
		Long: `Tell who you are, and whether the signer signs. The signer is asked anew. The
exit code is 0 also if something stands in the way: it is told.`,
		Example: `  pactctl status
  pactctl status -o json | jq .ready`,
		Args: cobra.NoArgs,
	}
	p := newProfile(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
			v, err := ag.Status(ctx, c)
			if err != nil {
				return err
			}
			v.Detail = a.hints.text(v.Detail)
			return a.print(v, func(pr *printer) { printStatus(pr, v) })
		})
	}
	return cmd
}

func printStatus(p *printer, v agent.StatusView) {
	if v.Ready {
		p.line("Ready.")
	} else {
		p.say(0, "Not ready: %s: %s", v.Reason, v.Detail)
	}
	if v.Identity != nil {
		printIdentity(p, *v.Identity)
	}
	if l := v.KeyLost; l != nil {
		p.say(0, "The profile's key was lost at %s, and with it %s, %s and the device key or credential: pactctl enroll",
			p.clock(l.At, toMinute), plural(l.Grants, "grant"), plural(l.SignIns, "sign-in"))
	}
	if v.Development {
		p.line("Development mode is on.")
	}
	c := v.Counts
	p.line("%s, %s, %s", plural(c.ActiveGrants, "active grant"), plural(c.ExpiredGrants, "expired grant"), plural(c.Conversations, "conversation"))
	if c.PendingApprovals > 0 {
		p.line("%s pending: pactctl approvals list", plural(c.PendingApprovals, "approval"))
	}
	if c.PendingAuthorizations > 0 {
		p.line("%s pending: pactctl authorization list", plural(c.PendingAuthorizations, "sign-in"))
	}
	if c.OutcomeUnknown > 0 {
		p.say(0, "%s of unknown outcome, not to be repeated by another route: pactctl review list", plural(c.OutcomeUnknown, "operation"))
	}
	if c.EvidenceToReview > 0 {
		p.line("%s to look at: pactctl review list", plural(c.EvidenceToReview, "receipt"))
	}
}
