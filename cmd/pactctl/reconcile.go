package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
)

// newReconcileCmd asks what became of an operation of unknown outcome.
func newReconcileCmd(a *app) *cobra.Command {
	var req agent.ReconcileRequest
	cmd := &cobra.Command{
		Use:   "reconcile [CONVERSATION]",
		Short: "Ask a business what became of an operation",
		Long: `Ask a business what became of an operation whose outcome is unknown. If there is
only one it need not be named.

The same message goes again, with the same id and the same bytes: a business
that got it answers with the reply that it gave then. One that never got it
carries it out now, so what may change something is shown whole and asked about
as pactctl send does; --yes answers.

Only a reply ends the unknown outcome; anything else leaves it as it was. Where
there is nothing to ask about (nothing_to_reconcile), where the business cannot
tell (reconcile_impossible), or where identity, card, provider or permission are
not those of then any more (authority_changed), nothing is sent.

Exit codes: 0 answered, 1 not known yet or refused, 3 you must approve, 130
interrupted.`,
		Example: `  pactctl reconcile
  pactctl reconcile c-3f9k2m
  pactctl reconcile --business larkline.example --yes -o json`,
		Args: cobra.MaximumNArgs(1),
	}
	p := newProfile(a, cmd)
	cmd.Flags().StringVar(&req.Business, "business", "", "`BUSINESS` of the operation: its id, domain or card's URL")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := notEmpty(cmd, "business"); err != nil {
			return err
		}
		if len(args) > 0 {
			if req.Conversation = strings.TrimSpace(args[0]); req.Conversation == "" {
				return usagef("CONVERSATION is empty: name one, or leave it out")
			}
		}
		return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
			r, err := ag.Reconcile(ctx, c, req)
			if err != nil {
				return err
			}
			return p.ended(r, func(pr *printer) { printReply(pr, r) })
		})
	}
	return cmd
}
