package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent/control"
)

// newAgentTokensCmd makes and ends what others use a running agent by.
func newAgentTokensCmd(a *app) *cobra.Command {
	cmd := newGroupCmd("tokens", "Make and revoke tokens for the control plane")
	cmd.Long = `Make and revoke tokens for the control plane of the profile's agent. On its
socket you need none; on a loopback address every caller does. A running agent
knows of a change at once.

What a token of each scope may do:
  read       see the profile: businesses, conversations, grants, receipts
  write      and look for businesses
  operator   and send messages, sign in for you and end grants; what needs your
             word becomes an approval
  admin      and give your word, change settings and enrol: all that you can
  assistant  see the profile, look for businesses and send messages; what needs
             your word becomes an approval`
	cmd.Example = `  pactctl agent tokens create --name editor --scope assistant --out editor.token
  pactctl agent tokens list
  pactctl agent tokens revoke editor`
	p := &profile{app: a}
	p.folderFlag(cmd)
	cmd.AddCommand(newAgentTokensCreateCmd(p), newAgentTokensListCmd(p), newAgentTokensRevokeCmd(p))
	return cmd
}

// tokens opens the tokens of a profile, on this machine alone: who may use an agent is
// not told to those who use it.
func (p *profile) tokens(do func(*control.Tokens) error) (err error) {
	if named, by, err := p.named(); err != nil {
		return err
	} else if named != "" {
		return onlyHere(by)
	}
	if err := p.noToken(); err != nil {
		return err
	}
	dir, err := p.folder()
	if err != nil {
		return err
	}
	store, made, err := p.openStore(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if made {
		p.app.note("There was no profile: a new one is in %s.", dir)
	}
	return do(control.NewTokens(store, principal, p.app.now))
}

// scopeNames are the scopes of tokens, from the least on.
func scopeNames() []string {
	var names []string
	for _, s := range control.Scopes() {
		names = append(names, string(s))
	}
	return names
}

// How long a token may live.
const (
	minTokenLife = time.Minute
	maxTokenLife = 366 * 24 * time.Hour
)

func newAgentTokensCreateCmd(p *profile) *cobra.Command {
	var req control.CreateToken
	var out secretOut
	cmd := &cobra.Command{
		Use:   "create --name NAME --scope SCOPE",
		Short: "Make a token; it is shown this once",
		Long: `Make a token of a scope, which pactctl agent tokens --help tells. It is shown
this once: on stdout, or with --out in a new file. Only a hash is kept. What is
done with it is recorded under its name, which no other token ever has.`,
		Example: `  pactctl agent tokens create --name editor --scope assistant --out editor.token
  pactctl agent tokens create --name ci --scope read --expires-in 30d
  pactctl agent tokens create --name ops --scope operator -o json | jq -r .token`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&req.Name, "name", "", "`NAME` of who uses it (required)")
	f.StringVar((*string)(&req.Scope), "scope", "", "`SCOPE`: "+strings.Join(scopeNames(), ", ")+" (required)")
	f.Var((*days)(&req.ExpiresIn), "expires-in", "`DURATION` after which it ends, such as 24h or 30d; at least 1m and at most 366d; by default 90d")
	out.flag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if req.Name == "" {
			return usagef("--name is required")
		}
		if _, err := control.ParseScope(string(req.Scope)); err != nil {
			return usagef("--scope: say %s", listedOr(scopeNames()))
		}
		if life := req.ExpiresIn; cmd.Flags().Changed("expires-in") && (life < minTokenLife || life > maxTokenLife) {
			return usagef("--expires-in: say 1m at least and 366d at most")
		}
		return p.tokens(func(t *control.Tokens) error { return p.newToken(cmd.Context(), t, req, &out) })
	}
	return cmd
}

// listedOr is "a", "a or b" or "a, b or c".
func listedOr(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// newToken makes a token and shows it this once.
func (p *profile) newToken(ctx context.Context, tokens *control.Tokens, req control.CreateToken, out *secretOut) error {
	if err := out.open(); err != nil {
		return err
	}
	t, secret, err := tokens.Create(ctx, req)
	if err != nil {
		out.discard()
		return err
	}
	if err := out.write(secret.Reveal()); err != nil {
		return err
	}
	v := append(tokenJSON(t), member{"token", secret.Reveal()})
	if out.path != "" {
		v = append(tokenJSON(t), member{"tokenFile", out.path})
	}
	return p.app.print(v, func(pr *printer) {
		printToken(pr, t)
		pr.line("")
		if out.path != "" {
			pr.line("The token is in %s.", out.path)
			return
		}
		pr.line("The token, shown this once:")
		pr.line("")
		pr.raw(secret.Reveal())
	})
}

// tokenJSON is a token as -o json shows it.
func tokenJSON(t control.TokenView) object {
	v := object{{"id", t.ID}, {"name", t.Name}, {"scope", t.Scope}, {"state", t.State}, {"created", t.Created}, {"expires", t.Expires}}
	for _, m := range []member{{"lastUsed", t.LastUsed}, {"revoked", t.Revoked}} {
		if !m.value.(time.Time).IsZero() {
			v = append(v, m)
		}
	}
	return v
}

func printToken(p *printer, t control.TokenView) {
	p.fields(
		"id", t.ID,
		"name", t.Name,
		"scope", string(t.Scope),
		"state", t.State,
		"expires", p.at(t.Expires),
	)
}

func newAgentTokensListCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List tokens, also those that ended, newest first",
		Example: `  pactctl agent tokens list
  pactctl agent tokens list -o json | jq '.tokens[].name'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.tokens(func(t *control.Tokens) error {
				list, err := t.List(cmd.Context())
				if err != nil {
					return err
				}
				return p.app.print(map[string]any{"tokens": list}, func(pr *printer) { printTokens(pr, list) })
			})
		},
	}
}

func printTokens(p *printer, list []control.TokenView) {
	if len(list) == 0 {
		p.say(0, "No tokens. Make one with: pactctl agent tokens create --name NAME --scope SCOPE")
		return
	}
	var rows [][]string
	for _, t := range list {
		rows = append(rows, []string{t.ID, string(t.Scope), t.State, p.ago(t.Expires), or(p.ago(t.LastUsed), "never"), t.Name})
	}
	p.table([]string{"ID", "SCOPE", "STATE", "EXPIRES", "LAST USED", "NAME"}, rows)
}

func newAgentTokensRevokeCmd(p *profile) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke TOKEN",
		Short: "End a token for good, given its id or name",
		Long: `End a token for good, given its id or name. What it approved and what is not
sent yet waits for your word again.`,
		Example: `  pactctl agent tokens revoke editor
  pactctl agent tokens revoke token-3f9k2m7qz5w4abcd --yes`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.HasPrefix(args[0], control.TokenPrefix) {
				return usagef("that is a token itself: name it by its id or name")
			}
			return p.tokens(func(t *control.Tokens) error { return p.revokeToken(cmd.Context(), t, args[0]) })
		},
	}
}

func (p *profile) revokeToken(ctx context.Context, tokens *control.Tokens, which string) error {
	list, err := tokens.List(ctx)
	if err != nil {
		return err
	}
	for _, t := range list {
		if t.ID != which && t.Name != which {
			continue
		}
		if t.State != control.TokenActive {
			return p.app.print(t, func(pr *printer) { pr.line("Token %s (%s) had ended already: it is %s.", t.ID, t.Name, t.State) })
		}
		if err := p.app.confirm(ctx, fmt.Sprintf("End token %s (%s) for good?", t.ID, t.Name)); err != nil {
			return err
		}
		if t, err = tokens.Revoke(ctx, t.ID); err != nil {
			return err
		}
		return p.app.print(t, func(pr *printer) {
			pr.line("Token %s (%s) is revoked.", t.ID, t.Name)
			if t.TakenBack > 0 {
				pr.say(0, "What it approved and what was not sent waits for your word again, %s: pactctl approvals list", plural(t.TakenBack, "approval"))
			}
		})
	}
	return fmt.Errorf("there is no token %q: see pactctl agent tokens list", which)
}
