package server

import (
	"context"
	"crypto/sha256"
	"net/http"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/pactsigner/pactsigner/internal/console"
	"github.com/pactsigner/pactsigner/signer"
)

// adminFace serves operators: the admin service, and the page on it. The first admin
// token's hash is in custody: until it has been read, only the tokens that the
// configuration names are known.
type adminFace struct {
	config signer.AdminConfig // without Tokens
	more   []signer.AdminToken
	page   *console.Console

	mu    sync.RWMutex
	first string        // the hash that admin knows
	known bool          // custody was asked for it
	admin *signer.Admin // nil: no token is known
}

func newAdminFace(cfg signer.AdminConfig, more []signer.AdminToken) (*adminFace, error) {
	f := &adminFace{config: cfg, more: more}
	return f, f.serve(more)
}

// learn lets the first admin token in, and no earlier one.
func (f *adminFace) learn(hash string) error {
	f.mu.Lock()
	same := f.known && f.first == hash
	f.mu.Unlock()
	if same {
		return nil
	}
	tokens, err := adminTokens(hash, nil)
	if err != nil {
		return err
	}
	if err := f.serve(append(tokens, f.more...)); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.first, f.known = hash, true
	return nil
}

// serve makes the service that knows these tokens.
func (f *adminFace) serve(tokens []signer.AdminToken) error {
	if len(tokens) == 0 {
		return nil
	}
	cfg := f.config
	cfg.Tokens = tokens
	admin, err := signer.NewAdmin(cfg)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.admin = admin
	return nil
}

// current is the service, if any token is known, and whether the first one is.
func (f *adminFace) current() (*signer.Admin, bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.admin, f.known
}

// servePage mounts the operator's page. secret is the same on every replica and known
// to nobody else.
func (f *adminFace) servePage(issuers []issuer, secret func(context.Context) ([]byte, error)) error {
	cfg := console.Config{
		Admin: func() (console.Admin, bool) {
			admin, known := f.current()
			if admin == nil {
				return nil, known
			}
			return admin, known
		},
		Secret: secret, Replica: f.config.Replica, Version: f.config.Version, Now: f.config.Now, Log: f.config.Log,
	}
	for _, is := range issuers {
		cfg.Issuers = append(cfg.Issuers, console.Issuer{URL: is.url, Period: is.params.Period, Lead: is.params.Lead})
	}
	var err error
	f.page, err = console.New(cfg)
	return err
}

// ServeHTTP implements http.Handler.
func (f *adminFace) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.page != nil && console.Serves(r.URL.Path) {
		f.page.ServeHTTP(w, r)
		return
	}
	admin, known := f.current()
	if admin == nil || !known && !f.configured(r) {
		adminUnknown(w, r)
		return
	}
	admin.Handler().ServeHTTP(w, r)
}

// configured says whether a request has a token that the configuration names.
func (f *adminFace) configured(r *http.Request) bool {
	_, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	hash := signer.Hash(sha256.Sum256([]byte(secret)))
	return slices.ContainsFunc(f.more, func(t signer.AdminToken) bool { return t.Hash == hash })
}

// adminUnknown answers 503, which on gRPC is a status of its own.
func adminUnknown(w http.ResponseWriter, r *http.Request) {
	const message = "the first admin token is not known yet: custody, which has its hash, cannot be reached, or `signer init` was not run; /readyz says which"
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		h.Set("Content-Type", "application/grpc")
		h.Set("Grpc-Status", "14") // codes.Unavailable
		h.Set("Grpc-Message", message)
		w.WriteHeader(http.StatusOK)
		return
	}
	h.Set("Content-Type", "application/json")
	h.Set("Retry-After", "2")
	w.WriteHeader(http.StatusServiceUnavailable)
	writeJSON(w, map[string]any{"code": int(codes.Unavailable), "message": message})
}

// pageSecrets is what the secret of the page's sessions is derived from. No subject
// is: those messages begin with a length.
const pageSecrets = "pact sessions of the operator's page"

// pageSecret is derived in custody, so that replicas have it in common, and nobody
// has it who has read a configuration or the store.
func (s *Server) pageSecret(ctx context.Context) ([]byte, error) {
	return s.state.keyring.MAC(ctx, []byte(pageSecrets))
}
