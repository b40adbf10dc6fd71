package main

import (
	"context"

	"github.com/spf13/cobra"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// newRegisterCmd registers the issuer with a Provider.
func newRegisterCmd(a *app) *cobra.Command {
	var req signerv1.RegisterProviderRequest
	cmd := &cobra.Command{
		Use:     "register PROVIDER --name NAME",
		GroupID: groupOperator,
		Short:   "Register the issuer with a Provider",
		Long: `Register the issuer and its key set with a Provider, at PROVIDER/api/platforms,
by a JWT that the issuer signs for itself. It works for issuers that sign ES256.

The audience is not part of the answer: the Provider tells it to you some other
way. Then map it with: pactctl audiences set ORIGIN AUDIENCE.`,
		Example: `  pactctl register https://provider.example.com --name my-agents`,
		Args:    cobra.ExactArgs(1),
	}
	t := newTarget(cmd)
	t.issuerFlag(cmd)
	cmd.Flags().StringVar(&req.Name, "name", "", "`NAME` of the platform there: a-z, 0-9 and -, 2 to 63 characters (required)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if req.Name == "" {
			return usagef("--name is required")
		}
		return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
			req.Issuer, req.Provider = s.issuer, args[0]
			resp, err := s.RegisterProvider(ctx, &req)
			if err != nil {
				return err
			}
			return a.print(messageJSON(resp), func(p *printer) { printRegistration(p, args[0], resp) })
		})
	}
	return cmd
}

func printRegistration(p *printer, provider string, r *signerv1.RegisterProviderResponse) {
	what := "is now registered"
	if !r.Created {
		what = "was already registered alike"
	}
	p.say(0, "%s %s at %s.", r.Issuer, what, provider)
	state := "yes"
	if !r.Enabled {
		state = "not yet: the Provider has to enable it"
	}
	p.fields("platform", r.PlatformId, "name", r.Name, "key set", r.JwksUri, "enabled", state)
	p.line("When the Provider tells you the audience: pactctl audiences set ORIGIN AUDIENCE")
}
