package conformance

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/jwks"
)

// issuer is one of the suite's own personal agents' issuers: it signs tokens and
// serves its keys.
type issuer struct {
	url    string
	es, rs *signer
	server *http.Server
	served sync.WaitGroup

	mu        sync.Mutex
	published []jwks.Key
	reads     int // of the key set
}

// signer is a private key and its kid.
type signer struct {
	key crypto.Signer
	kid string
	alg jose.SignatureAlgorithm
}

func newSigner(key crypto.Signer) (*signer, error) {
	kid, err := jwks.Thumbprint(key.Public())
	if err != nil {
		return nil, fmt.Errorf("conformance: %w", err)
	}
	alg := jose.ES256
	if _, ok := key.(*rsa.PrivateKey); ok {
		alg = jose.RS256
	}
	return &signer{key, kid, alg}, nil
}

func (s *signer) public() jwks.Key {
	return jwks.Key{ID: s.kid, Algorithm: s.alg, Public: s.key.Public()}
}

func newES256() (*signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("conformance: %w", err)
	}
	return newSigner(key)
}

// rsaKeys are the RSA keys of the two issuers. They take long to draw, so a process
// does it once.
var rsaKeys = [2]func() (*rsa.PrivateKey, error){
	sync.OnceValues(newRSA), sync.OnceValues(newRSA),
}

func newRSA() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) }

// openIssuer serves issuer number n until close.
func openIssuer(n int, e Endpoint) (*issuer, error) {
	i := &issuer{}
	var err error
	if i.es, err = newES256(); err != nil {
		return nil, err
	}
	key, err := rsaKeys[n]()
	if err != nil {
		return nil, fmt.Errorf("conformance: %w", err)
	}
	if i.rs, err = newSigner(key); err != nil {
		return nil, err
	}
	i.publish(i.es, i.rs)
	var l net.Listener
	if l, i.url, err = e.listen(n); err != nil {
		return nil, err
	}
	i.server = &http.Server{Handler: i.handler(), ReadHeaderTimeout: 10 * time.Second}
	i.served.Go(func() { _ = i.server.Serve(l) }) // it ends with close
	return i, nil
}

func (i *issuer) close() {
	_ = i.server.Close()
	i.served.Wait()
}

// publish adds keys to the issuer's key set.
func (i *issuer) publish(keys ...*signer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, k := range keys {
		i.published = append(i.published, k.public())
	}
}

// timesRead is how often the key set was read.
func (i *issuer) timesRead() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.reads
}

func (i *issuer) handler() http.Handler {
	serve := func(w http.ResponseWriter, body []byte, err error) {
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-cache")
		_, _ = w.Write(body) // a client that went away is nobody's error
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+jwks.WellKnownPath, func(w http.ResponseWriter, _ *http.Request) {
		i.mu.Lock()
		i.reads++
		body, err := jwks.Marshal(i.published)
		i.mu.Unlock()
		serve(w, body, err)
	})
	mux.HandleFunc("GET "+jwks.DiscoveryPath, func(w http.ResponseWriter, _ *http.Request) {
		doc, err := jwks.Discovery(i.url, jose.ES256, jose.RS256)
		serve(w, doc.Body, err)
	})
	return mux
}

// token is a JWT in the making: any header, any claims, signed by any means.
type token struct {
	header, claims map[string]any
	sign           func(input string) []byte
}

// change alters a token before it is signed.
type change func(*token)

// claim sets a claim; nil takes it away.
func claim(name string, value any) change {
	return func(t *token) { set(t.claims, name, value) }
}

// header sets a header member; nil takes it away.
func header(name string, value any) change {
	return func(t *token) { set(t.header, name, value) }
}

func set(m map[string]any, name string, value any) {
	if value == nil {
		delete(m, name)
		return
	}
	m[name] = value
}

// signedBy signs with that key, under its algorithm and kid.
func signedBy(s *signer) change {
	return func(t *token) {
		t.header["alg"], t.header["kid"] = string(s.alg), s.kid
		t.sign = s.sign
	}
}

// signature signs by other means than the header says.
func signature(sign func(input string) []byte) change {
	return func(t *token) { t.sign = sign }
}

// tokenLife is exp - iat of the suite's tokens.
const tokenLife = 120 * time.Second

// token mints a PA-JWT of issuer i for the run's subject, altered by the changes. With
// none it is a good one.
func (r *run) token(i *issuer, changes ...change) string {
	now := r.now()
	t := &token{
		header: map[string]any{"typ": "JWT"},
		claims: map[string]any{
			"iss": i.url, "sub": r.subject, "aud": r.cfg.Audience,
			"iat": now.Unix(), "exp": now.Add(tokenLife).Unix(), "jti": newUUID(),
		},
	}
	signedBy(i.es)(t)
	for _, c := range changes {
		c(t)
	}
	return t.compact()
}

// compact is the signed JWT (RFC 7515 section 7.1).
func (t *token) compact() string {
	part := func(m map[string]any) string {
		b, err := json.Marshal(m, json.Deterministic(true))
		if err != nil {
			panic(err) // the suite's own values, which encode
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	input := part(t.header) + "." + part(t.claims)
	return input + "." + base64.RawURLEncoding.EncodeToString(t.sign(input))
}

// sign signs under the key's own algorithm.
func (s *signer) sign(input string) []byte {
	sum := sha256.Sum256([]byte(input))
	if key, ok := s.key.(*rsa.PrivateKey); ok {
		sig, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
		return must(sig, err)
	}
	r, sv, err := ecdsa.Sign(rand.Reader, s.key.(*ecdsa.PrivateKey), sum[:])
	sig := make([]byte, 64) // RFC 7518 section 3.4
	must(r, err).FillBytes(sig[:32])
	must[*big.Int](sv, err).FillBytes(sig[32:])
	return sig
}

// must is for the suite's own sound keys, which always sign.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// tampered is a compact JWS with one bit of its signature changed.
func tampered(compact string) string {
	dot := strings.LastIndexByte(compact, '.')
	sig, err := base64.RawURLEncoding.DecodeString(compact[dot+1:])
	if err != nil || len(sig) == 0 {
		return compact + "A"
	}
	sig[len(sig)/2] ^= 1
	return compact[:dot+1] + base64.RawURLEncoding.EncodeToString(sig)
}
