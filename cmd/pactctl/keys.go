package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// newKeysCmd lists the signing keys.
func newKeysCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "keys",
		GroupID: groupOperator,
		Short:   "List the signing keys and their schedule",
		Long: `List the signing keys of every issuer, or of one, and when each is published,
signs, retires and leaves the key set.`,
		Example: `  pactctl keys
  pactctl keys --issuer https://pa.example.com -o json`,
		Args: cobra.NoArgs,
	}
	t := newTarget(cmd)
	t.issuerFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
			resp, err := s.ListKeys(ctx, &signerv1.ListKeysRequest{Issuer: s.issuer})
			if err != nil {
				return err
			}
			return a.print(messageJSON(resp), func(p *printer) { printKeys(p, resp.Keys) })
		})
	}
	return cmd
}

// printKeys writes keys by issuer, several lines each, so that the kid stands whole.
func printKeys(p *printer, keys []*signerv1.Key) {
	issuer := ""
	for _, k := range keys {
		if k.Issuer != issuer {
			if issuer != "" {
				p.line("")
			}
			issuer = k.Issuer
			p.line("%s", issuer)
		}
		p.line("  %s  %s  %-9s  %s", k.Kid, k.Algorithm, k.State, servedBy(k))
		if k.RevokedAt != nil { // what else was planned for it does not happen
			p.line("      published  %s", p.plan(k.PublishAt))
			if at := when(k.SignAt); !at.IsZero() && at.Before(when(k.RevokedAt)) {
				p.line("      signed     %s", p.plan(k.SignAt))
			}
			p.line("      revoked    %s", p.plan(k.RevokedAt))
			continue
		}
		p.line("      published  %s", p.plan(k.PublishAt))
		wait := ""
		if k.State == "published" && len(k.ServedBy) < int(k.Replicas) {
			wait = ", once all serve it"
		}
		p.line("      signs      %s%s", p.plan(k.SignAt), wait)
		p.line("      retires    %s", p.plan(k.RetireAt))
		p.line("      removed    %s", p.plan(k.RemoveAt))
	}
	if len(keys) == 0 {
		p.line("No keys.")
	}
}

// servedBy is how many of the live replicas serve a key.
func servedBy(k *signerv1.Key) string {
	return fmt.Sprintf("served %d/%d", len(k.ServedBy), k.Replicas)
}

// newJWKSCmd prints the published key set.
func newJWKSCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "jwks",
		GroupID: groupOperator,
		Short:   "Print the published key set",
		Long:    "Print the JWKS document of an issuer byte for byte as it is served, whatever\n--output says.",
		Example: `  pactctl jwks
  pactctl jwks | jq -r '.keys[].kid'`,
		Args: cobra.NoArgs,
	}
	t := newTarget(cmd)
	t.issuerFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
			resp, err := s.GetKeySet(ctx, &signerv1.GetKeySetRequest{Issuer: s.issuer})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.stdout, resp.Jwks)
			return err
		})
	}
	return cmd
}
