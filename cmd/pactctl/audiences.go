package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// newAudiencesCmd keeps the audience registry.
func newAudiencesCmd(a *app) *cobra.Command {
	cmd := newGroupCmd("audiences", "Map Provider origins to the audiences they assigned")
	cmd.GroupID = groupOperator
	cmd.Long = `Map the origin of a Provider to the audience that it assigned to the issuer. The
signer mints tokens for these audiences and no others.`
	cmd.Example = `  pactctl audiences set https://provider.example.com pact:provider
  pactctl audiences list
  pactctl audiences remove https://provider.example.com`
	t := newTarget(cmd)
	t.issuerFlag(cmd)
	cmd.AddCommand(newAudiencesListCmd(a, t), newAudiencesSetCmd(a, t), newAudiencesRemoveCmd(a, t))
	return cmd
}

func newAudiencesListCmd(a *app, t *target) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the audience registry of an issuer",
		Example: `  pactctl audiences list
  pactctl audiences list -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
				resp, err := s.ListAudiences(ctx, &signerv1.ListAudiencesRequest{Issuer: s.issuer})
				if err != nil {
					return err
				}
				return a.print(messageJSON(resp), func(p *printer) { printAudiences(p, resp.Audiences) })
			})
		},
	}
}

func printAudiences(p *printer, audiences []*signerv1.Audience) {
	if len(audiences) == 0 {
		p.line("No audiences. Add one with: pactctl audiences set ORIGIN AUDIENCE")
		return
	}
	var rows [][]string
	for _, x := range audiences {
		rows = append(rows, []string{x.Origin, x.Audience, fmt.Sprintf("%s by %s", p.ago(when(x.SetAt)), x.SetBy)})
	}
	p.table([]string{"ORIGIN", "AUDIENCE", "SET"}, rows)
}

func newAudiencesSetCmd(a *app, t *target) *cobra.Command {
	var req signerv1.SetAudienceRequest
	cmd := &cobra.Command{
		Use:   "set ORIGIN AUDIENCE",
		Short: "Map a Provider's origin to its audience",
		Long: `Map a Provider's origin to the audience that it assigned. An origin that is
mapped already gets the new audience; an audience that another origin has is
refused.`,
		Example: `  pactctl audiences set https://provider.example.com pact:provider
  pactctl audiences set https://provider.example.com pact:new --reason "moved"`,
		Args: cobra.ExactArgs(2),
	}
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why, for the audit log")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
			req.Issuer, req.Origin, req.Audience = s.issuer, args[0], args[1]
			x, err := s.SetAudience(ctx, &req)
			if err != nil {
				return err
			}
			return a.print(messageJSON(x), func(p *printer) { p.say(0, "%s has audience %s.", x.Origin, x.Audience) })
		})
	}
	return cmd
}

func newAudiencesRemoveCmd(a *app, t *target) *cobra.Command {
	var req signerv1.RemoveAudienceRequest
	cmd := &cobra.Command{
		Use:     "remove ORIGIN",
		Aliases: []string{"rm"},
		Short:   "Forget a Provider's origin",
		Example: `  pactctl audiences remove https://provider.example.com
  pactctl audiences remove https://provider.example.com --yes --reason "closed"`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why, for the audit log")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
			req.Issuer, req.Origin = s.issuer, args[0]
			if err := a.confirm(ctx, fmt.Sprintf("Forget %s? Its audience gets no more tokens.", args[0])); err != nil {
				return err
			}
			if _, err := s.RemoveAudience(ctx, &req); err != nil {
				return err
			}
			return a.print(object{{"origin", args[0]}, {"removed", true}}, func(p *printer) { p.say(0, "%s is forgotten.", args[0]) })
		})
	}
	return cmd
}
