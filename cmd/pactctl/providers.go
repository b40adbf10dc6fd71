package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
)

// newProvidersCmd keeps the audiences that providers assigned to the issuer.
func newProvidersCmd(a *app) *cobra.Command {
	cmd := newGroupCmd("providers", "Keep the audiences that providers assigned to your issuer")
	cmd.Long = `Keep the audiences that providers assigned to your issuer.

An audience tells a provider that a token is meant for it. It is what the
provider said when the issuer was registered there, never what a card says. An
entry here counts before what the signer has registered.`
	cmd.Example = `  pactctl providers list
  pactctl providers add https://provider.example.com --audience aud-7f3a
  pactctl providers remove https://provider.example.com`
	p := newProfile(a, cmd)
	cmd.AddCommand(newProvidersListCmd(p), newProvidersAddCmd(p), newProvidersRemoveCmd(p))
	return cmd
}

func newProvidersListCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the providers that are known, and whether they are ready",
		Long: `List the providers that are known, and whether they are ready. Where the signer
cannot be asked what it has registered, stderr says so, and "complete" of the
JSON is false.`,
		Example: `  pactctl providers list
  pactctl providers list -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				list, err := ag.Providers(ctx, c)
				if err != nil {
					return err
				}
				s, err := ag.Status(ctx, c)
				if err != nil {
					return err
				}
				complete := s.Identity == nil || s.Ready // else the signer did not say
				if !complete {
					p.app.note("The signer cannot be asked now, so what it has registered is missing, or as last known: %s: %s", s.Reason, p.app.hints.text(s.Detail))
				}
				return p.app.print(map[string]any{"providers": list, "complete": complete}, func(pr *printer) {
					if len(list) == 0 && !complete {
						pr.line("None was entered here; what the signer has registered is not known now.")
						return
					}
					if len(list) == 0 {
						pr.line("No providers. Add one with: pactctl providers add ORIGIN --audience AUDIENCE")
						return
					}
					printProviders(pr, list)
				})
			})
		},
	}
}

func printProviders(p *printer, list []agent.ProviderView) {
	var rows [][]string
	for _, v := range list {
		from := v.Source
		if who := byAnother(v.By); who != "" {
			from += ", by " + who
		}
		rows = append(rows, []string{v.Origin, from, v.State, v.Audience, v.Label})
	}
	p.table([]string{"ORIGIN", "FROM", "STATE", "AUDIENCE", "LABEL"}, rows)
}

func newProvidersAddCmd(p *profile) *cobra.Command {
	var audience, label string
	cmd := &cobra.Command{
		Use:     "add ORIGIN --audience AUDIENCE",
		Aliases: []string{"set"},
		Short:   "Enter a provider's audience, or change it",
		Example: `  pactctl providers add https://provider.example.com --audience aud-7f3a \
      --label "Example"`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if audience == "" {
				return usagef("--audience AUDIENCE is required: the provider told it when the issuer was registered")
			}
			p.makes = true
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				v, err := ag.AddProvider(ctx, c, args[0], audience, label)
				if err != nil {
					return err
				}
				return p.app.print(v, func(pr *printer) { pr.say(0, "Provider %s has audience %s.", v.Origin, v.Audience) })
			})
		},
	}
	cmd.Flags().StringVar(&audience, "audience", "", "`AUDIENCE` that the provider assigned")
	cmd.Flags().StringVar(&label, "label", "", "`TEXT` to remember it by")
	return cmd
}

func newProvidersRemoveCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:     "remove ORIGIN",
		Aliases: []string{"rm", "delete"},
		Short:   "Remove a provider's audience that was entered here",
		Example: `  pactctl providers remove https://provider.example.com`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
				if err := ag.RemoveProvider(ctx, c, args[0]); err != nil {
					return notThere(err, "entry for provider", args[0], "providers list")
				}
				return p.app.print(map[string]any{"origin": args[0], "removed": true}, func(pr *printer) { pr.say(0, "Provider %s is removed.", args[0]) })
			})
		},
	}
}
