package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// newCredentialsCmd makes and ends bearer credentials.
func newCredentialsCmd(a *app) *cobra.Command {
	cmd := newGroupCmd("credentials", "Make, rotate and revoke bearer credentials")
	cmd.GroupID = groupOperator
	cmd.Example = `  pactctl credentials create --name laptop
  pactctl credentials list
  pactctl credentials rotate ID
  pactctl credentials revoke ID --reason "left"`
	t := newTarget(cmd)
	t.issuerFlag(cmd)
	cmd.AddCommand(newCredentialsCreateCmd(a, t), newCredentialsListCmd(a, t), newCredentialsShowCmd(a, t),
		newCredentialsRotateCmd(a, t), newCredentialsRevokeCmd(a, t))
	return cmd
}

// ownSecret is the operator's own secret instead of a generated one.
type ownSecret struct{ path string }

func (o *ownSecret) flag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.path, "credential-file", "", "`FILE` that holds your own secret of 16 to 4096 characters (- is stdin) instead of a generated one")
}

func (o *ownSecret) read(stdin io.Reader) (string, error) {
	if o.path == "" {
		return "", nil
	}
	r := stdin
	if o.path != "-" {
		f, err := os.Open(o.path)
		if err != nil {
			return "", fmt.Errorf("--credential-file: %w", err)
		}
		defer f.Close()
		r = f
	}
	line, err := bufio.NewReader(io.LimitReader(r, 8192)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("--credential-file: %w", err)
	}
	secret := strings.TrimRight(line, "\r\n")
	if n := len([]rune(secret)); n < 16 || n > 4096 {
		return "", fmt.Errorf("--credential-file: the first line has %d characters; a credential has 16 to 4096", n)
	}
	return secret, nil
}

func newCredentialsCreateCmd(a *app, t *target) *cobra.Command {
	var (
		req     signerv1.CreateCredentialRequest
		expires time.Duration
		out     secretOut
		own     ownSecret
	)
	cmd := &cobra.Command{
		Use:   "create --name NAME",
		Short: "Make a credential; its secret is shown this once",
		Long: `Make a credential, the secret by which a caller signs. It is shown this once: on
stdout, or with --out in a new file. The signer keeps only a hash.`,
		Example: `  pactctl credentials create --name laptop
  pactctl credentials create --name ci --expires-in 30d --out ci.credential
  pactctl credentials create --name ci -o json | jq -r .credential`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&req.Name, "name", "", "`NAME` of the caller, unique among active credentials (required)")
	f.Var((*days)(&expires), "expires-in", "`DURATION` after which it ends, such as 24h or 30d")
	out.flag(cmd)
	own.flag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if strings.TrimSpace(req.Name) == "" {
			return usagef("--name is required")
		}
		return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
			req.Issuer = s.issuer
			if expires > 0 {
				req.ExpiresIn = durationpb.New(expires)
			}
			var err error
			if req.Credential, err = own.read(a.stdin); err != nil {
				return err
			}
			return a.newCredential(&out, func() (*signerv1.CreateCredentialResponse, error) {
				return s.CreateCredential(ctx, &req)
			})
		})
	}
	return cmd
}

// newCredential makes a credential and shows it this once.
func (a *app) newCredential(out *secretOut, create func() (*signerv1.CreateCredentialResponse, error)) error {
	if err := out.open(); err != nil {
		return err
	}
	resp, err := create()
	if err != nil {
		out.discard()
		return err
	}
	if err := out.write(resp.Credential); err != nil {
		return err
	}
	v := messageJSON(resp.Info)
	if out.path == "" {
		v = append(v, member{"credential", resp.Credential})
	} else {
		v = append(v, member{"credentialFile", out.path})
	}
	return a.print(v, func(p *printer) {
		p.fields(
			"id", resp.Info.Id,
			"name", resp.Info.Name,
			"issuer", resp.Info.Issuer,
			"subject", resp.Info.Subject,
			"expires", or(p.at(when(resp.Info.ExpiresAt)), "never"),
		)
		p.line("")
		if out.path != "" {
			p.line("The credential is in %s.", out.path)
			return
		}
		p.line("The credential, shown this once:")
		p.line("")
		p.raw(resp.Credential)
	})
}

// allCredentials reads the whole list.
func allCredentials(ctx context.Context, s *operator) (*signerv1.ListCredentialsResponse, error) {
	all := &signerv1.ListCredentialsResponse{}
	for req := (&signerv1.ListCredentialsRequest{Issuer: s.issuer, PageSize: pageSize}); ; {
		resp, err := s.ListCredentials(ctx, req)
		if err != nil {
			return nil, err
		}
		all.Credentials = append(all.Credentials, resp.Credentials...)
		if req.PageToken = resp.NextPageToken; req.PageToken == "" {
			return all, nil
		}
	}
}

func newCredentialsListCmd(a *app, t *target) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List all credentials of an issuer, without their secrets",
		Example: `  pactctl credentials list
  pactctl credentials list -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
				all, err := allCredentials(ctx, s)
				if err != nil {
					return err
				}
				return a.print(messageJSON(all), func(p *printer) { printCredentials(p, all.Credentials) })
			})
		},
	}
}

func printCredentials(p *printer, credentials []*signerv1.Credential) {
	if len(credentials) == 0 {
		p.line("No credentials. Make one with: pactctl credentials create --name NAME")
		return
	}
	var rows [][]string
	for _, c := range credentials {
		rows = append(rows, []string{c.Id, c.State, p.ago(when(c.CreatedAt)), or(p.ago(when(c.ExpiresAt)), "never"), c.Name})
	}
	p.table([]string{"ID", "STATE", "CREATED", "EXPIRES", "NAME"}, rows)
}

func newCredentialsShowCmd(a *app, t *target) *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show one credential, without its secret",
		Example: `  pactctl credentials show ID
  pactctl credentials show ID -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
				all, err := allCredentials(ctx, s)
				if err != nil {
					return err
				}
				for _, c := range all.Credentials {
					if c.Id == args[0] {
						return a.print(messageJSON(c), func(p *printer) { printCredential(p, c) })
					}
				}
				return fmt.Errorf("there is no credential %q: see pactctl credentials list", args[0])
			})
		},
	}
}

func printCredential(p *printer, c *signerv1.Credential) {
	p.fields(
		"id", c.Id,
		"name", c.Name,
		"issuer", c.Issuer,
		"subject", c.Subject,
		"state", c.State,
		"created", p.at(when(c.CreatedAt)),
		"rotated", p.at(when(c.RotatedAt)),
		"expires", or(p.at(when(c.ExpiresAt)), "never"),
		"revoked", p.at(when(c.RevokedAt)),
		"reason", c.Reason,
	)
}

func newCredentialsRotateCmd(a *app, t *target) *cobra.Command {
	var (
		req     signerv1.RotateCredentialRequest
		expires time.Duration
		out     secretOut
		own     ownSecret
	)
	cmd := &cobra.Command{
		Use:   "rotate ID",
		Short: "Replace a credential's secret; the subject stays",
		Long: `Replace a credential's secret. The old one ends at once, the subject stays. The
new one is shown this once: on stdout, or with --out in a new file.`,
		Example: `  pactctl credentials rotate ID
  pactctl credentials rotate ID --out ci.credential --yes --reason "yearly"`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why, for the audit log")
	cmd.Flags().Var((*days)(&expires), "expires-in", "`DURATION` after which the credential ends; by default its end stays as it is")
	out.flag(cmd)
	own.flag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
			req.Issuer, req.Id = s.issuer, args[0]
			if expires > 0 {
				req.ExpiresIn = durationpb.New(expires)
			}
			if err := a.confirm(ctx, fmt.Sprintf("Replace the secret of credential %s? The old one ends at once.", args[0])); err != nil {
				return err
			}
			var err error
			if req.Credential, err = own.read(a.stdin); err != nil {
				return err
			}
			return a.newCredential(&out, func() (*signerv1.CreateCredentialResponse, error) {
				return s.RotateCredential(ctx, &req)
			})
		})
	}
	return cmd
}

func newCredentialsRevokeCmd(a *app, t *target) *cobra.Command {
	var req signerv1.RevokeCredentialRequest
	cmd := &cobra.Command{
		Use:   "revoke ID",
		Short: "End a credential for good",
		Example: `  pactctl credentials revoke ID --reason "left"
  pactctl credentials revoke ID --yes`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why, for the audit log")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
			req.Issuer, req.Id = s.issuer, args[0]
			if err := a.confirm(ctx, fmt.Sprintf("End credential %s for good?", args[0])); err != nil {
				return err
			}
			c, err := s.RevokeCredential(ctx, &req)
			if err != nil {
				return err
			}
			return a.print(messageJSON(c), func(p *printer) { p.say(0, "Credential %s (%s) is revoked.", c.Id, c.Name) })
		})
	}
	return cmd
}
