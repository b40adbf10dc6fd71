package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/jwks"
)

// errTokenArgument names no part of what was given.
var errTokenArgument = errors.New("that is a token or a document, not a file: pass it on standard input, with - as FILE, where other users of this machine do not see it")

// newCheckCmd judges documents as the agent would, without acting on them.
func newCheckCmd(a *app) *cobra.Command {
	cmd := newGroupCmd("check", "Check a card, metadata, token, receipt, URL or message")
	cmd.GroupID = groupTools
	cmd.Long = `Check a document as a personal agent does, and say what it would make of it: for
a business's developer before agents read it, and for anybody who wonders why
one was refused.

Every check takes a FILE, a URL, or - for standard input, and lists all that is
wrong, what decides first. Exit code 0: an agent would use it; 1: it would not.`
	cmd.Example = `  pactctl check card https://brand.example/.well-known/agent-card.json
  pactctl check card card.json -o json
  pactctl check metadata --card card.json metadata.json
  pactctl check url https://brand.example/login`
	c := &checker{app: a}
	cmd.PersistentFlags().BoolVar(&c.rules.Development, "development", os.Getenv("PACT_DEVELOPMENT") == "1",
		"admit loopback hosts and plain http to them (or PACT_DEVELOPMENT=1)")
	cmd.AddCommand(
		newCheckCardCmd(c), newCheckMetadataCmd(c), newCheckTokenCmd(c),
		newCheckReceiptCmd(c), newCheckURLCmd(c), newCheckMessageCmd(c),
	)
	return cmd
}

// checker is what the checks share.
type checker struct {
	*app
	rules agent.URLRules
}

// checked is a check's result. Its JSON is a promise to scripts.
type checked struct {
	OK       bool            `json:"ok"`
	Kind     string          `json:"kind"`             // card, metadata, …
	Verdict  string          `json:"verdict"`          // per kind; in words of the protocol
	Reason   string          `json:"reason,omitempty"` // the code that decides; empty if ok
	Problems []agent.Problem `json:"problems"`
	Advice   []string        `json:"advice"`
	Hops     []string        `json:"hops,omitempty"` // the URLs passed through, if any

	Card     *agent.Card     `json:"card,omitempty"`
	Metadata *agent.Metadata `json:"metadata,omitempty"`
	Token    *tokenView      `json:"token,omitempty"`
	Evidence *agent.Evidence `json:"evidence,omitempty"`
	Origin   string          `json:"origin,omitempty"`
	Message  *messageView    `json:"message,omitempty"`
}

// advise adds a remark that changes no verdict.
func (r *checked) advise(format string, args ...any) {
	r.Advice = append(r.Advice, fmt.Sprintf(format, args...))
}

// report prints a result; it is an error if the check did not pass.
func (c *checker) report(r checked, fields ...string) error {
	if !r.OK && r.Reason == "" {
		r.Reason = r.Verdict
	}
	if r.Problems == nil {
		r.Problems = []agent.Problem{}
	}
	if r.Advice == nil {
		r.Advice = []string{}
	}
	err := c.print(r, func(p *printer) {
		mark := "ok"
		if !r.OK {
			mark = "FAIL"
		}
		line := fmt.Sprintf("%s  %s: %s", mark, r.Kind, r.Verdict)
		if r.Reason != "" && r.Reason != r.Verdict {
			line += " (" + r.Reason + ")"
		}
		p.line("%s", line)
		p.fields(fields...)
		for _, x := range r.Problems {
			p.line("")
			p.line("  x %s", or(x.Field, "document"))
			p.paragraph(fmt.Sprintf("%s [%s]", x.Detail, x.Reason), 4)
		}
		for _, x := range r.Advice {
			p.line("")
			p.paragraph("! "+x, 2)
		}
	})
	if err != nil || r.OK {
		return err
	}
	return fmt.Errorf("the %s does not pass: %s", strings.Replace(r.Kind, "url", "URL", 1), r.Reason)
}

// unread reports a document that could not be read as a result too: one that was
// fetched with discovery's codes (DI-2) or egress's, another with those of
// unreadReason. People are told of the latter in one line.
func (c *checker) unread(kind string, err error) error {
	var f *fetchError
	r := checked{Kind: kind, Verdict: "unread"}
	switch {
	case errors.As(err, &f):
		r.Reason, r.Hops = f.reason, f.hops
	case c.output != "json":
		return err
	default:
		r.Reason = unreadReason(err)
	}
	r.Problems = []agent.Problem{{Reason: r.Reason, Detail: err.Error()}}
	return c.report(r)
}

var (
	errTooLong      = fmt.Errorf("longer than %d bytes", maxDocument)
	errNotDelegated = errors.New("the card does not offer delegation, so it has no metadata")
)

func unreadReason(err error) string {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "not_found"
	case errors.Is(err, errTooLong):
		return string(egress.TooLarge)
	case errors.Is(err, jwks.ErrInvalid):
		return "invalid_key_set"
	case errors.Is(err, errNotDelegated):
		return "not_delegated"
	}
	return "unreadable"
}

// fetchError is a URL that gave no document.
type fetchError struct {
	reason string
	hops   []string
	err    error
}

func (e *fetchError) Error() string { return e.err.Error() }
func (e *fetchError) Unwrap() error { return e.err }

// document is something to check and where it came from.
type document struct {
	data []byte
	hops []string // of a URL
}

// maxDocument bounds files as the widest network limit does URLs.
const maxDocument = 512 << 10

// read gets a document from a file, from standard input ("-") or from a URL.
// The URL is fetched as the agent would for that purpose.
func (c *checker) read(ctx context.Context, source string, purpose egress.Purpose) (document, error) {
	var in io.Reader
	switch {
	case source == "-":
		in = c.stdin
	case isURL(source):
		return c.fetch(ctx, source, purpose)
	default:
		f, err := os.Open(source)
		if err != nil && (strings.HasPrefix(source, "{") || agent.RedactText(source) != source) {
			return document{}, errTokenArgument
		}
		if errors.Is(err, os.ErrNotExist) && !strings.ContainsAny(source, "/\\") && strings.Contains(source, ".") {
			return document{}, fmt.Errorf("%w: for a URL, begin with https://", err)
		}
		if err != nil {
			return document{}, err
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxDocument+1))
	if err != nil {
		return document{}, fmt.Errorf("read %s: %w", source, err)
	}
	if len(data) > maxDocument {
		return document{}, fmt.Errorf("%s is %w", source, errTooLong)
	}
	return document{data: data}, nil
}

func isURL(source string) bool {
	return strings.HasPrefix(source, "https://") || strings.HasPrefix(source, "http://")
}

func (c *checker) fetch(ctx context.Context, url string, purpose egress.Purpose) (document, error) {
	client := egress.New(egress.Config{Rules: c.rules, Policy: egress.AllowAll})
	defer client.Close()
	resp, err := client.Do(ctx, egress.Request{Purpose: purpose, Method: "GET", URL: url})
	if err != nil {
		if egress.CodeOf(err) == egress.InvalidURL && !c.rules.Development {
			err = fmt.Errorf("%w; for a business on this machine, add --development", err)
		}
		return document{}, &fetchError{string(egress.CodeOf(err)), []string{url}, err}
	}
	if resp.Status != 200 {
		reason := "fetch_failed"
		if resp.Status == 404 {
			reason = "not_found"
		}
		return document{}, &fetchError{reason, resp.Hops, fmt.Errorf("%s answers %d", resp.FinalURL, resp.Status)}
	}
	return document{resp.Body, resp.Hops}, nil
}

func newCheckCardCmd(c *checker) *cobra.Command {
	return &cobra.Command{
		Use:   "card FILE|URL|-",
		Short: "Check an Agent Card",
		Long: `Check an Agent Card: whether agents support it, by which profile, and what each
permission counts as. Every problem is listed; the first is the reason that
agents give.`,
		Example: `  pactctl check card card.json
  pactctl check card https://brand.example/.well-known/agent-card.json
  curl -s https://brand.example/card | pactctl check card - -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			doc, err := c.read(cmd.Context(), args[0], egress.Card)
			if err != nil {
				return c.unread("card", err)
			}
			return c.reportCard(doc)
		},
	}
}

func (c *checker) reportCard(doc document) error {
	card := agent.ParseCard(doc.data, c.rules)
	r := checked{OK: card.Support, Kind: "card", Verdict: "unsupported", Reason: card.Reason, Problems: card.Problems, Hops: doc.hops, Card: &card}
	for _, x := range card.Advice {
		r.advise("%s %s", x.Field, x.Detail)
	}
	fields := []string{"Name", card.Name, "Profile", string(card.Profile), "Interface", card.InterfaceURL}
	if card.Support {
		r.Verdict = "supported"
	}
	for i, s := range card.Scopes {
		label := "Permissions"
		if i > 0 {
			label = strings.Repeat(" ", len(label))
		}
		fields = append(fields, label, fmt.Sprintf("%-8s %s", s.Effect(), s.ID))
	}
	if len(doc.hops) > 1 {
		fields = append(fields, "Served by", doc.hops[len(doc.hops)-1])
	}
	if card.MetadataURL != "" {
		r.advise("the metadata is another document: pactctl check metadata --card …")
	}
	return c.report(r, fields...)
}

func newCheckMetadataCmd(c *checker) *cobra.Command {
	var cardSource string
	cmd := &cobra.Command{
		Use:   "metadata --card FILE|URL [FILE|URL|-]",
		Short: "Check an authorization server's metadata against its card",
		Long: `Check an authorization server's metadata (RFC 8414) against the Agent Card that
names it. Without FILE or URL it is fetched from the card's oauth2MetadataUrl.`,
		Example: `  pactctl check metadata --card card.json metadata.json
  pactctl check metadata --card https://air.example/.well-known/agent-card.json`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.Flags().StringVar(&cardSource, "card", "", "`FILE|URL` of the Agent Card (required)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cardSource == "" {
			return usagef("--card is required: metadata means nothing without the card that names it")
		}
		if cardSource == "-" && slices.Contains(args, "-") {
			return usagef("--card and the metadata cannot both be standard input")
		}
		cardDoc, err := c.read(cmd.Context(), cardSource, egress.Card)
		if err != nil {
			return c.unread("card", fmt.Errorf("card: %w", err))
		}
		card := agent.ParseCard(cardDoc.data, c.rules)
		if !card.Support {
			return c.reportCard(cardDoc)
		}
		source := card.MetadataURL
		if len(args) > 0 {
			source = args[0]
		}
		if source == "" {
			return c.unread("metadata", errNotDelegated)
		}
		doc, err := c.read(cmd.Context(), source, egress.Metadata)
		if err != nil {
			return c.unread("metadata", err)
		}
		return c.reportMetadata(doc, card)
	}
	return cmd
}

func (c *checker) reportMetadata(doc document, card agent.Card) error {
	r := checked{Kind: "metadata", Verdict: agent.ReasonMetadataInvalid, Hops: doc.hops}
	md, err := agent.CheckMetadata(doc.data, card, c.rules)
	var bad *agent.MetadataError
	if errors.As(err, &bad) {
		r.Problems = bad.Problems
		return c.report(r)
	}
	if err != nil {
		return err
	}
	r.OK, r.Verdict, r.Metadata = true, "ok", &md
	for _, s := range card.Scopes {
		if md.ScopesSupported != nil && !slices.Contains(md.ScopesSupported, s.ID) {
			r.advise("scopes_supported leaves out the card's %q", s.ID)
		}
	}
	if md.RevocationEndpoint == "" {
		r.advise("without a revocation_endpoint on this origin, agents that disconnect cannot revoke their tokens")
	}
	return c.report(r, "Issuer", md.Issuer, "Keys", md.JWKSURI, "Revocation", md.RevocationEndpoint)
}

func newCheckURLCmd(c *checker) *cobra.Command {
	return &cobra.Command{
		Use:   "url URL|FILE|-",
		Short: "Check whether agents would use a URL",
		Long: `Check whether agents would use a URL at all: in a card, as an interface, as a
sign-in link. Only its text is looked at; what its name resolves to is checked
when it is used. An argument that is the name of a file is read from there.`,
		Example: `  pactctl check url https://brand.example/login
  pactctl check url --development http://127.0.0.1:4310/`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			raw := args[0]
			if info, err := os.Stat(raw); raw == "-" || err == nil && info.Mode().IsRegular() {
				doc, err := c.read(cmd.Context(), raw, egress.Card)
				if err != nil {
					return c.unread("url", err)
				}
				raw = strings.TrimSpace(string(doc.data))
			}
			r := checked{Kind: "url", Verdict: "refused"}
			u, err := c.rules.Check(raw)
			var bad *agent.URLError
			switch {
			case errors.As(err, &bad):
				r.Reason, r.Problems = bad.Rule, []agent.Problem{{Reason: bad.Rule, Detail: bad.Reason}}
				if bad.Rule == "UR-2" {
					r.advise("development mode admits it: --development")
				}
			case err != nil:
				return err
			default:
				r.OK, r.Verdict, r.Origin = true, "ok", agent.Origin(u)
			}
			return c.report(r, "Origin", r.Origin)
		},
	}
}
