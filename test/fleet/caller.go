package fleet

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// Caller is who asks for tokens: a device or a credential.
type Caller struct {
	Name       string
	Credential string // its secret; empty: a device
	ID         string // as operators see it: thumbprint, or credential id

	point  []byte
	signer jose.Signer
}

// NewDevice makes a device key, which is not enrolled yet.
func NewDevice(t T, name string) *Caller {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("device key: %v", err)
	}
	sum, err := (&jose.JSONWebKey{Key: key.Public()}).Thumbprint(crypto.SHA256)
	if err != nil {
		t.Fatalf("device key: %v", err)
	}
	c := &Caller{Name: name, ID: base64.RawURLEncoding.EncodeToString(sum)}
	if c.point, err = key.PublicKey.Bytes(); err != nil { // 0x04 || X || Y
		t.Fatalf("device key: %v", err)
	}
	c.signer, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: c.ID}},
		(&jose.SignerOptions{}).WithType("pact-device+jwt"))
	if err != nil {
		t.Fatalf("device key: %v", err)
	}
	return c
}

// NewCredential has the operator make a credential.
func (f *Fleet) NewCredential(t T, via *Replica, name string) *Caller {
	t.Helper()
	out := f.MustPactctl(t, via, "credentials", "create", "--name", name, "-o", "json")
	var made struct{ ID, Credential string }
	if err := json.Unmarshal([]byte(out), &made); err != nil || made.Credential == "" {
		t.Fatalf("credentials create: %v: %s", err, out)
	}
	return &Caller{Name: name, Credential: made.Credential, ID: made.ID}
}

// Device tells whether the caller is a device.
func (c *Caller) Device() bool { return c.Credential == "" }

// authorization is the Authorization of one call of a URL.
func (c *Caller) authorization(url string) string {
	if c.Device() {
		return "PACT-Device " + c.assertion(url)
	}
	return "Bearer " + c.Credential
}

// assertion proves the device's key to a URL, once.
func (c *Caller) assertion(url string) string {
	now := time.Now().Unix()
	compact, err := jwt.Signed(c.signer).Claims(map[string]any{
		"iss": c.ID, "aud": url, "iat": now, "exp": now + 60, "jti": rand.Text(),
	}).Serialize()
	if err != nil {
		panic(err) // a key of ours signs a map of strings and numbers
	}
	return compact
}

// jwk is the public half as enrol wants it.
func (c *Caller) jwk() *signerv1.PublicJwk {
	b64 := base64.RawURLEncoding.EncodeToString
	alg, use := "ES256", "sig"
	return &signerv1.PublicJwk{Kty: "EC", Crv: "P-256", X: b64(c.point[1:33]), Y: b64(c.point[33:]), Kid: c.ID, Alg: &alg, Use: &use}
}
