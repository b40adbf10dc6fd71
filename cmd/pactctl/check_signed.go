package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/jwks"
)

// tokenView is what may be shown of a token: never the token.
type tokenView struct {
	Issuer    string    `json:"issuer"`
	Audience  string    `json:"audience"`
	Subject   string    `json:"subject"`
	KeyID     string    `json:"keyId,omitempty"`
	Algorithm string    `json:"algorithm"`
	IssuedAt  time.Time `json:"issuedAt"`
	ExpiresAt time.Time `json:"expiresAt"`
	Signature string    `json:"signature"` // verified, invalid, or not checked
}

// moment is a flag that holds a time: RFC 3339, or Unix seconds.
type moment struct{ time.Time }

func (m *moment) String() string {
	if m.IsZero() {
		return ""
	}
	return m.Format(time.RFC3339)
}

func (m *moment) Type() string { return "TIME" }

func (m *moment) Set(s string) error {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		m.Time = time.Unix(n, 0)
		return nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return errors.New("say RFC 3339, such as 2026-11-18T10:26:40Z, or Unix seconds")
	}
	m.Time = t
	return nil
}

func newCheckTokenCmd(c *checker) *cobra.Command {
	var want agent.SignWant
	var keySource string
	var at moment
	cmd := &cobra.Command{
		Use:   "token FILE|-",
		Short: "Check a PA-JWT, or a signer's answer with one",
		Long: `Check a PA-JWT as an agent does before it uses it. FILE holds a signer's answer,
{"token", "nonce"}, or the compact token alone. What no flag names is taken from
the token itself and so not checked; --jwks verifies the signature too. The
token is never printed.`,
		Example: `  pactctl check token answer.json --issuer https://pa.example.com \
    --audience aud-1 --nonce n-1
  pactctl check token token.txt \
    --jwks https://pa.example.com/.well-known/jwks.json`,
		Args: cobra.ExactArgs(1),
	}
	f := cmd.Flags()
	f.StringVar(&want.Issuer, "issuer", "", "the configured issuer `URL`")
	f.StringVar(&want.Audience, "audience", "", "the requested `AUDIENCE`")
	f.StringVar(&want.Subject, "subject", "", "the known `SUBJECT`")
	f.StringVar(&want.Nonce, "nonce", "", "the request's `NONCE`")
	f.StringVar(&keySource, "jwks", "", "`FILE|URL` of the issuer's key set, to verify the signature")
	f.Var(&at, "at", "judge lifetimes as of this time instead of now")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		doc, err := c.read(cmd.Context(), args[0], egress.Signer)
		if err != nil {
			return c.unread("token", err)
		}
		var set *jwks.Set
		if keySource != "" {
			if set, err = c.readKeys(cmd, keySource); err != nil {
				return c.unread("token", err)
			}
		}
		now := c.now()
		if !at.IsZero() {
			now = at.Time
		}
		return c.reportToken(doc, want, set, now)
	}
	return cmd
}

func (c *checker) readKeys(cmd *cobra.Command, source string) (*jwks.Set, error) {
	doc, err := c.read(cmd.Context(), source, egress.JWKS)
	if err != nil {
		return nil, fmt.Errorf("key set: %w", err)
	}
	set, err := jwks.Parse(doc.data)
	if err != nil {
		return nil, fmt.Errorf("key set: %w", err)
	}
	return &set, nil
}

func (c *checker) reportToken(doc document, want agent.SignWant, set *jwks.Set, now time.Time) error {
	r := checked{Kind: "token", Verdict: agent.ReasonInvalidToken}
	body, compact := signAnswer(doc.data, want.Nonce)
	claims := unverified(compact)
	for _, x := range []struct {
		flag string
		want *string
		from string
	}{
		{"--issuer", &want.Issuer, claims.Issuer}, {"--audience", &want.Audience, claims.Audience}, {"--nonce", &want.Nonce, body.Nonce},
	} {
		if *x.want == "" {
			*x.want = x.from
			r.advise("%s is not given, so it was not checked", x.flag)
		}
	}
	answer, err := json.Marshal(body)
	if err != nil {
		answer = doc.data
	}
	token, err := agent.CheckSignResponse(answer, want, now)
	var bad *agent.TokenError
	var changed *agent.SubjectChangedError
	switch {
	case errors.As(err, &bad):
		r.Problems = bad.Problems
		return c.report(r)
	case errors.As(err, &changed):
		r.Problems = []agent.Problem{{Reason: agent.ReasonInvalidToken, Field: "token.sub", Detail: "is not the known subject"}}
		r.advise("a send would report identity_changed")
		return c.report(r)
	case err != nil:
		return err
	}
	r.Token = &tokenView{
		Issuer: token.Issuer, Audience: token.Audience, Subject: token.Subject, KeyID: token.KeyID, Algorithm: token.Algorithm,
		IssuedAt: token.IssuedAt, ExpiresAt: token.ExpiresAt, Signature: "not checked",
	}
	r.OK, r.Verdict = true, "ok"
	if set == nil {
		r.advise("the signature was not checked: give --jwks")
	} else if err := verify(compact, *set); err != nil {
		r.OK, r.Verdict, r.Token.Signature = false, agent.ReasonInvalidToken, "invalid"
		r.Problems = []agent.Problem{{Reason: agent.ReasonInvalidToken, Field: "token", Detail: err.Error()}}
	} else {
		r.Token.Signature = "verified"
	}
	v := r.Token
	return c.report(r, "Issuer", v.Issuer, "Audience", v.Audience, "Subject", v.Subject, "Key", v.KeyID+" "+v.Algorithm,
		"Issued", v.IssuedAt.Format(time.RFC3339), "Expires", v.ExpiresAt.Format(time.RFC3339), "Signature", v.Signature)
}

// signBody is a signer's answer, as far as its form allows.
type signBody struct {
	Token jsontext.Value `json:"token"`
	Nonce string         `json:"nonce"`
}

// signAnswer reads a signer's answer, or makes one around a compact token.
func signAnswer(data []byte, nonce string) (signBody, string) {
	var body signBody
	text := strings.TrimSpace(string(data))
	if strings.HasPrefix(text, "{") {
		if err := json.Unmarshal(data, &body); err != nil {
			return signBody{}, ""
		}
		var compact string
		if err := json.Unmarshal(body.Token, &compact); err != nil {
			return body, ""
		}
		return body, compact
	}
	quoted, err := jsontext.AppendQuote(nil, text)
	if err != nil {
		return signBody{}, ""
	}
	return signBody{Token: quoted, Nonce: or(nonce, "none")}, text
}

// unverified reads the claims that flags would have named.
func unverified(compact string) struct{ Issuer, Audience string } {
	var out struct{ Issuer, Audience string }
	token, err := jwks.ParseCompact(compact, jose.ES256, jose.RS256)
	if err != nil {
		return out
	}
	var claims map[string]any
	if json.Unmarshal(token.Unverified(), &claims) != nil {
		return out
	}
	out.Issuer, _ = claims["iss"].(string)
	out.Audience, _ = claims["aud"].(string)
	return out
}

func verify(compact string, set jwks.Set) error {
	token, err := jwks.ParseCompact(compact, jose.ES256, jose.RS256)
	if err != nil {
		return err
	}
	key, ok := set.Find(token.KeyID, token.Algorithm)
	if !ok {
		return fmt.Errorf("the key set has no key %q for %s", token.KeyID, token.Algorithm)
	}
	_, err = token.Verify(key.Public)
	return err
}

func newCheckReceiptCmd(c *checker) *cobra.Command {
	want := agent.ReceiptWant{Delegated: true}
	var keySource string
	var sent, received moment
	cmd := &cobra.Command{
		Use:   "receipt FILE|-",
		Short: "Check a receipt",
		Long: `Check a receipt as an agent does. FILE holds {"jws", "claims"}, or a reply that
has one. Without --jwks the verdict is unverifiable; a receipt is verified only
if all that the flags can name is known and matches.

Verified means that the business signed this claim. It does not mean that money
moved.`,
		Example: `  pactctl check receipt receipt.json --jwks jwks.json --grant g-1 \
    --user cust-1 --pa https://pa.example.com \
    --brand https://provider.example/a2a/B1 --scope orders:read
  pactctl check receipt reply.json \
    --jwks https://provider.example/a2a/B1/oauth/jwks.json`,
		Args: cobra.ExactArgs(1),
	}
	f := cmd.Flags()
	f.StringVar(&keySource, "jwks", "", "`FILE|URL` of the key set that the metadata's jwks_uri names")
	f.StringVar(&want.GrantID, "grant", "", "the delegation token's grant_id `ID`")
	f.StringVar(&want.User, "user", "", "the delegation token's `SUB`")
	f.StringVar(&want.PA, "pa", "", "the personal agent's issuer `URL`")
	f.StringVar(&want.Brand, "brand", "", "the interface `URL`, as the card states it")
	f.StringSliceVar(&want.GrantScopes, "scope", nil, "a `SCOPE` of the grant; repeat for more")
	f.Var(&sent, "sent", "when the message was sent")
	f.Var(&received, "received", "when the reply was received")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		doc, err := c.read(cmd.Context(), args[0], egress.Message)
		if err != nil {
			return c.unread("receipt", err)
		}
		var keys agent.KeyFinder
		var noKeys error
		if keySource != "" {
			set, err := c.readKeys(cmd, keySource)
			switch {
			case err == nil:
				keys = agent.SetKeys(*set)
			case isURL(keySource):
				keys, noKeys = unavailableKeys{}, err
			default:
				return c.unread("receipt", err)
			}
		}
		want.SentAt, want.ReceivedAt = sent.Time, received.Time
		e := agent.VerifyReceipt(cmd.Context(), receiptIn(doc.data), want, keys)
		r := checked{OK: e.Verdict == agent.VerdictVerified, Kind: "receipt", Verdict: string(e.Verdict), Problems: e.Problems, Evidence: &e}
		e.Problems = nil
		if len(e.Issues) > 0 {
			r.Reason = e.Issues[0]
		}
		switch {
		case keys == nil:
			r.advise("the signature was not checked: give --jwks")
		case noKeys != nil:
			r.advise("the signature was not checked: %v", noKeys)
		}
		if sent.IsZero() || received.IsZero() {
			r.advise("the time was not checked: give --sent and --received")
		}
		var fields []string
		if e.Claims != nil {
			fields = []string{"Grant", e.Claims.GrantID, "Brand", e.Claims.Brand, "Scopes used", strings.Join(e.Claims.ScopesUsed, " "), "At", e.Claims.Time.Format(time.RFC3339)}
			for _, x := range e.Claims.Actions {
				fields = append(fields, "Action", x.Tool)
			}
		}
		return c.report(r, fields...)
	}
	return cmd
}

// unavailableKeys are those of a key set that could not be had from its URL.
type unavailableKeys struct{}

// Key implements agent.KeyFinder.
func (unavailableKeys) Key(context.Context, string, jose.SignatureAlgorithm) (jwks.Key, error) {
	return jwks.Key{}, jwks.ErrUnavailable
}

// receiptIn finds the receipt in a reply; anything else is one itself.
func receiptIn(data []byte) jsontext.Value {
	var reply struct {
		Message *struct {
			Metadata map[string]jsontext.Value `json:"metadata"`
		} `json:"message"`
	}
	if err := json.Unmarshal(data, &reply); err == nil && reply.Message != nil {
		return reply.Message.Metadata["pact.receipt"]
	}
	return data
}
