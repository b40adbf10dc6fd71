package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pactsigner/pactsigner/jwks"
)

const fromDelegation = "Delegation"

var metadataChecks = []check{
	{Check{ID: "metadata-served", Requirement: "a GET by anybody brings it: 200, one JSON object", Source: fromDelegation}, insist(checkMetadataServed)},
	{Check{ID: "metadata-endpoints", Requirement: "endpoints as on the card, issuer and jwks_uri", Source: fromDelegation}, checkMetadataEndpoints},
	{Check{ID: "metadata-issuer", Requirement: "issuer and jwks_uri belong to its URL (RFC 8414)", Source: fromDelegation}, checkMetadataIssuer},
	{Check{ID: "metadata-keys", Requirement: "jwks_uri has public ES256 or RS256 keys", Source: fromDelegation}, checkMetadataKeys},
}

// metadata is what an authorization server says of itself (RFC 8414).
type metadata struct {
	Issuer string `json:"issuer"`
	Device string `json:"device_authorization_endpoint"`
	Token  string `json:"token_endpoint"`
	Keys   string `json:"jwks_uri"`
}

// fetchMetadata asks for a card's metadata once, and returns what came.
func (r *run) fetchMetadata(ctx context.Context) (*card, *answer, error) {
	c, err := r.delegated(ctx)
	if err != nil {
		return nil, nil, err
	}
	if !r.metadataTried {
		r.metadataCame, r.metadataErr = r.do(ctx, call{method: http.MethodGet, url: c.metadataURL})
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		r.metadataTried = true
	}
	return c, r.metadataCame, r.metadataErr
}

// metadata is what the card's authorization server says, as far as it can be read.
func (r *run) metadata(ctx context.Context) (*card, *metadata, error) {
	c, a, err := r.fetchMetadata(ctx)
	if err != nil {
		return nil, nil, lacking("there is no metadata", err)
	}
	var m metadata
	if a.status != http.StatusOK || a.object(&m) != nil {
		return nil, nil, notRun("there is no metadata that can be read: see metadata-served")
	}
	return c, &m, nil
}

func checkMetadataServed(ctx context.Context, r *run) error {
	_, a, err := r.fetchMetadata(ctx)
	if err != nil {
		return err
	}
	if err := a.wants(http.StatusOK); err != nil {
		return err
	}
	var members map[string]jsontext.Value
	if err := a.object(&members); err != nil {
		return err
	}
	return a.isJSON()
}

func checkMetadataEndpoints(ctx context.Context, r *run) error {
	c, a, err := r.fetchMetadata(ctx)
	if err != nil {
		return lacking("there is no metadata", err)
	}
	if a.status != http.StatusOK {
		return notRun("there is no metadata that can be read: see metadata-served")
	}
	return judgeEndpoints(a.body, c)
}

// judgeEndpoints holds metadata to the card.
func judgeEndpoints(body []byte, c *card) error {
	m, err := readMembers(body)
	if err != nil {
		return notRun("there is no metadata that can be read: see metadata-served")
	}
	m.text("issuer", true)
	m.text("jwks_uri", true)
	for _, e := range []struct{ name, card, want string }{
		{"device_authorization_endpoint", "deviceAuthorizationUrl", c.deviceURL},
		{"token_endpoint", "tokenUrl", c.tokenURL},
	} {
		if got := m.text(e.name, true); got != "" && got != e.want {
			m.wrong(e.name, "is not the card's %s, character for character", e.card)
		}
	}
	m.texts("scopes_supported", false)
	m.texts("grant_types_supported", false)
	return m.err()
}

func checkMetadataIssuer(ctx context.Context, r *run) error {
	c, m, err := r.metadata(ctx)
	if err != nil {
		return err
	}
	return r.judgeIssuer(c.metadataURL, m)
}

// judgeIssuer holds metadata to its own URL.
func (r *run) judgeIssuer(at string, m *metadata) error {
	var f findings
	for _, u := range []struct{ name, value string }{{"issuer", m.Issuer}, {"jwks_uri", m.Keys}} {
		if u.value == "" {
			continue // metadata-endpoints says so
		}
		if reason := r.refuseURL(u.value); reason != "" {
			f.add("", fmt.Errorf("%s %s", u.name, reason))
		} else if originOf(u.value) != originOf(at) {
			f.add("", fmt.Errorf("%s is on %s: must be on the metadata's origin, %s", u.name, originOf(u.value), originOf(at)))
		}
	}
	if ours := issuersOf(at); f.err() == nil && m.Issuer != "" && ours != nil && !slices.Contains(ours, m.Issuer) {
		f.add("", fmt.Errorf("issuer is not the one whose metadata is at this URL (RFC 8414 section 3.3): must be %s", oneOf(ours)))
	}
	return f.err()
}

const metadataPath = "/.well-known/oauth-authorization-server"

// issuersOf are the issuers whose metadata is at a URL: with the well-known path
// before the issuer's own (RFC 8414 section 3.1), or after it. Of any other URL
// nothing can be told.
func issuersOf(at string) []string {
	before, after, ok := strings.Cut(at, metadataPath)
	u, err := url.Parse(before)
	switch {
	case !ok || err != nil || u.Host == "" || u.RawQuery != "":
		return nil
	case after == "":
		return []string{before}
	case u.Path == "" && strings.HasPrefix(after, "/"):
		return []string{before + after}
	}
	return nil
}

// fetchKeys reads the keys of delegation tokens and receipts, anew.
func (r *run) fetchKeys(ctx context.Context) (*answer, error) {
	_, m, err := r.metadata(ctx)
	if err != nil {
		return nil, err
	}
	if r.refuseURL(m.Keys) != "" {
		return nil, notRun("the metadata has no jwks_uri that may be asked: see metadata-endpoints and metadata-issuer")
	}
	return r.do(ctx, call{method: http.MethodGet, url: m.Keys})
}

func checkMetadataKeys(ctx context.Context, r *run) error {
	a, err := r.fetchKeys(ctx)
	if err != nil {
		return err
	}
	if err := a.wants(http.StatusOK); err != nil {
		return err
	}
	if err := judgeKeys(a.body); err != nil {
		return fmt.Errorf("%s: %w", a.asked, err)
	}
	return nil
}

// judgeKeys looks at a key set as it is served.
func judgeKeys(body []byte) error {
	set, err := jwks.Parse(body)
	if err != nil {
		return err
	}
	var doc struct {
		Keys []map[string]jsontext.Value `json:"keys"`
	}
	if json.Unmarshal(body, &doc) != nil {
		return errors.New("a key is not a JSON object")
	}
	var f findings
	kids := map[string]bool{}
	for n, key := range doc.Keys {
		for _, private := range []string{"d", "p", "q", "dp", "dq", "qi", "oth", "k", "priv"} {
			if _, ok := key[private]; ok {
				f.add("", fmt.Errorf("keys[%d] has the private member %s: a key set is public", n, private))
			}
		}
		var kid string
		if raw, ok := key["kid"]; ok && json.Unmarshal(raw, &kid) == nil {
			if kids[kid] {
				f.add("", fmt.Errorf("keys[%d] has a kid that another key has", n))
			}
			kids[kid] = true
		}
	}
	if len(set.Keys) == 0 {
		f.add("", errors.New("no key that may verify: must have a P-256 key (ES256) or an RSA key of 2048 bits or more (RS256)"))
	}
	return f.err()
}

// readKeys reads the keys, unless that failed before.
func (r *run) readKeys(ctx context.Context) error {
	if r.keysErr != nil {
		return r.keysErr
	}
	a, err := r.fetchKeys(ctx)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		r.keysErr = lacking("the keys at jwks_uri could not be read", err)
		return r.keysErr
	}
	set, err := jwks.Parse(a.body)
	if a.status != http.StatusOK || err != nil {
		r.keysErr = notRun("the keys at jwks_uri could not be read: see metadata-keys")
		return r.keysErr
	}
	r.keys = &set
	return nil
}

// verify checks a JWS of the authorization server and returns its payload. The keys
// are read again for a kid that they did not have.
func (r *run) verify(ctx context.Context, compact string) ([]byte, error) {
	token, err := jwks.ParseCompact(compact, jose.ES256, jose.RS256)
	if err != nil {
		return nil, err
	}
	for read := range 2 {
		if r.keys == nil || read > 0 {
			if err := r.readKeys(ctx); err != nil {
				return nil, err
			}
		}
		if key, ok := r.keys.Find(token.KeyID, token.Algorithm); ok {
			return token.Verify(key.Public)
		}
	}
	return nil, fmt.Errorf("signed with a key that jwks_uri does not have (%s)", token.Algorithm)
}
