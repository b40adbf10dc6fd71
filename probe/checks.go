package probe

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/jwks"
)

// What to do about failures that several checks share.
const (
	remedyReach  = "Is the signer up, is that its URL, and does the way there work?"
	remedySetup  = "An operator makes the probe's audiences: pactctl probe setup"
	remedyKilled = "Is that meant? See pactctl kill status; pactctl resume lifts it."
)

// enroll makes the device known. The same key has the same subject for ever.
func (r *round) enroll(ctx context.Context) verdict {
	d, token := r.cfg.Device, ""
	known := func() bool {
		a, err := r.call(ctx, pathStatus, struct{}{})
		return err == nil && a.status == http.StatusOK && a.isJSON()
	}
	if r.cfg.EnrollmentToken != nil {
		if known() {
			return leftOut("the device is known, and its enrolment token was good for once")
		}
		token = "Bearer " + r.cfg.EnrollmentToken.value
	}
	jwk, err := d.publicJWK()
	if err != nil {
		return failed("", "%v", err)
	}
	proof, err := d.assertion(r.cfg.Signer+pathEnroll, r.cfg.Now(), "ES256")
	if err != nil {
		return failed("", "%v", err)
	}
	a, err := r.post(ctx, r.way, pathEnroll, token, map[string]any{"publicJwk": jwk, "proof": proof})
	if err != nil {
		return failed(remedyReach, "%v", err)
	}
	switch a.status {
	case http.StatusOK:
	case http.StatusUnauthorized:
		if a.refused(a.status) && known() {
			return leftOut("the device is known, and enrolment wants a token or is closed")
		}
		return failed("Is enrolment closed, or does it want a token (--enrollment-token-file)? With a credential nothing enrols (--credential-file).", "enrol was answered %v%s", a, r.clockOff(a))
	case http.StatusForbidden:
		return failed(remedyKilled, "enrol was answered %v: the kill switch is on", a)
	default:
		return failed(remedyReach, "enrol was answered %v", a)
	}
	var got struct {
		Subject string `json:"subject"`
		Issuer  string `json:"issuer"`
	}
	if err := a.read(&got); err != nil {
		return failed(remedyReach, "%v", err)
	}
	return r.identity("enrol", got.Issuer, got.Subject)
}

// identity checks who the signer says that it and the caller are.
func (r *round) identity(call, issuer, subject string) verdict {
	switch {
	case issuer != r.cfg.Issuer:
		return failed("Is the probe's issuer mistyped, or does the request reach another signer?", "%s says that the issuer is %q", call, issuer)
	case subject == "":
		return failed("The signer is broken: stop it.", "%s names no subject", call)
	case r.subject != "" && r.subject != subject:
		return failed("A subject must never change: was the subject key lost, or is this another deployment?", "%s says that the subject is %q, and it was %q", call, subject, r.subject)
	}
	r.subject = subject
	return passed("subject %s", subject)
}

// status asks who the caller is.
func (r *round) status(ctx context.Context) verdict {
	a, err := r.call(ctx, pathStatus, struct{}{})
	if err != nil {
		r.unknown = "status was not answered"
		return failed(remedyReach, "%v", err)
	}
	switch a.status {
	case http.StatusOK:
	case http.StatusUnauthorized:
		r.unknown = "the signer does not accept this caller"
		return failed("Was the credential revoked or the device invalidated, is it another issuer's, or is a clock off?", "status was answered %v%s", a, r.clockOff(a))
	default:
		return failed(remedyReach, "status was answered %v", a)
	}
	var got struct {
		Issuer    string            `json:"issuer"`
		Subject   string            `json:"subject"`
		Disabled  bool              `json:"disabled"`
		Audiences map[string]string `json:"audiences"`
	}
	if err := a.read(&got); err != nil {
		return failed(remedyReach, "%v", err)
	}
	for _, audience := range got.Audiences {
		r.listed = append(r.listed, audience)
	}
	r.covered = got.Disabled
	v := r.identity("status", got.Issuer, got.Subject)
	if v.outcome == Passed && got.Disabled {
		v.detail += ", disabled by the kill switch"
	}
	return v
}

// disabled says whether an answer of status says so.
func disabled(a answer) bool {
	var got struct {
		Disabled bool `json:"disabled"`
	}
	return a.read(&got) == nil && got.Disabled
}

// signRequest is the body of a sign.
type signRequest struct {
	Audience string `json:"audience"`
	Nonce    string `json:"nonce"`
}

// sign asks for a token.
func (r *round) sign(ctx context.Context) verdict {
	if r.unknown != "" {
		return leftOut("%s", r.unknown)
	}
	proof, err := r.authorization(pathSign)
	if err != nil {
		return failed("", "%v", err)
	}
	r.request = signRequest{r.cfg.Audience, rand.Text()}
	r.sent = r.cfg.Now()
	a, err := r.post(ctx, r.way, pathSign, proof, r.request)
	if err != nil {
		r.unwell = "sign was not answered"
		return failed(remedyReach, "%v", err)
	}
	if v := signAnswered(a.status, a); v.outcome != Passed {
		switch r.covered = r.covered || a.refused(http.StatusForbidden); {
		case !a.refused(a.status), a.status == http.StatusServiceUnavailable, a.status == http.StatusTooManyRequests:
			r.unwell = fmt.Sprintf("sign was answered %v", a)
		}
		return v
	}
	if !a.isJSON() {
		r.unwell = "sign was not answered by the signer"
		return failed(remedyReach, "sign was answered with content that is not JSON: is that the signer?")
	}
	if r.covered {
		if a, err := r.call(ctx, pathStatus, struct{}{}); err != nil || disabled(a) {
			return failed("Is the kill switch enforced everywhere? See pactctl kill status and pactctl fleet status.", "sign gives a token to a caller that status says is disabled")
		}
		r.covered = false // it was lifted meanwhile
	}
	r.proof, r.signed, r.apart = proof, a.body, r.clockOff(a)
	return passed("a token for %s", r.cfg.Audience)
}

// signAnswered judges how a sign that must work was answered.
func signAnswered(status int, said fmt.Stringer) verdict {
	switch status {
	case http.StatusOK:
		return passed("")
	case http.StatusForbidden:
		return failed(remedyKilled, "sign was answered %v: the kill switch covers this caller or its audience", said)
	case http.StatusUnprocessableEntity:
		return failed(remedySetup, "sign was answered %v", said)
	case http.StatusServiceUnavailable:
		return failed("See why replicas are not ready: /readyz on their ops listeners, and pactctl fleet status.", "sign was answered %v", said)
	}
	return failed("The signer's log of that time says more.", "sign was answered %v", said)
}

// verify checks the token as an agent does and as a Provider does, under the key set
// as it is published now.
func (r *round) verify(ctx context.Context) verdict {
	if r.signed == nil {
		return leftOut("there is no token")
	}
	first := ""
	for range signAttempts {
		kid, err := r.verifies(ctx, r.signed, r.request.Nonce)
		var missing *missingKeyError
		switch {
		case err == nil:
			r.kid = kid
			return passed("key %s", kid)
		case errors.Is(err, errNoKeySet):
			return leftOut("%v", err)
		case !errors.As(err, &missing):
			return failed("Do not trust its tokens until it is known why. If a clock is off, set that.", "%v%s", err, r.apart)
		case first == "":
			first = missing.kid
		case missing.kid != first:
			return failed("", "two keys that sign are not in the key set, %s and %s", first, missing.kid)
		}
		// A key that was revoked in this moment leaves the set at once, and signs no more.
		if !pause(ctx, signAgain) || r.again(ctx) != nil {
			break
		}
	}
	return failed("Providers refuse these tokens. See pactctl keys, and jwks_replicas below.", "key %s signs and is not in the key set", first)
}

// How often a token is asked for whose key is in the key set, and after what time.
const (
	signAttempts = 3
	signAgain    = time.Second
)

// again asks for another token.
func (r *round) again(ctx context.Context) error {
	proof, err := r.authorization(pathSign)
	if err != nil {
		return err
	}
	r.sent = r.cfg.Now()
	a, err := r.post(ctx, r.way, pathSign, proof, r.request)
	if err == nil && a.status != http.StatusOK {
		err = fmt.Errorf("sign was answered %v", a)
	}
	if err == nil {
		r.proof, r.signed = proof, a.body
	}
	return err
}

// missingKeyError: a token's key is not published.
type missingKeyError struct{ kid string }

func (e *missingKeyError) Error() string { return "key " + e.kid + " is not in the key set" }

var errNoKeySet = errors.New("the key set cannot be had")

// maxTokenAge is how old a token may look that was made when it was asked for: clocks
// may differ by 30 s, and iat has whole seconds. maxTokens is how many are remembered.
const (
	maxTokenAge = 31 * time.Second
	maxTokens   = 8
)

var algorithms = []jose.SignatureAlgorithm{jose.ES256, jose.RS256}

// verifies checks a signer's answer and the token in it, and returns the key's id.
func (r *round) verifies(ctx context.Context, body []byte, nonce string) (string, error) {
	want := agent.SignWant{Issuer: r.cfg.Issuer, Audience: r.cfg.Audience, Nonce: nonce, Subject: r.subject}
	token, err := agent.CheckSignResponse(body, want, r.cfg.Now())
	if err != nil {
		return "", err
	}
	switch {
	case token.KeyID == "" || token.ID == "":
		return "", errors.New("the token has no kid or no jti")
	case slices.Contains(r.tokens, token.ID):
		return "", errors.New("the token is one that was given out before (jti): does a cache answer?")
	case token.IssuedAt.Before(r.sent.Add(-maxTokenAge)):
		return "", fmt.Errorf("the token was made more than %v before it was asked for (iat): does a cache answer?", maxTokenAge)
	}
	r.tokens = append(r.tokens[max(0, len(r.tokens)-maxTokens+1):], token.ID)
	parsed, err := jwks.ParseCompact(token.Reveal(), algorithms...)
	if err != nil {
		return "", err
	}
	set, err := r.published(ctx)
	if err != nil {
		return "", errNoKeySet
	}
	key, ok := set.Find(token.KeyID, parsed.Algorithm)
	if !ok {
		return "", &missingKeyError{token.KeyID}
	}
	if _, err := parsed.Verify(key.Public); err != nil {
		return "", errors.New("the token's signature does not verify")
	}
	if accepted(token.Reveal(), set) {
		return "", errors.New("the probe's own verifier takes the token with alg none")
	}
	return token.KeyID, nil
}

// accepted says whether the token passes once its header says alg none.
func accepted(compact string, set jwks.Set) bool {
	_, rest, _ := strings.Cut(compact, ".")
	payload, signature, _ := strings.Cut(rest, ".")
	header, err := json.Marshal(map[string]string{"alg": "none", "typ": "JWT"}, json.Deterministic(true))
	if err != nil {
		return true
	}
	for _, s := range []string{"", signature} {
		altered, err := jwks.ParseCompact(b64(header)+"."+payload+"."+s, algorithms...)
		if err != nil {
			continue
		}
		if slices.ContainsFunc(set.Keys, func(k jwks.Key) bool { _, err := altered.Verify(k.Public); return err == nil }) {
			return true
		}
	}
	return false
}

// pause waits; false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
