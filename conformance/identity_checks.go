package conformance

import (
	"context"
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// authenticated is what the checks of tokens begin with: the card to ask, and an
// issuer whose good tokens are taken, so that a 401 means something.
func (r *run) authenticated(ctx context.Context) (*card, *issuer, error) {
	c, err := r.identity(ctx)
	if err != nil {
		return nil, nil, err
	}
	i, err := r.accepted(ctx)
	return c, i, err
}

func checkAuthAccepted(ctx context.Context, r *run) error {
	c, err := r.identity(ctx)
	if err != nil {
		return err
	}
	if _, err := r.accepted(ctx); err != nil {
		return *r.admitted[0]
	}
	token := r.token(r.issuers[0])
	for n := range 2 {
		a, err := r.tasks(ctx, c, token)
		if err != nil {
			return err
		}
		if a.status != http.StatusOK && n > 0 {
			return fmt.Errorf("the same token again: %w", a.not("200, for agents use a token until it ends"))
		}
		if err := a.wants(http.StatusOK); err != nil {
			return err
		}
	}
	return nil
}

func checkAuthRS256(ctx context.Context, r *run) error {
	c, i, err := r.authenticated(ctx)
	if err != nil {
		return err
	}
	a, err := r.tasks(ctx, c, r.token(i, signedBy(i.rs)))
	if err != nil {
		return err
	}
	return a.wants(http.StatusOK)
}

// authorize asks GET tasks with Authorization as given, which may be nothing.
func (r *run) authorize(ctx context.Context, c *card, authorization ...string) (*answer, error) {
	return r.do(ctx, call{method: http.MethodGet, url: c.interfaceURL + "/tasks", header: http.Header{"Authorization": authorization}})
}

func checkAuthMissing(ctx context.Context, r *run) error {
	c, _, err := r.authenticated(ctx)
	if err != nil {
		return err
	}
	a, err := r.authorize(ctx, c)
	if err != nil {
		return err
	}
	return a.unauthorized()
}

func checkAuthMalformed(ctx context.Context, r *run) error {
	c, i, err := r.authenticated(ctx)
	if err != nil {
		return err
	}
	good := r.token(i)
	var f findings
	for _, t := range []struct{ what, authorization string }{
		{"a word as token", "Bearer token"},
		{"a token without its signature", "Bearer " + good[:strings.LastIndexByte(good, '.')]},
		{"the scheme Basic", "Basic " + good},
		{"the scheme Token", "Token " + good},
		{"no scheme", good},
	} {
		a, err := r.authorize(ctx, c, t.authorization)
		if err == nil {
			err = a.unauthorized()
		}
		f.add(t.what, err)
	}
	return f.err()
}

// tokenCase is a token that must be refused.
type tokenCase struct{ what, token string }

// refused sends tokens that must be answered 401.
func refused(cases func(*run, *card, *issuer) []tokenCase) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		c, i, err := r.authenticated(ctx)
		if err != nil {
			return err
		}
		return r.refuses(ctx, c, cases(r, c, i))
	}
}

func (r *run) refuses(ctx context.Context, c *card, cases []tokenCase) error {
	var f findings
	for _, t := range cases {
		a, err := r.tasks(ctx, c, t.token)
		if err == nil {
			err = a.unauthorized()
		}
		f.add(t.what, err)
	}
	return f.err()
}

func signatureCases(r *run, _ *card, i *issuer) []tokenCase {
	good, other := r.token(i), r.token(i, claim("sub", r.stranger))
	stranger := must(newES256())
	swapped := other[:strings.LastIndexByte(other, '.')] + good[strings.LastIndexByte(good, '.'):]
	return []tokenCase{
		{"one bit of the signature changed", tampered(good)},
		{"another key under the same kid", r.token(i, signedBy(stranger), header("kid", i.es.kid))},
		{"the signature of another token", swapped},
	}
}

func algorithmCases(r *run, _ *card, i *issuer) []tokenCase {
	key := i.rs.key.(*rsa.PrivateKey)
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: must(x509.MarshalPKIXPublicKey(key.Public()))})
	hs256 := func(input string) []byte {
		mac := hmac.New(sha256.New, public)
		mac.Write([]byte(input))
		return mac.Sum(nil)
	}
	ps256 := func(input string) []byte {
		sum := sha256.Sum256([]byte(input))
		return must(rsa.SignPSS(rand.Reader, key, crypto.SHA256, sum[:], &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash}))
	}
	rs512 := func(input string) []byte {
		sum := sha512.Sum512([]byte(input))
		return must(rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA512, sum[:]))
	}
	none := func(string) []byte { return nil }
	return []tokenCase{
		{"alg none", r.token(i, header("alg", "none"), signature(none))},
		{"alg none without kid", r.token(i, header("alg", "none"), header("kid", nil), signature(none))},
		{"alg HS256 with the public key as secret", r.token(i, header("alg", "HS256"), header("kid", i.rs.kid), signature(hs256))},
		{"alg PS256", r.token(i, header("alg", "PS256"), header("kid", i.rs.kid), signature(ps256))},
		{"alg RS512", r.token(i, header("alg", "RS512"), header("kid", i.rs.kid), signature(rs512))},
	}
}

func kidCases(r *run, _ *card, i *issuer) []tokenCase {
	return []tokenCase{{"a kid that is not in the JWKS", r.token(i, header("kid", newID()))}}
}

func audienceCases(r *run, c *card, i *issuer) []tokenCase {
	aud := []rune(r.cfg.Audience)
	cases := []tokenCase{
		{"another aud", r.token(i, claim("aud", "https://other.invalid"))},
		{"an aud with more at its end", r.token(i, claim("aud", string(aud)+"x"))},
		{"an aud without its last character", r.token(i, claim("aud", string(aud[:len(aud)-1])))},
	}
	if c.interfaceURL != r.cfg.Audience {
		cases = append(cases, tokenCase{"the interface URL as aud", r.token(i, claim("aud", c.interfaceURL))})
	}
	return append(cases, tokenCase{"no aud", r.token(i, claim("aud", nil))})
}

func issuerCases(r *run, _ *card, i *issuer) []tokenCase {
	unknown := "https://issuer.invalid"
	if strings.HasPrefix(i.url, "http://") {
		unknown = "http://127.0.0.1:9" // nobody is there
	}
	return []tokenCase{
		{"iss with a slash at its end", r.token(i, claim("iss", i.url+"/"))},
		{"an iss without a JWKS", r.token(i, claim("iss", unknown))},
		{"no iss", r.token(i, claim("iss", nil))},
		{"the key of another issuer", r.token(i, signedBy(r.issuers[1].es))},
	}
}

const maxSubject = 256 // characters

func checkAuthSubject(ctx context.Context, r *run) error {
	c, i, err := r.authenticated(ctx)
	if err != nil {
		return err
	}
	var f findings
	f.add("", r.refuses(ctx, c, []tokenCase{
		{"no sub", r.token(i, claim("sub", nil))},
		{"an empty sub", r.token(i, claim("sub", ""))},
		{"a sub of 257 characters", r.token(i, claim("sub", strings.Repeat("s", maxSubject+1)))},
	}))
	a, err := r.tasks(ctx, c, r.token(i, claim("sub", strings.Repeat("s", maxSubject))))
	if err == nil {
		err = a.wants(http.StatusOK)
	}
	f.add("a sub of 256 characters", err)
	return f.err()
}

// beyondSkew is more than the 30 s of skew that a Provider may allow, and less than the
// minute that many libraries do; the clocks may differ by the rest.
const beyondSkew = 45 * time.Second

func (r *run) lived(i *issuer, issued time.Time, life time.Duration) string {
	return r.token(i, claim("iat", issued.Unix()), claim("exp", issued.Add(life).Unix()))
}

func futureCases(r *run, _ *card, i *issuer) []tokenCase {
	return []tokenCase{{"iat 45 s ahead", r.lived(i, r.now().Add(beyondSkew), tokenLife)}}
}

func expiredCases(r *run, _ *card, i *issuer) []tokenCase {
	return []tokenCase{{"exp 45 s ago", r.lived(i, r.now().Add(-beyondSkew-tokenLife), tokenLife)}}
}

func checkAuthLifetime(ctx context.Context, r *run) error {
	c, i, err := r.authenticated(ctx)
	if err != nil {
		return err
	}
	var f findings
	f.add("", r.refuses(ctx, c, []tokenCase{
		{"exp 340 s after iat", r.lived(i, r.now(), 340*time.Second)},
		{"no exp", r.token(i, claim("exp", nil))},
		{"no iat", r.token(i, claim("iat", nil))},
		{"an iat that is a string", r.token(i, claim("iat", fmt.Sprint(r.now().Unix())))},
	}))
	a, err := r.tasks(ctx, c, r.lived(i, r.now(), 300*time.Second))
	if err == nil {
		err = a.wants(http.StatusOK)
	}
	f.add("exp 300 s after iat", err)
	return f.err()
}

func checkAuthChallenge(ctx context.Context, r *run) error {
	c, i, err := r.authenticated(ctx)
	if err != nil {
		return err
	}
	good := r.token(i)
	var f findings
	for _, t := range []struct{ what, token string }{
		{"no token", ""},
		{"a word as token", "token"},
		{"a bad signature", tampered(good)},
		{"another aud", r.token(i, claim("aud", "https://other.invalid"))},
		{"an expired token", expiredCases(r, c, i)[0].token},
	} {
		a, err := r.tasks(ctx, c, t.token)
		if err == nil {
			err = a.challenges(challengeIdentity)
		}
		f.add(t.what, err)
	}
	a, err := r.sendBody(ctx, c, "", "", []byte("{"))
	if err == nil {
		err = a.challenges(challengeIdentity)
	}
	f.add("no token", err)
	return f.err()
}

// rotationTries are how many seconds after the first one a token by a new key is
// tried again.
const (
	rotationTries = 4
	rotationEvery = 9 * time.Second
)

func checkAuthRotation(ctx context.Context, r *run) error {
	c, i, err := r.authenticated(ctx)
	if err != nil {
		return err
	}
	// No token with an unknown kid was sent in the second issuer's name, so the
	// Provider reads its keys anew at once.
	if second, err := r.second(ctx); err == nil {
		i = second
	}
	key := must(newES256())
	i.publish(key)
	read := i.timesRead()
	for try := 0; ; try++ {
		a, err := r.tasks(ctx, c, r.token(i, signedBy(key)))
		if err != nil || a.status == http.StatusOK {
			return err
		}
		if try == rotationTries {
			return fmt.Errorf("%w, %v after the key was published; the JWKS was read %d times since",
				a.not("200"), rotationTries*rotationEvery, i.timesRead()-read)
		}
		if err := r.sleep(ctx, rotationEvery); err != nil {
			return err
		}
	}
}
