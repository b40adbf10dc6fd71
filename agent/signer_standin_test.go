package agent_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/jwks"
)

// signerStandIn is a signer by protocol.md.
type signerStandIn struct {
	mu         sync.Mutex
	url        string
	key        key
	issuer     string
	subject    string // of status
	tokenSub   string // of tokens; subject if empty
	disabled   bool
	credential string // accepted beside devices
	enrolToken string
	audiences  map[string]string
	devices    map[string]*ecdsa.PublicKey
	jtis       map[string]bool
	change     func(claims, header map[string]any) // of tokens
	fail       int                                 // HTTP status instead of an answer
	signed     int
	asked      int // statuses
	seen       []string
	hold       chan struct{} // sign waits for it, if not nil
	skew       time.Duration // of its clock
	noDate     bool          // its answers have no Date
	published  *string       // its key set; nil: the key that it signs with
}

func newSigner(t *testing.T) *signerStandIn {
	return &signerStandIn{
		key: newKey(t), url: signerURL, issuer: signerURL, subject: "pa_alice", audiences: map[string]string{provider: audience},
		devices: map[string]*ecdsa.PublicKey{}, jtis: map[string]bool{},
	}
}

// set changes the signer's mind.
func (s *signerStandIn) set(f func(*signerStandIn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func (s *signerStandIn) now() time.Time { return time.Now().Add(s.skew) }

func (s *signerStandIn) counts() (signed, asked int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signed, s.asked
}

func (s *signerStandIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var body bytes.Buffer
	_, _ = body.ReadFrom(r.Body)
	s.seen = append(s.seen, body.String())
	if !s.noDate {
		w.Header().Set("Date", s.now().UTC().Format(http.TimeFormat))
	}
	if r.URL.Path == "/.well-known/jwks.json" {
		set := string(s.key.set())
		if s.published != nil {
			set = *s.published
		}
		respond(w, 200, set)
		return
	}
	if s.fail != 0 {
		respond(w, s.fail, `{"error":"unavailable"}`)
		return
	}
	if r.URL.Path == "/pact/enroll" {
		s.enroll(w, r, body.Bytes())
		return
	}
	if !s.authorized(r) {
		respond(w, 401, `{"error":"unauthorized"}`)
		return
	}
	switch r.URL.Path {
	case "/pact/status":
		s.asked++
		respond(w, 200, map[string]any{"issuer": s.issuer, "subject": s.subject, "disabled": s.disabled, "audiences": s.audiences})
	case "/pact/sign":
		if s.hold != nil {
			hold := s.hold
			s.mu.Unlock()
			<-hold
			s.mu.Lock()
		}
		if s.disabled {
			respond(w, 403, `{"error":"disabled"}`)
			return
		}
		var req struct{ Audience, Nonce string }
		_ = json.Unmarshal(body.Bytes(), &req, json.MatchCaseInsensitiveNames(true))
		s.signed++
		sub := s.tokenSub
		if sub == "" {
			sub = s.subject
		}
		claims := map[string]any{
			"iss": s.issuer, "sub": sub, "aud": req.Audience, "jti": rand.Text(),
			"iat": s.now().Unix(), "exp": s.now().Unix() + 120,
		}
		if s.change != nil {
			s.change(claims, nil)
		}
		respond(w, 200, map[string]any{"token": s.key.sign(claims), "nonce": req.Nonce})
	default:
		respond(w, 404, `{}`)
	}
}

func (s *signerStandIn) enroll(w http.ResponseWriter, r *http.Request, body []byte) {
	var req struct {
		PublicJWK jose.JSONWebKey `json:"publicJwk"`
		Proof     string          `json:"proof"`
	}
	if s.enrolToken != "" && r.Header.Get("Authorization") != "Bearer "+s.enrolToken {
		respond(w, 401, `{"error":"unauthorized"}`)
		return
	}
	if err := json.Unmarshal(body, &req); err != nil || !req.PublicJWK.Valid() || !req.PublicJWK.IsPublic() {
		respond(w, 400, `{"error":"invalid_request"}`)
		return
	}
	pub := req.PublicJWK.Key.(*ecdsa.PublicKey)
	if !s.assertion(req.Proof, s.url+"/pact/enroll", map[string]*ecdsa.PublicKey{req.PublicJWK.KeyID: pub}) {
		respond(w, 401, `{"error":"unauthorized"}`)
		return
	}
	s.devices[req.PublicJWK.KeyID] = pub
	respond(w, 200, map[string]any{"subject": s.subject, "issuer": s.issuer})
}

func (s *signerStandIn) authorized(r *http.Request) bool {
	auth := r.Header.Get("Authorization")
	if a, ok := strings.CutPrefix(auth, "PACT-Device "); ok {
		return s.assertion(a, s.url+r.URL.Path, s.devices)
	}
	return s.credential != "" && auth == "Bearer "+s.credential
}

func (s *signerStandIn) assertion(compact, aud string, devices map[string]*ecdsa.PublicKey) bool {
	t, err := jwks.ParseCompact(compact, jose.ES256)
	if err != nil || t.Type != "pact-device+jwt" || devices[t.KeyID] == nil {
		return false
	}
	payload, err := t.Verify(devices[t.KeyID])
	if err != nil {
		return false
	}
	var c struct {
		Iss string `json:"iss"`
		Aud string `json:"aud"`
		Iat int64  `json:"iat"`
		Exp int64  `json:"exp"`
		Jti string `json:"jti"`
	}
	if json.Unmarshal(payload, &c) != nil || c.Iss != t.KeyID || c.Aud != aud || c.Exp-c.Iat != 60 || c.Jti == "" || s.jtis[c.Jti] {
		return false
	}
	s.jtis[c.Jti] = true
	return true
}
