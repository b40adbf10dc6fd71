package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/jwks"
	"github.com/pactsigner/pactsigner/sandbox"
)

// claim is what must hold.
type claim struct {
	what  string
	holds bool
}

// prove counts the claims that hold. The error names those that do not.
func (d *demo) prove(claims ...claim) error {
	var errs []error
	for _, c := range claims {
		if !c.holds {
			errs = append(errs, errors.New("this does not hold: "+c.what))
			continue
		}
		d.proved++
	}
	return errors.Join(errs...)
}

// publicClient reads what anybody may read.
var publicClient = &http.Client{
	Timeout:   10 * time.Second,
	Transport: &http.Transport{DisableKeepAlives: true}, // nothing to close, no proxy
}

// read reads a public document.
func read(ctx context.Context, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := publicClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers HTTP %d", address, resp.StatusCode)
	}
	return body, err
}

// keySet is the set of kids that the signer publishes now.
func (d *demo) keySet(ctx context.Context) (map[string]bool, error) {
	doc, err := read(ctx, d.issuer+jwks.WellKnownPath)
	if err != nil {
		return nil, fmt.Errorf("key set of the signer: %w", err)
	}
	set, err := jwks.Parse(doc)
	if err != nil {
		return nil, fmt.Errorf("key set of the signer: %w", err)
	}
	kids := map[string]bool{}
	for _, k := range set.Keys {
		kids[k.ID] = true
	}
	return kids, nil
}

func loopbackURL(raw string) bool {
	u, err := url.Parse(raw)
	return err == nil && loopback(u.Hostname())
}

// listReceipts fills the report's receipts with what the store says, where they
// were not verified again. Oldest first.
func (d *demo) listReceipts(ctx context.Context) []agent.ReceiptView {
	if d.agent == nil {
		return nil
	}
	all, err := d.agent.Receipts(ctx, d.owner())
	if err != nil { // the step that needed the store has failed and says why
		return nil
	}
	slices.Reverse(all)
	if len(d.report.Receipts) == 0 {
		for _, r := range all {
			d.report.Receipts = append(d.report.Receipts, receiptLine{r.ID, r.Verdict})
		}
	}
	return all
}

// receipts verifies every receipt once more: as the business sent it, against the
// delegation token that it answers, with keys that are fetched anew. What the agent
// made of it counts for nothing.
func (d *demo) receipts(ctx context.Context) (string, error) {
	brand, keys, err := d.fetchAnew(ctx)
	if err != nil {
		return "", err
	}
	verdicts, seen := map[string]agent.Evidence{}, map[string]bool{}
	for _, x := range d.wire.messages() {
		if x.delegation == "" || x.receipt == nil {
			continue
		}
		want, err := wantOf(x, keys)
		if err != nil {
			return "", err
		}
		want.PA, want.Brand = d.issuer, brand.InterfaceURL
		want.Seen = func(digest string) bool { return seen[digest] }
		e := agent.VerifyReceipt(ctx, x.receipt, want, agent.SetKeys(keys))
		seen[e.Digest] = true
		verdicts[e.Digest] = e
	}
	all, err := d.agent.Receipts(ctx, d.owner())
	if err != nil {
		return "", err
	}
	slices.Reverse(all)
	var claims []claim
	for _, r := range all {
		e, found := verdicts[r.Digest]
		claims = append(claims,
			claim{fmt.Sprintf("receipt %s came over the wire", r.ID), found},
			claim{fmt.Sprintf("receipt %s is verified again (%s %v)", r.ID, e.Verdict, e.Issues), e.Verdict == agent.VerdictVerified},
			claim{fmt.Sprintf("receipt %s lists what the business did", r.ID), e.Claims != nil && d.turns.did(e.Claims.Actions)},
		)
		d.report.Receipts = append(d.report.Receipts, receiptLine{r.ID, e.Verdict})
	}
	claims = append(claims,
		claim{"no receipt is lost", len(all) == len(verdicts)},
		claim{"there are at least three receipts", len(all) >= 3},
	)
	return fmt.Sprintf("all %d verified again, by keys that were fetched anew", len(all)), d.prove(claims...)
}

// did tells whether some turn at the business had just these actions.
func (t *turns) did(actions []agent.Action) bool {
	return slices.ContainsFunc(t.since(0), func(t turn) bool {
		return slices.EqualFunc(t.Actions, actions, func(a sandbox.Action, b agent.Action) bool {
			return a.Tool == b.Tool && a.ArgsHash == b.ArgsHash
		})
	})
}

// fetchAnew goes from the airline's own domain to the keys that it signs with.
func (d *demo) fetchAnew(ctx context.Context) (agent.Card, jwks.Set, error) {
	doc, err := read(ctx, d.card(sandbox.LarklineID))
	if err != nil {
		return agent.Card{}, jwks.Set{}, err
	}
	rules := agent.URLRules{Development: true}
	card := agent.ParseCard(doc, rules)
	if !card.Support {
		return card, jwks.Set{}, fmt.Errorf("card: %s", card.Reason)
	}
	if doc, err = read(ctx, card.MetadataURL); err != nil {
		return card, jwks.Set{}, err
	}
	md, err := agent.CheckMetadata(doc, card, rules)
	if err != nil {
		return card, jwks.Set{}, err
	}
	if doc, err = read(ctx, md.JWKSURI); err != nil {
		return card, jwks.Set{}, err
	}
	set, err := jwks.Parse(doc)
	return card, set, err
}

// wantOf is what a receipt must match, by the delegation token that was sent.
func wantOf(x exchange, keys jwks.Set) (agent.ReceiptWant, error) {
	token, err := jwks.ParseCompact(x.delegation.Reveal(), jose.ES256, jose.RS256)
	if err != nil {
		return agent.ReceiptWant{}, fmt.Errorf("delegation token: %w", err)
	}
	key, ok := keys.Find(token.KeyID, token.Algorithm)
	if !ok {
		return agent.ReceiptWant{}, errors.New("delegation token: its key is not published")
	}
	payload, err := token.Verify(key.Public)
	if err != nil {
		return agent.ReceiptWant{}, fmt.Errorf("delegation token: %w", err)
	}
	var c struct {
		Subject string `json:"sub"`
		GrantID string `json:"grant_id"`
		Scope   string `json:"scope"`
	}
	if err := json.UnmarshalRead(bytes.NewReader(payload), &c); err != nil {
		return agent.ReceiptWant{}, errors.New("delegation token: its claims cannot be read")
	}
	return agent.ReceiptWant{
		Delegated: true, GrantID: c.GrantID, User: c.Subject, GrantScopes: agent.ScopeSet(c.Scope),
		SentAt: x.arrived, ReceivedAt: x.answered,
	}, nil
}
