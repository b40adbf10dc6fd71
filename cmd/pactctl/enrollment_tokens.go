package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// newEnrollmentTokensCmd makes and ends single-use enrolment tokens.
func newEnrollmentTokensCmd(a *app) *cobra.Command {
	cmd := newGroupCmd("enrollment-tokens", "Make single-use tokens that let a device enrol")
	cmd.GroupID = groupOperator
	cmd.Long = `Make single-use tokens that let a device enrol with an issuer whose enrolment
mode is "token". A token is shown this once; the signer keeps only a hash.`
	cmd.Example = `  pactctl enrollment-tokens create --note "Ada's phone"
  pactctl enrollment-tokens list
  pactctl enrollment-tokens revoke ID`
	t := newTarget(cmd)
	t.issuerFlag(cmd)
	cmd.AddCommand(newEnrollmentTokensCreateCmd(a, t), newEnrollmentTokensListCmd(a, t), newEnrollmentTokensRevokeCmd(a, t))
	return cmd
}

func newEnrollmentTokensCreateCmd(a *app, t *target) *cobra.Command {
	var (
		req     signerv1.CreateEnrollmentTokenRequest
		expires time.Duration
		out     secretOut
	)
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a token; it is shown this once",
		Example: `  pactctl enrollment-tokens create --note "Ada's phone" --expires-in 1h
  pactctl enrollment-tokens create -o json   # {"id", "token", …}`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&req.Note, "note", "", "what it is for")
	cmd.Flags().Var((*days)(&expires), "expires-in", "`DURATION` after which it ends, at most 30d; by default 24h")
	out.flag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
			req.Issuer = s.issuer
			if expires > 0 {
				req.ExpiresIn = durationpb.New(expires)
			}
			if err := out.open(); err != nil {
				return err
			}
			resp, err := s.CreateEnrollmentToken(ctx, &req)
			if err != nil {
				out.discard()
				return err
			}
			if err := out.write(resp.Token); err != nil {
				return err
			}
			v := messageJSON(resp.Info)
			if out.path == "" {
				v = append(v, member{"token", resp.Token})
			} else {
				v = append(v, member{"tokenFile", out.path})
			}
			return a.print(v, func(p *printer) {
				p.fields("id", resp.Info.Id, "issuer", resp.Info.Issuer, "note", resp.Info.Note, "expires", p.at(when(resp.Info.ExpiresAt)))
				p.line("")
				if out.path != "" {
					p.line("The enrolment token is in %s.", out.path)
					return
				}
				p.line("The enrolment token, shown this once:")
				p.line("")
				p.raw(resp.Token)
			})
		})
	}
	return cmd
}

func newEnrollmentTokensListCmd(a *app, t *target) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List all enrolment tokens of an issuer, without their secrets",
		Example: `  pactctl enrollment-tokens list
  pactctl enrollment-tokens list -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
				all := &signerv1.ListEnrollmentTokensResponse{}
				for req := (&signerv1.ListEnrollmentTokensRequest{Issuer: s.issuer, PageSize: pageSize}); ; {
					resp, err := s.ListEnrollmentTokens(ctx, req)
					if err != nil {
						return err
					}
					all.Tokens = append(all.Tokens, resp.Tokens...)
					if req.PageToken = resp.NextPageToken; req.PageToken == "" {
						break
					}
				}
				return a.print(messageJSON(all), func(p *printer) { printEnrollmentTokens(p, all.Tokens) })
			})
		},
	}
}

func printEnrollmentTokens(p *printer, tokens []*signerv1.EnrollmentToken) {
	if len(tokens) == 0 {
		p.line("No enrolment tokens.")
		return
	}
	var rows [][]string
	for _, t := range tokens {
		use := t.Note
		if t.Thumbprint != "" {
			use = t.Thumbprint
		}
		rows = append(rows, []string{t.Id, t.State, p.ago(when(t.ExpiresAt)), use})
	}
	p.table([]string{"ID", "STATE", "EXPIRES", "DEVICE OR NOTE"}, rows)
}

func newEnrollmentTokensRevokeCmd(a *app, t *target) *cobra.Command {
	var req signerv1.RevokeEnrollmentTokenRequest
	cmd := &cobra.Command{
		Use:   "revoke ID",
		Short: "End an unused token",
		Example: `  pactctl enrollment-tokens revoke ID --reason "sent to the wrong person"
  pactctl enrollment-tokens revoke ID --yes`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why, for the audit log")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
			req.Issuer, req.Id = s.issuer, args[0]
			if err := a.confirm(ctx, fmt.Sprintf("End enrolment token %s for good?", args[0])); err != nil {
				return err
			}
			x, err := s.RevokeEnrollmentToken(ctx, &req)
			if err != nil {
				return err
			}
			return a.print(messageJSON(x), func(p *printer) { p.line("Enrolment token %s is %s.", x.Id, x.State) })
		})
	}
	return cmd
}
