package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/agent/egress"
	"github.com/pactsigner/pactsigner/jwks"
)

// assertionLife is how long a device assertion is good for (SG-3). It is of the
// protocol, so no scale changes it.
const assertionLife = 60 * time.Second

// deviceKey is the P-256 key by which a device is known to its signer.
type deviceKey struct {
	private    *ecdsa.PrivateKey
	thumbprint string
}

func newDeviceKey() (deviceKey, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return deviceKey{}, fmt.Errorf("device key: %w", err)
	}
	return thumbprinted(private)
}

func thumbprinted(private *ecdsa.PrivateKey) (deviceKey, error) {
	t, err := jwks.Thumbprint(&private.PublicKey)
	if err != nil {
		return deviceKey{}, fmt.Errorf("device key: %w", err)
	}
	return deviceKey{private, t}, nil
}

func parseDeviceKey(pkcs8 []byte) (deviceKey, error) {
	k, err := x509.ParsePKCS8PrivateKey(pkcs8)
	if err != nil {
		return deviceKey{}, errors.New("device key: it does not parse")
	}
	private, ok := k.(*ecdsa.PrivateKey)
	if !ok {
		return deviceKey{}, errors.New("device key: not an EC key")
	}
	return thumbprinted(private)
}

func (k deviceKey) pkcs8() ([]byte, error) { return x509.MarshalPKCS8PrivateKey(k.private) }

// String hides the key.
func (k deviceKey) String() string { return Redacted }

// GoString hides the key.
func (k deviceKey) GoString() string { return Redacted }

// assertion is a device assertion for one call of an endpoint (SG-3).
func (k deviceKey) assertion(endpoint string, now time.Time) (string, error) {
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: k.private, KeyID: k.thumbprint}},
		(&jose.SignerOptions{}).WithType("pact-device+jwt"))
	if err != nil {
		return "", fmt.Errorf("device assertion: %w", err)
	}
	claims, err := json.Marshal(struct {
		Issuer   string `json:"iss"`
		Audience string `json:"aud"`
		IssuedAt int64  `json:"iat"`
		Expires  int64  `json:"exp"`
		ID       string `json:"jti"`
	}{k.thumbprint, endpoint, now.Unix(), now.Add(assertionLife).Unix(), rand.Text()})
	if err != nil {
		return "", fmt.Errorf("device assertion: %w", err)
	}
	jws, err := signer.Sign(claims)
	if err != nil {
		return "", fmt.Errorf("device assertion: %w", err)
	}
	return jws.CompactSerialize()
}

// publicJWK is the key's public half as enrol sends it (SG-1).
type publicJWK struct {
	Type  string `json:"kty"`
	Curve string `json:"crv"`
	X     string `json:"x"`
	Y     string `json:"y"`
	KeyID string `json:"kid"`
	Alg   string `json:"alg"`
	Use   string `json:"use"`
}

func (k deviceKey) publicJWK() (publicJWK, error) {
	point, err := k.private.PublicKey.Bytes() // 4 || X || Y
	if err != nil {
		return publicJWK{}, fmt.Errorf("device key: %w", err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	return publicJWK{"EC", "P-256", b64(point[1:33]), b64(point[33:]), k.thumbprint, "ES256", "sig"}, nil
}

// signerClient calls one signer. It never says who it is but by its secret
// (SG-2).
type signerClient struct {
	do         func(context.Context, egress.Request) (egress.Response, error)
	now        func() time.Time
	url        string // without trailing slash
	device     deviceKey
	credential Secret // instead of device
}

// signerStatus is the signer's answer to status (SG-1).
type signerStatus struct {
	Issuer    string
	Subject   string
	Disabled  bool
	Audiences map[string]string // by provider origin
}

// sign asks for a token and returns the answer unread, and its nonce.
func (c *signerClient) sign(ctx context.Context, audience string) (body []byte, nonce string, err error) {
	nonce = rand.Text()
	body, err = c.call(ctx, "/pact/sign", map[string]string{"audience": audience, "nonce": nonce}, c.authorize)
	return body, nonce, err
}

func (c *signerClient) status(ctx context.Context) (signerStatus, error) {
	body, err := c.call(ctx, "/pact/status", struct{}{}, c.authorize)
	if err != nil {
		return signerStatus{}, err
	}
	r := &reader{reason: ReasonSignerUnavailable}
	o, err := parseObject(body)
	if err != nil {
		return signerStatus{}, refuse(StatusBlocked, ReasonSignerUnavailable, "the signer's status is %v", err)
	}
	s := signerStatus{
		Issuer: r.text(o, "", "issuer", true), Subject: r.text(o, "", "subject", false),
		Disabled: r.flag(o, "", "disabled"), Audiences: map[string]string{},
	}
	list, _ := r.object(o, "", "audiences", false)
	for _, m := range list { // as PR-2 wants them
		origin, audience := originOf(m.name), strings.TrimSpace(r.text(list, "audiences.", m.name, true))
		_, repeated := s.Audiences[origin]
		if origin != "" && !repeated && utf8.RuneCountInString(audience) <= maxAudience {
			s.Audiences[origin] = audience
		}
	}
	if len(r.problems) > 0 {
		return signerStatus{}, refuse(StatusBlocked, ReasonSignerUnavailable, "the signer's status cannot be read: %s", problemText(r.problems))
	}
	return s, nil
}

// enroll makes the device known. token is the enrolment token, if one is needed.
func (c *signerClient) enroll(ctx context.Context, token Secret) (subject, issuer string, err error) {
	proof, err := c.device.assertion(c.url+"/pact/enroll", c.now())
	if err != nil {
		return "", "", err
	}
	jwk, err := c.device.publicJWK()
	if err != nil {
		return "", "", err
	}
	body, err := c.call(ctx, "/pact/enroll", struct {
		PublicJWK publicJWK `json:"publicJwk"`
		Proof     string    `json:"proof"`
	}{jwk, proof}, func(string) (string, error) {
		if token == "" {
			return "", nil
		}
		return "Bearer " + token.Reveal(), nil
	})
	if err != nil {
		return "", "", err
	}
	r := &reader{reason: ReasonSignerUnavailable}
	o, err := parseObject(body)
	if err != nil {
		return "", "", refuse(StatusFailed, ReasonSignerUnavailable, "the signer's answer is %v", err)
	}
	subject, issuer = r.text(o, "", "subject", true), r.text(o, "", "issuer", true)
	if len(r.problems) > 0 {
		return "", "", refuse(StatusFailed, ReasonSignerUnavailable, "the signer's answer cannot be read: %s", problemText(r.problems))
	}
	return subject, issuer, nil
}

// authorize is the Authorization header of a call (SG-3).
func (c *signerClient) authorize(endpoint string) (string, error) {
	if c.credential != "" {
		return "Bearer " + c.credential.Reveal(), nil
	}
	a, err := c.device.assertion(endpoint, c.now())
	return "PACT-Device " + a, err
}

// call posts to an endpoint and maps what is not a 200 (SG-5). Errors are
// *Refusal.
func (c *signerClient) call(ctx context.Context, path string, request any, authorize func(string) (string, error)) ([]byte, error) {
	endpoint := c.url + path
	body, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("signer request: %w", err)
	}
	auth, err := authorize(endpoint)
	if err != nil {
		return nil, err
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if auth != "" {
		header.Set("Authorization", auth)
	}
	resp, err := c.do(ctx, egress.Request{Purpose: egress.Signer, Method: "POST", URL: endpoint, Header: header, Body: body})
	switch {
	case egress.CodeOf(err) == egress.PolicyDenied: // SG-12, TR-9
		return nil, refuseErr(StatusBlocked, string(egress.PolicyDenied), err)
	case err != nil:
		return nil, refuseErr(StatusBlocked, ReasonSignerUnavailable, err)
	}
	switch resp.Status {
	case http.StatusOK:
		return resp.Body, nil
	case http.StatusForbidden:
		return nil, refuse(StatusBlocked, ReasonSignerDisabled, "the signer is disabled")
	case http.StatusUnauthorized:
		return nil, refuse(StatusBlocked, ReasonCredentialRejected, "the signer does not accept this device or credential")
	case http.StatusTooManyRequests:
		return nil, refuse(StatusBlocked, ReasonSignerUnavailable, "the signer limits requests; try again later")
	case http.StatusNotFound, http.StatusUnprocessableEntity:
		if o, err := parseObject(resp.Body); err == nil && (&reader{}).text(o, "", "error", false) == ReasonAudienceUnknown {
			return nil, refuse(StatusBlocked, ReasonAudienceUnknown, "the signer has no registration for this audience: its operator makes one with pactctl audiences set")
		}
	}
	return nil, refuse(StatusBlocked, ReasonSignerUnavailable, "the signer answers HTTP %d", resp.Status)
}
