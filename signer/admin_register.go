package signer

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"google.golang.org/grpc/codes"

	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/rotation"
)

const (
	// registrationTTL is how long a registration JWT lives; Providers allow 300 s.
	registrationTTL = 120 * time.Second
	// registrationMaxBody bounds what is read of a Provider's answer.
	registrationMaxBody = 64 << 10
)

var platformName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{1,62}$`)

// registrationClient follows no redirects: the JWT is for one URL.
func registrationClient(cfg AdminConfig) *http.Client {
	client := http.Client{}
	if cfg.HTTPClient != nil {
		client = *cfg.HTTPClient
	}
	client.Timeout = cfg.RegisterTimeout
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &client
}

// RegisterProvider implements signerv1.AdminServiceServer.
func (a *Admin) RegisterProvider(ctx context.Context, req *signerv1.RegisterProviderRequest) (*signerv1.RegisterProviderResponse, error) {
	i, err := a.issuer(req.Issuer)
	if err != nil {
		return nil, err
	}
	base, err := adminProviderURL("provider", req.Provider)
	if err != nil {
		return nil, err
	}
	if !platformName.MatchString(req.Name) {
		return nil, adminInvalid("name", "%q must be 2 to 63 of a-z, 0-9 and -, and not begin with -", adminShorten(req.Name, 64))
	}
	endpoint := base.JoinPath("api", "platforms").String()

	target := killswitch.Target{Issuer: i.URL}
	epoch, err := a.cfg.Guard.Check(target)
	if err != nil {
		return nil, adminKilled(err)
	}
	key, err := i.Keys.Signing()
	if err != nil {
		return nil, err
	}
	if key.Algorithm != jose.ES256 {
		return nil, adminRefuse(codes.FailedPrecondition, "ALGORITHM_NOT_SUPPORTED", map[string]string{"algorithm": string(key.Algorithm)},
			"issuer %s signs %s, and Providers register ES256 issuers only: rotate to it with pactctl rotate --to ES256, or ask the Provider to register the key set by hand", i.URL, key.Algorithm)
	}
	token, id, err := a.registrationToken(ctx, i, key, endpoint)
	if err != nil {
		return nil, err
	}
	e := a.entry(ctx, "provider.register", i.URL, endpoint, "")
	e.Detail["name"], e.Detail["kid"], e.Detail["jti"] = req.Name, key.KID, id
	if err := a.stands(ctx, a.cfg.Store.AppendAudit(ctx, e)); err != nil { // before it is used
		return nil, err
	}
	var resp *signerv1.RegisterProviderResponse
	answer, err := a.postRegistration(ctx, target, epoch, endpoint, token, req.Name, adminJWKSURI(i.URL))
	if err == nil {
		resp, err = answer.response(i.URL, endpoint)
	}
	if err != nil {
		e := a.entry(ctx, "provider.register.failed", i.URL, endpoint, "")
		e.Detail["name"], e.Detail["jti"], e.Detail["error"] = req.Name, id, adminShorten(adminMessage(err), 200)
		if logErr := a.stands(ctx, a.cfg.Store.AppendAudit(context.WithoutCancel(ctx), e)); logErr != nil {
			_ = a.failure(ctx, "RegisterProvider", logErr) // the Provider's answer matters more
		}
		return nil, err
	}
	return resp, nil
}

// adminKilled puts a refusal of the guard into words.
func adminKilled(err error) error {
	var killed *killswitch.KilledError
	if !errors.As(err, &killed) {
		return err
	}
	return adminRefuse(codes.FailedPrecondition, "DISABLED", map[string]string{"entry": killed.Entry},
		"the kill switch stops %s by entry %s, and so the registration: see pactctl kill status", killed.Scope, killed.Entry)
}

// registrationToken signs the JWT by which an issuer speaks for itself.
func (a *Admin) registrationToken(ctx context.Context, i Issuer, key rotation.Key, endpoint string) (token, id string, err error) {
	now := a.cfg.Now().Unix()
	id = rand.Text()
	header, err := json.Marshal(struct {
		Alg string `json:"alg"`
		Kid string `json:"kid"`
		Typ string `json:"typ"`
	}{string(key.Algorithm), key.KID, "JWT"})
	if err != nil {
		return "", "", fmt.Errorf("registration: %w", err)
	}
	claims, err := json.Marshal(struct {
		Iss string `json:"iss"`
		Sub string `json:"sub"`
		Aud string `json:"aud"`
		Iat int64  `json:"iat"`
		Exp int64  `json:"exp"`
		Jti string `json:"jti"`
	}{i.URL, i.URL, endpoint, now, now + int64(registrationTTL/time.Second), id})
	if err != nil {
		return "", "", fmt.Errorf("registration: %w", err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	input := b64(header) + "." + b64(claims)
	digest := sha256.Sum256([]byte(input))
	signature, err := a.cfg.Keyring.Sign(ctx, key.Ref, digest[:])
	if err != nil {
		return "", "", fmt.Errorf("sign the registration: %w", err)
	}
	return input + "." + b64(signature), id, nil
}

// providerAnswer is what a Provider said.
type providerAnswer struct {
	status     int
	retryAfter string
	body       []byte
}

// postRegistration sends the JWT, as a delivery under the kill switch: the last
// check comes before it leaves, and a kill's barrier waits until it has left.
func (a *Admin) postRegistration(ctx context.Context, target killswitch.Target, epoch uint64, endpoint, token, name, jwksURI string) (*providerAnswer, error) {
	body, err := json.Marshal(struct {
		Name    string `json:"name"`
		JWKSURI string `json:"jwksUri"`
	}{name, jwksURI})
	if err != nil {
		return nil, fmt.Errorf("registration: %w", err)
	}
	left := make(chan struct{})
	leave := sync.OnceFunc(func() { close(left) })
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { leave() }})
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, bytes.NewReader(body))
	if err != nil {
		return nil, adminInvalid("provider", "does not make a URL")
	}
	r.GetBody = nil // one attempt: the JWT is for single use
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")

	type result struct {
		answer *providerAnswer
		err    error
	}
	done := make(chan result, 1)
	err = a.cfg.Guard.Deliver(target, epoch, func() error {
		go func() {
			defer leave()
			resp, err := a.client.Do(r)
			if err != nil {
				done <- result{nil, err}
				return
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(io.LimitReader(resp.Body, registrationMaxBody+1))
			done <- result{&providerAnswer{resp.StatusCode, resp.Header.Get("Retry-After"), b}, err}
		}()
		<-left
		return nil
	})
	if err != nil {
		return nil, adminKilled(err)
	}
	res := <-done
	if res.err != nil {
		return nil, adminRefuse(codes.Unavailable, "PROVIDER_UNREACHABLE", nil,
			"%s cannot be reached, or did not answer within %s: is the provider URL right? (%s)", endpoint, a.cfg.RegisterTimeout, adminCause(res.err))
	}
	return res.answer, nil
}

// adminCause is why a request failed, without the request.
func adminCause(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return adminShorten(err.Error(), 200)
		}
		err = inner
	}
}

// response reads a Provider's answer.
func (p *providerAnswer) response(issuer, endpoint string) (*signerv1.RegisterProviderResponse, error) {
	meta := map[string]string{"status": strconv.Itoa(p.status)}
	refused := func(format string, args ...any) error {
		return adminRefuse(codes.FailedPrecondition, "PROVIDER_REFUSED", meta, "the Provider answered %d: %s", p.status, fmt.Sprintf(format, args...))
	}
	switch {
	case p.status == http.StatusOK || p.status == http.StatusCreated:
	case p.status == http.StatusBadRequest:
		return nil, refused("it does not take the name or the key set's URL, %s/.well-known/jwks.json; is that reachable for it?", issuer)
	case p.status == http.StatusUnauthorized:
		return nil, refused("it does not accept the issuer's own signature: it may not reach %s/.well-known/jwks.json, still cache an older key set, or not allow this issuer", issuer)
	case p.status == http.StatusConflict:
		return nil, adminRefuse(codes.AlreadyExists, "ALREADY_EXISTS", meta, "name: the Provider answered 409: the issuer is registered otherwise, or the name is another's; choose another --name or ask the Provider")
	case p.status == http.StatusTooManyRequests || p.status >= 500:
		if p.retryAfter != "" {
			meta["retryAfter"] = adminShorten(p.retryAfter, 64)
		}
		return nil, adminRefuse(codes.Unavailable, "PROVIDER_UNAVAILABLE", meta, "the Provider answered %d: try again later", p.status)
	case p.status >= 300 && p.status < 400:
		return nil, refused("it redirects, which is not followed: give --provider the URL that it redirects to")
	case p.status == http.StatusNotFound || p.status == http.StatusMethodNotAllowed:
		return nil, refused("there is no registration at %s: is the provider URL right?", endpoint)
	default:
		return nil, refused("that is not an answer to a registration")
	}
	var doc struct {
		Platform struct {
			ID      string `json:"id"`
			Name    string `json:"name"`
			Issuer  string `json:"issuer"`
			JWKSURI string `json:"jwksUri"`
			Enabled bool   `json:"enabled"`
		} `json:"platform"`
	}
	if len(p.body) > registrationMaxBody {
		return nil, refused("with more than %d bytes", registrationMaxBody)
	}
	if err := json.Unmarshal(p.body, &doc); err != nil || doc.Platform.ID == "" {
		return nil, refused("but its body is not {\"platform\": {…}}; ask the Provider whether the issuer is registered")
	}
	if doc.Platform.Issuer != issuer {
		return nil, refused("but for another issuer, %q", adminShorten(doc.Platform.Issuer, 128))
	}
	clip := func(s string) string { return adminShorten(strings.ToValidUTF8(s, "?"), 512) }
	return &signerv1.RegisterProviderResponse{
		PlatformId: clip(doc.Platform.ID), Name: clip(doc.Platform.Name), Issuer: issuer, JwksUri: clip(doc.Platform.JWKSURI),
		Enabled: doc.Platform.Enabled, Created: p.status == http.StatusCreated,
	}, nil
}
