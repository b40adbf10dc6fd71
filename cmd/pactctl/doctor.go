package main

import (
	"context"
	"errors"
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
		var checks []agent.Check
		err := p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) (err error) {
			checks, err = ag.Doctor(ctx, c)
			return err
		})
		var closed *openError
		if errors.As(err, &closed) {
			checks, err = checksOfClosed(closed), nil
		}
		if err != nil {
			return err
		}
		failed := 0
		for i, check := range checks {
			checks[i].Detail, checks[i].Fix = a.hints.text(check.Detail), a.hints.text(check.Fix)
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
	}
	return cmd
}

// checkNames are the checks of agent.Doctor.
var checkNames = []string{"policy", "profile key", "store", "signer", "identity", "clock", "key set", "audiences", "approvals", "sign-ins", "evidence", "operations"}

// checksOfClosed is what can be told of a profile that cannot be opened.
func checksOfClosed(e *openError) []agent.Check {
	fix := "end every program that uses the profile, keep a copy of its folder, and restore the folder from a backup"
	if errors.Is(e.err, agent.ErrProfileKey) {
		fix = "do what it says: nothing is lost yet"
	}
	var out []agent.Check
	for _, name := range checkNames {
		c := agent.Check{Name: name, State: agent.CheckUnknown, Detail: "the profile cannot be opened: see the check of the " + e.check}
		if name == e.check {
			c.State, c.Detail, c.Fix = agent.CheckFailed, oneLine(e.Error()), fix
		}
		out = append(out, c)
	}
	return out
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
