package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
)

// newReceiptsCmd shows what businesses signed.
func newReceiptsCmd(a *app) *cobra.Command {
	cmd := newGroupCmd("receipts", "Show and verify what businesses signed for")
	cmd.Long = `Show and verify what businesses signed for.

Verified means that the business signed this claim about a turn. It does not
mean that money moved, and it does not name the message.`
	cmd.Example = `  pactctl receipts list
  pactctl receipts show r-3f9k2m
  pactctl receipts verify`
	p := newProfile(a, cmd)
	cmd.AddCommand(newReceiptsListCmd(p), newReceiptsShowCmd(p), newReceiptsVerifyCmd(p))
	return cmd
}

func newReceiptsListCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List receipts, newest first",
		Example: `  pactctl receipts list
  pactctl receipts list -o json | jq '.receipts[].verdict'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.with(cmd.Context(), func(ctx context.Context, ag *agent.Agent, c agent.Caller) error {
				list, err := ag.Receipts(ctx, c)
				if err != nil {
					return err
				}
				return p.app.print(map[string]any{"receipts": list}, func(pr *printer) { printReceipts(pr, list) })
			})
		},
	}
}

func printReceipts(p *printer, list []agent.ReceiptView) {
	if len(list) == 0 {
		p.line("No receipts.")
		return
	}
	var rows [][]string
	for _, r := range list {
		rows = append(rows, []string{r.ID, string(r.Verdict), stamp(p, r.Received), r.BusinessName, or(actionNames(r.Actions), strings.Join(r.Issues, ", "))})
	}
	p.table([]string{"ID", "VERDICT", "RECEIVED", "BUSINESS", "ACTIONS"}, rows)
}

// printChecks lists receipts with their verdict on record and the new one.
func printChecks(p *printer, list []agent.ReceiptView) {
	if len(list) == 0 {
		p.line("No receipts.")
		return
	}
	var rows [][]string
	for _, r := range list {
		issues := slices.Concat(r.Issues, r.Recheck.Issues)
		slices.Sort(issues)
		rows = append(rows, []string{r.ID, string(r.Verdict), string(r.Recheck.Verdict), r.BusinessName, strings.Join(slices.Compact(issues), ", ")})
	}
	p.table([]string{"ID", "VERDICT", "NOW", "BUSINESS", "ISSUES"}, rows)
}

func actionNames(actions []agent.Action) string {
	names := make([]string, len(actions))
	for i, a := range actions {
		names[i] = a.Tool
	}
	return strings.Join(names, ", ")
}

func newReceiptsShowCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show one receipt",
		Example: `  pactctl receipts show r-3f9k2m
  pactctl receipts show r-3f9k2m -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.with(cmd.Context(), func(ctx context.Context, ag *agent.Agent, c agent.Caller) error {
				r, err := ag.Receipt(ctx, c, args[0])
				if err != nil {
					return err
				}
				return p.app.print(r, func(pr *printer) { printReceipt(pr, r) })
			})
		},
	}
}

func printReceipt(p *printer, r agent.ReceiptView) {
	p.fields(
		"receipt", r.ID,
		"verdict", string(r.Verdict),
		"issues", strings.Join(r.Issues, ", "),
		"business", r.BusinessName,
		"conversation", r.Conversation,
		"message", r.Message,
		"sent", p.at(r.Sent),
		"signed", p.at(r.Time),
		"permissions used", strings.Join(r.ScopesUsed, " "),
		"key", strings.TrimSpace(r.Algorithm+" "+r.KeyID),
		"SHA-256 of the JWS", r.Digest,
	)
	for _, a := range r.Actions {
		if a.ArgsHash != "" {
			p.line("action  %s  (arguments %s, not checked)", a.Tool, a.ArgsHash)
		} else {
			p.line("action  %s", a.Tool)
		}
	}
	for _, problem := range r.Problems {
		p.line("problem  %s", problem)
	}
}

func newReceiptsVerifyCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:   "verify [ID...]",
		Short: "Verify receipts again, by default all",
		Long: `Verify receipts again, by the keys that were kept with them, without the
network; a receipt for which no key could be had is tried with the business's
keys of today. VERDICT is the one on record, by which changes are held back, and
NOW what this check finds; a check that finds better changes the record only of
a receipt that was unverifiable. Exit code 1 unless both are verified for each.`,
		Example: `  pactctl receipts verify
  pactctl receipts verify r-3f9k2m -o json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.with(cmd.Context(), func(ctx context.Context, ag *agent.Agent, c agent.Caller) error {
				if len(args) == 0 {
					all, err := ag.Receipts(ctx, c)
					if err != nil {
						return err
					}
					for _, r := range all {
						args = append(args, r.ID)
					}
				}
				list, bad := []agent.ReceiptView{}, 0
				for _, id := range args {
					r, err := ag.VerifyStoredReceipt(ctx, c, id)
					if err != nil {
						return err
					}
					if r.Verdict != agent.VerdictVerified || r.Recheck.Verdict != agent.VerdictVerified {
						bad++
					}
					list = append(list, r)
				}
				if err := p.app.print(map[string]any{"receipts": list}, func(pr *printer) { printChecks(pr, list) }); err != nil {
					return err
				}
				if bad > 0 {
					return fmt.Errorf("%d of %s not verified", bad, plural(len(list), "receipt"))
				}
				return nil
			})
		},
	}
}
