package sandbox

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pactsigner/pactsigner/jwks"
)

// broken is hit for the rules of a function that knows no request.
func (s *Sandbox) broken(ctx context.Context) func(fault string) bool {
	return func(fault string) bool { return s.faults.hit(ctx, fault) }
}

// identityChallenge is the WWW-Authenticate of a 401 to who does not say who they
// are.
const identityChallenge = `Bearer realm="a2a"`

// unauthorized answers 401, without a body.
func (s *Sandbox) unauthorized(ctx context.Context, w http.ResponseWriter) {
	challenge := identityChallenge
	if s.faults.hit(ctx, "challenge-realm") {
		challenge = `Bearer realm="other"`
	}
	if !s.faults.hit(ctx, "challenge-none") {
		w.Header().Set("WWW-Authenticate", challenge)
	}
	if s.faults.hit(ctx, "challenge-body") {
		(&a2aError{http.StatusUnauthorized, "UNAUTHENTICATED", "UNAUTHENTICATED", "Who are you?"}).write(w)
		return
	}
	w.WriteHeader(http.StatusUnauthorized)
}

// judgeEarly answers a caller who was not authenticated by what comes after that.
func (s *Sandbox) judgeEarly(w http.ResponseWriter, r *http.Request, route route, b *business) bool {
	ctx := r.Context()
	if b == nil && s.faults.hit(ctx, "brand-early") {
		w.WriteHeader(http.StatusNotFound)
		return true
	}
	if route.delegated || r.Method != http.MethodPost || !s.faults.on(ctx, "auth-late") {
		return false
	}
	if body, err := readBody(w, r); err == nil && jsontext.Value(body).IsValid() || !s.faults.hit(ctx, "auth-late") {
		return false
	}
	invalidParams("The body must be JSON").write(w)
	return true
}

// spoilRouting answers what is no route, or does not take the method.
func (s *Sandbox) spoilRouting(w http.ResponseWriter, r *http.Request, known bool) bool {
	ctx, fault := r.Context(), "route-unknown-401"
	if known {
		fault = "route-method-401"
	}
	if s.faults.on(ctx, fault) {
		if _, err := s.identities.caller(ctx, r.Header, s.audience); err != nil && s.faults.hit(ctx, fault) {
			s.unauthorized(ctx, w)
			return true
		}
	}
	if !known && s.faults.hit(ctx, "route-unknown-body") {
		taskNotFound("No such route").write(w)
		return true
	}
	return false
}

// spoilUnknownBrand answers for a brand that is not there.
func (s *Sandbox) spoilUnknownBrand(w http.ResponseWriter, r *http.Request, route route) bool {
	switch ctx := r.Context(); {
	case route.anonymous != nil && s.faults.hit(ctx, "brand-unknown-200"):
		s.serveCard(w, r, s.brands[0])
	case route.caller != nil && s.faults.hit(ctx, "brand-unknown-400"):
		invalidParams("No such brand").write(w)
	default:
		return false
	}
	return true
}

// refuseHeaders refuses a call that does not say which A2A it speaks.
func (s *Sandbox) refuseHeaders(w http.ResponseWriter, r *http.Request) bool {
	ctx := r.Context()
	if r.Header.Get("A2A-Version") != "1.0" && s.faults.hit(ctx, "strict-version") {
		invalidParams("A2A-Version must be 1.0").write(w)
		return true
	}
	if kind := mediaType(r.Header.Get("Content-Type")); r.Method == http.MethodPost && kind != typeA2A && s.faults.hit(ctx, "strict-content-type") {
		w.WriteHeader(http.StatusUnsupportedMediaType)
		return true
	}
	return false
}

// digitsFirst reads a pageSize that goes on behind its digits.
func digitsFirst(values []string) (int, bool) {
	last := values[len(values)-1]
	return parsePageSize([]string{last[:len(last)-len(strings.TrimLeft(last, "0123456789"))]})
}

// issuerKeys reads an issuer's JWKS.
func (s *Sandbox) issuerKeys(ctx context.Context, url string) ([]byte, error) {
	if last, ok := s.keySets.Get(url); ok && s.faults.hit(ctx, "jwks-sticky") {
		return last, nil
	}
	body, err := s.fetcher.keySet(ctx, url)
	if err == nil {
		s.keySets.Add(url, body)
	}
	return body, err
}

// parseOddAlgorithm reads a token of an algorithm that no issuer may use.
func parseOddAlgorithm(compact string) (*jwks.Token, error) {
	if strings.HasSuffix(compact, ".") {
		compact += "AA" // alg none comes without a signature
	}
	return jwks.ParseCompact(compact, "none", jose.HS256, jose.HS384, jose.HS512,
		jose.PS256, jose.PS384, jose.PS512, jose.RS384, jose.RS512, jose.ES384, jose.ES512, jose.EdDSA)
}

// issuedNow are the claims of a payload whose iat is missing or of another type, as if
// it were now; ok is false if something else is wrong with them.
func issuedNow(payload []byte, now time.Time) (c issuerClaims, ok bool) {
	var members map[string]jsontext.Value
	if json.Unmarshal(payload, &members) != nil {
		return c, false
	}
	delete(members, "iat")
	rest, err := json.Marshal(members)
	if err != nil || unmarshalClaims(rest, &c) != nil {
		return c, false
	}
	c.IssuedAt = now.Unix()
	return c, true
}

// unverifiedPayload is the payload of a JWT whose signature nobody looked at.
func unverifiedPayload(compact string) ([]byte, error) {
	parts := strings.Split(compact, ".")
	if len(parts) != 3 {
		return nil, fmt.Errorf("%w token: not three parts", jwks.ErrInvalid)
	}
	return base64.RawURLEncoding.DecodeString(parts[1])
}
