package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pactsigner/pactsigner/agent"
)

// newAuthorizeCmd asks a business for permissions.
func newAuthorizeCmd(a *app) *cobra.Command {
	var req agent.AuthorizeRequest
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "authorize BUSINESS --scope SCOPE",
		Short: "Sign in at a business and allow the agent something there",
		Long: `Sign in at a business and allow the agent something there. On a terminal the
link is shown and the end of the sign-in waited for; elsewhere, with
--exit-on-input, or when --timeout is over, the sign-in is left pending and the
exit code is 3.`,
		Example: `  pactctl authorize larkline.example --scope flights:upcoming:read
  pactctl authorize larkline.example --scope flights:rebook \
      --purpose "move my Friday flight"`,
		Args: cobra.ExactArgs(1),
	}
	p := newProfile(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := notEmpty(cmd, "scope"); err != nil {
			return err
		}
		if err := positive(timeout); err != nil {
			return err
		}
		if len(req.Scopes) == 0 {
			return usagef("--scope ID is required: pactctl discover lists the permissions of a business")
		}
		if utf8.RuneCountInString(req.Purpose) > maxPurpose {
			return usagef("--purpose is longer than %d characters", maxPurpose)
		}
		req.Business = args[0]
		return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
			ctx, cancel := atMost(ctx, timeout)
			defer cancel()
			r, err := ag.Authorize(ctx, c, req)
			if err != nil {
				return err
			}
			return p.ended(r, func(pr *printer) { printGranted(pr, r, req.Scopes) })
		})
	}
	cmd.Flags().StringSliceVar(&req.Scopes, "scope", nil, "permission `ID` of the card; may be repeated")
	cmd.Flags().StringVar(&req.Purpose, "purpose", "", "`TEXT` of at most 300 characters that reminds you what it is for")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "wait at most this `DURATION`")
	return cmd
}

// maxPurpose is what a running agent takes (CP-3), in characters.
const maxPurpose = 300

// notEmpty refuses flags that were given without a value: they would be taken as not
// given.
func notEmpty(cmd *cobra.Command, names ...string) error {
	for _, name := range names {
		f := cmd.Flags().Lookup(name)
		if f == nil || !f.Changed {
			continue
		}
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		if len(values) == 0 || slices.ContainsFunc(values, func(v string) bool { return strings.TrimSpace(v) == "" }) {
			return usagef("--%s is empty: give a value, or leave the flag out", name)
		}
	}
	return nil
}

// positive refuses a --timeout that is over before it begins.
func positive(timeout time.Duration) error {
	if timeout < 0 {
		return usagef("--timeout %v is negative", timeout)
	}
	return nil
}

// atMost bounds a wait; 0 does not.
func atMost(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// printGranted tells what is allowed now; what was not asked for stands apart.
func printGranted(p *printer, r agent.Result, asked []string) {
	if g := r.Grant; g != nil {
		p.say(0, "%s allows: %s", g.BusinessName, strings.Join(g.Scopes, " "))
		if z := r.Authorization; z != nil {
			asked = slices.Concat(asked, z.Scopes)
		}
		if more := slices.DeleteFunc(slices.Clone(g.Scopes), func(id string) bool { return slices.Contains(asked, id) }); len(more) > 0 {
			p.say(0, "Not asked for: %s", strings.Join(more, " "))
		}
		p.fields("grant", g.ID, "until", p.at(g.Expires))
	}
}

// newAuthorizationCmd shows and ends sign-ins.
func newAuthorizationCmd(a *app) *cobra.Command {
	cmd := newGroupCmd("authorization", "List sign-ins, show one, wait for one, give one up")
	cmd.Aliases = []string{"authorizations"}
	cmd.Example = `  pactctl authorization list
  pactctl authorization status signin-3f9k2m
  pactctl authorization wait signin-3f9k2m
  pactctl authorization cancel signin-3f9k2m`
	p := newProfile(a, cmd)
	cmd.AddCommand(newAuthorizationListCmd(p), newAuthorizationStatusCmd(p), newAuthorizationWaitCmd(p), newAuthorizationCancelCmd(p))
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
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				list, err := ag.Authorizations(ctx, c)
				if err != nil {
					return err
				}
				return p.app.print(map[string]any{"authorizations": list}, func(pr *printer) { printAuthorizations(pr, list) })
			})
		},
	}
}

// printAuthorizations writes two lines a sign-in, as printGrants does.
func printAuthorizations(p *printer, list []agent.AuthorizationView) {
	if len(list) == 0 {
		p.line("No sign-ins.")
	}
	for _, v := range list {
		when := p.ago(v.Settled)
		if v.State == "pending" {
			when = "ends " + p.ago(v.Deadline)
		}
		p.labelled(v.ID+"  ", because(v.State, v.Reason)+", "+when)
		p.say(4, "%s: %s", businessOf(v.Business, v.BusinessName), strings.Join(v.Scopes, " "))
		if who := byAnother(v.Actor); who != "" {
			p.say(4, "asked for by %s", who)
		}
	}
}

func newAuthorizationStatusCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:     "status ID",
		Aliases: []string{"show"},
		Short:   "Show one sign-in, without its link",
		Long: `Show one sign-in, without its link. Exit code 0 if it was granted, 3 if it is
pending, 1 if it ended otherwise.`,
		Example: `  pactctl authorization status signin-3f9k2m
  pactctl authorization status signin-3f9k2m -o json | jq .state`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				list, err := ag.Authorizations(ctx, c)
				if err != nil {
					return err
				}
				i := slices.IndexFunc(list, func(v agent.AuthorizationView) bool { return v.ID == args[0] })
				if i < 0 {
					return notThere(agent.ErrNotFound, "sign-in", args[0], "authorization list")
				}
				v := list[i]
				if err := p.app.print(v, func(pr *printer) { printAuthorization(pr, v) }); err != nil {
					return err
				}
				switch {
				case v.State == "granted":
					return nil
				case v.State == "pending" && p.app.now().Before(v.Deadline):
					return actf("the sign-in is pending: go on with: pactctl authorization wait %s", v.ID)
				case v.State == "pending":
					return fmt.Errorf("the sign-in expired %s", p.app.aside().ago(v.Deadline))
				}
				return fmt.Errorf("the sign-in ended: %s", v.State)
			})
		},
	}
}

func printAuthorization(p *printer, v agent.AuthorizationView) {
	p.fields(
		"sign-in", v.ID,
		"business", businessOf(v.Business, v.BusinessName),
		"state", v.State,
		"reason", v.Reason,
		"asked for", strings.Join(v.Scopes, " "),
		"needed", strings.Join(v.Needed, " "),
		"purpose", v.Purpose,
		"asked for by", byAnother(v.Actor),
		"grant", v.Grant,
		"begun", p.at(v.Created),
		"ends", p.at(v.Deadline),
		"ended", p.at(v.Settled),
		"given up by", byAnother(v.SettledBy),
	)
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
			if err := positive(timeout); err != nil {
				return err
			}
			p.waitFor = args[0]
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				bounded, cancel := atMost(ctx, timeout)
				defer cancel()
				r, err := ag.WaitAuthorization(bounded, c, args[0])
				if err != nil && bounded.Err() != nil && ctx.Err() == nil { // over before the wait began
					r, err = signInNow(ctx, ag, c, args[0])
				}
				if err != nil {
					return notThere(err, "sign-in", args[0], "authorization list")
				}
				return p.ended(r, func(pr *printer) { printGranted(pr, r, nil) })
			})
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "wait at most this `DURATION`")
	return cmd
}

// signInNow is a sign-in as it stands, as the result of a wait that is over.
func signInNow(ctx context.Context, ag personal, c agent.Caller, id string) (agent.Result, error) {
	list, err := ag.Authorizations(ctx, c)
	if err != nil {
		return agent.Result{}, err
	}
	i := slices.IndexFunc(list, func(v agent.AuthorizationView) bool { return v.ID == id })
	switch {
	case i < 0:
		return agent.Result{}, agent.ErrNotFound
	case list[i].State != "pending": // there is nothing to wait for
		return ag.WaitAuthorization(ctx, c, id)
	}
	return agent.Result{
		Status: agent.StatusNeedsUserAction, Reason: agent.ReasonSignInPending, Business: list[i].Business, Authorization: &list[i],
	}, nil
}

func newAuthorizationCancelCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:     "cancel ID",
		Short:   "Give a pending sign-in up",
		Example: `  pactctl authorization cancel signin-3f9k2m`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				v, err := ag.CancelAuthorization(ctx, c, args[0])
				if err != nil {
					return notThere(err, "sign-in", args[0], "authorization list")
				}
				return p.app.print(v, func(pr *printer) { pr.line("Sign-in %s is %s.", v.ID, v.State) })
			})
		},
	}
}
