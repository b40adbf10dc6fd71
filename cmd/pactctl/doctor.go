package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
)

// newDoctorCmd finds what keeps the agent from working.
func newDoctorCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find what keeps the agent from working, and the fix",
		Long: `Find what keeps the agent from working, and the fix: signer, clock, published
keys, audiences, store, policy. Nothing is changed. Exit code 1 if a check
failed; warnings do not count.`,
		Example: `  pactctl doctor
  pactctl doctor -o json | jq '.checks[] | select(.state != "ok")'`,
		Args: cobra.NoArgs,
	}
	p := newProfile(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return p.with(cmd.Context(), func(ctx context.Context, ag *agent.Agent, c agent.Caller) error {
			checks, err := ag.Doctor(ctx, c)
			if err != nil {
				return err
			}
			failed := 0
			for _, check := range checks {
				if check.State == agent.CheckFailed {
					failed++
				}
			}
			view := map[string]any{"ok": failed == 0, "checks": checks}
			if err := a.print(view, func(pr *printer) { printChecked(pr, checks) }); err != nil {
				return err
			}
			if failed > 0 {
				return fmt.Errorf("%s failed", plural(failed, "check"))
			}
			return nil
		})
	}
	return cmd
}

// printChecked writes a line for each check, and below it the fix.
func printChecked(p *printer, checks []agent.Check) {
	wide := 0
	for _, c := range checks {
		wide = max(wide, len(c.Name))
	}
	for _, c := range checks {
		p.labelled(fmt.Sprintf("%-7s  %-*s  ", c.State, wide, c.Name), c.Detail)
		if c.Fix != "" {
			p.labelled(fmt.Sprintf("%-7s  %-*s  ", "", wide, ""), "fix: "+c.Fix)
		}
	}
}
