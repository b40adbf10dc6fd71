package main

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
)

// newDiscoverCmd reads a business's card.
func newDiscoverCmd(a *app) *cobra.Command {
	var refresh bool
	cmd := &cobra.Command{
		Use:   "discover DOMAIN|CARD_URL|ID",
		Short: "Find a business and tell what it offers",
		Long: `Find a business by its domain or its card's URL, or one that was found before by
its id, and tell what it offers. What a card says about itself is the business's
word. Exit code 1 if it cannot be used.`,
		Example: `  pactctl discover larkline.example
  pactctl discover https://provider.example.com/a2a/air/agent-card.json -o json`,
		Args: cobra.ExactArgs(1),
	}
	p := newProfile(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
			req := agent.ParseBusiness(args[0])
			req.Refresh = refresh
			v, err := ag.Discover(ctx, c, req)
			if err != nil {
				return cardHint(err, req.CardURL)
			}
			if err := a.print(v, func(pr *printer) { printBusiness(pr, v) }); err != nil {
				return err
			}
			if !v.Supported {
				return errors.New("unsupported: " + v.Reason)
			}
			return nil
		})
	}
	cmd.Flags().BoolVar(&refresh, "refresh", false, "fetch the card also if the stored one is still good")
	return cmd
}

// cardHint says where cards are, if there is none at a URL without a path.
func cardHint(err error, cardURL string) error {
	u, bad := url.Parse(cardURL)
	var r *agent.Refusal
	if cardURL == "" || bad != nil || strings.Trim(u.Path, "/") != "" || !errors.As(err, &r) || r.Reason != agent.ReasonNotFound && r.Reason != agent.ReasonInvalidJSON {
		return err
	}
	hinted := *r
	hinted.Detail += ": the URL of a card ends in /.well-known/agent-card.json"
	return &hinted
}

func printBusiness(p *printer, v agent.BusinessView) {
	p.line("%s", v.Name)
	p.paragraph(v.Description, 2)
	p.fields(
		"id", v.ID,
		"card", v.CardURL,
		"found through", strings.Join(v.Chain, " -> "),
		"provider", v.Provider,
		"interface", v.InterfaceURL,
		"profile", string(v.Profile),
		"sign-in by", v.Issuer,
		"good until", p.at(v.Expires),
		"found by", byAnother(v.DiscoveredBy),
		"fetched by", byAnother(v.FetchedBy),
	)
	for _, problem := range v.Problems {
		p.say(0, "problem: %s", problem)
	}
	if len(v.Scopes) > 0 {
		printScopes(p, "Permissions that it knows:", v.Scopes)
	}
}
