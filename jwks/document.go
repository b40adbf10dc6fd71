package jwks

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
)

// WellKnownPath and DiscoveryPath follow an issuer's origin.
const (
	WellKnownPath = "/.well-known/jwks.json"
	DiscoveryPath = "/.well-known/openid-configuration"
)

// Document is a rendered JSON document, ready to be served by [Handler]. Make it
// with [NewDocument] or [DocumentOf] and do not change it afterwards.
type Document struct {
	Body []byte
	ETag string // strong, quotes included

	// MaxAge, if positive and less than the handler's, is how long a copy of this
	// answer may be kept: less when the document's own age is near its bound.
	MaxAge time.Duration

	// Header values, made once.
	etag, length []string
}

// NewDocument renders a key set; see [Marshal] for what it refuses.
func NewDocument(keys []Key) (Document, error) {
	body, err := Marshal(keys)
	if err != nil {
		return Document{}, err
	}
	return DocumentOf(body), nil
}

// DocumentOf wraps a JSON body that is already rendered.
func DocumentOf(body []byte) Document {
	sum := sha256.Sum256(body)
	etag := `"` + base64.RawURLEncoding.EncodeToString(sum[:]) + `"`
	return Document{
		Body:   body,
		ETag:   etag,
		etag:   []string{etag},
		length: []string{strconv.Itoa(len(body))},
	}
}

// Discovery renders the OpenID Connect discovery document of an issuer that only
// signs tokens: the metadata that a verifier needs to find and use its keys
// (OpenID Connect Discovery 1.0 section 3), and nothing that it does not do. algs
// are those of the published keys.
func Discovery(issuer string, algs ...jose.SignatureAlgorithm) (Document, error) {
	if issuer == "" || strings.HasSuffix(issuer, "/") {
		return Document{}, fmt.Errorf("jwks: issuer %q must be an origin without a trailing slash", issuer)
	}
	if len(algs) == 0 {
		return Document{}, errors.New("jwks: discovery needs at least one algorithm")
	}
	algs = slices.Clone(algs)
	slices.Sort(algs)
	body, err := json.Marshal(struct {
		Issuer        string                    `json:"issuer"`
		JWKSURI       string                    `json:"jwks_uri"`
		ResponseTypes []string                  `json:"response_types_supported"`
		SubjectTypes  []string                  `json:"subject_types_supported"`
		Algorithms    []jose.SignatureAlgorithm `json:"id_token_signing_alg_values_supported"`
	}{issuer, issuer + WellKnownPath, []string{"id_token"}, []string{"public"}, slices.Compact(algs)})
	if err != nil {
		return Document{}, fmt.Errorf("jwks: discovery: %w", err)
	}
	return DocumentOf(body), nil
}
