package probe

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/jwks"
)

// keyFile is the device key in a state folder.
const keyFile = "device.key"

const redacted = "[redacted]"

// Credential is a bearer secret. It prints as "[redacted]".
type Credential struct{ value string }

// NewCredential wraps a bearer secret.
func NewCredential(secret string) *Credential { return &Credential{secret} }

// String hides the secret.
func (*Credential) String() string { return redacted }

// GoString hides the secret.
func (*Credential) GoString() string { return redacted }

// Device is the P-256 key that a probe enrols. It prints as "[redacted]".
type Device struct {
	private    *ecdsa.PrivateKey
	thumbprint string
}

// String hides the key.
func (*Device) String() string { return redacted }

// GoString hides the key.
func (*Device) GoString() string { return redacted }

// Thumbprint is the id by which operators know the device.
func (d *Device) Thumbprint() string { return d.thumbprint }

// OpenDevice reads the device key in a folder, PKCS #8 as PEM in device.key, or
// makes folder (0700) and key (0600). A key that everybody on the machine may read
// is refused. A folder that cannot be written to will do if it holds a key.
func OpenDevice(dir string) (*Device, error) {
	path := filepath.Join(dir, keyFile)
	d, err := readDevice(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return d, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a device key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, fmt.Errorf("make a device key: %w", err)
	}
	// Whole or not at all, and another probe's that was quicker stays.
	temp, err := os.CreateTemp(dir, keyFile+".*") // 0600
	if err != nil {
		return nil, fmt.Errorf("keep the device key: %w", err)
	}
	defer os.Remove(temp.Name())
	err = pem.Encode(temp, &pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if err := errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return nil, fmt.Errorf("keep the device key: %w", err)
	}
	if err := os.Link(temp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("keep the device key: %w", err)
	}
	return readDevice(path)
}

func readDevice(path string) (*Device, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("device key: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return nil, fmt.Errorf("device key: %s has mode %04o, so everybody here may use it: chmod 600 it (a Secret's volume: defaultMode 0440)", path, mode)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("device key: %w", err)
	}
	block, _ := pem.Decode(content)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("device key: %s is not PKCS #8 in PEM: remove it, and another is made", path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	private, ok := key.(*ecdsa.PrivateKey)
	if err != nil || !ok || private.Curve != elliptic.P256() {
		return nil, fmt.Errorf("device key: %s holds no P-256 key: remove it, and another is made", path)
	}
	thumbprint, err := jwks.Thumbprint(&private.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("device key: %w", err)
	}
	return &Device{private, thumbprint}, nil
}

// publicJWK is the public half as enrol sends it.
func (d *Device) publicJWK() (map[string]string, error) {
	point, err := d.private.PublicKey.Bytes() // 4 || X || Y
	if err != nil {
		return nil, fmt.Errorf("device key: %w", err)
	}
	return map[string]string{
		"kty": "EC", "crv": "P-256", "x": b64(point[1:33]), "y": b64(point[33:]), "kid": d.thumbprint, "alg": "ES256", "use": "sig",
	}, nil
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// assertionLife is the longest that an assertion may live (docs/contract.md).
const assertionLife = 60 * time.Second

// assertion makes a device assertion for one endpoint, issued at a time. alg none
// signs nothing.
func (d *Device) assertion(endpoint string, at time.Time, alg string) (string, error) {
	header, err := json.Marshal(map[string]string{"alg": alg, "typ": "pact-device+jwt", "kid": d.thumbprint}, json.Deterministic(true))
	if err != nil {
		return "", fmt.Errorf("device assertion: %w", err)
	}
	claims, err := json.Marshal(struct {
		Issuer   string `json:"iss"`
		Audience string `json:"aud"`
		IssuedAt int64  `json:"iat"`
		Expires  int64  `json:"exp"`
		ID       string `json:"jti"`
	}{d.thumbprint, endpoint, at.Unix(), at.Add(assertionLife).Unix(), rand.Text()})
	if err != nil {
		return "", fmt.Errorf("device assertion: %w", err)
	}
	signed := b64(header) + "." + b64(claims)
	if alg == "none" {
		return signed + ".", nil
	}
	digest := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, d.private, digest[:])
	if err != nil {
		return "", fmt.Errorf("device assertion: %w", err)
	}
	signature := make([]byte, 64) // RFC 7518 section 3.4: R || S
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return signed + "." + b64(signature), nil
}
