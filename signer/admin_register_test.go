package signer_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// The registration JWT is the one that protocol.md describes, verified here with
// the key set that the signer publishes.
func TestAdminRegister(t *testing.T) {
	w := newAdminWorld(t, issuerA)
	set, err := w.admin().GetKeySet(ctx, &signerv1.GetKeySetRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var keys jose.JSONWebKeySet
	if err := json.Unmarshal([]byte(set.Jwks), &keys); err != nil {
		t.Fatal(err)
	}
	answer := http.StatusCreated
	var url, token string
	provider := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		want := fmt.Sprintf(`{"name":"my-agents","jwksUri":"%s/.well-known/jwks.json"}`, issuerA)
		if r.Method != "POST" || r.URL.Path != "/base/api/platforms" || r.Header.Get("Content-Type") != "application/json" || string(body) != want {
			t.Errorf("request: %s %s %v %s", r.Method, r.URL, r.Header, body)
		}
		token = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256})
		if err != nil {
			t.Errorf("token: %v", err)
			return
		}
		var claims jwt.Claims
		if err := parsed.Claims(keys.Key(parsed.Headers[0].KeyID)[0].Key, &claims); err != nil {
			t.Errorf("signature: %v", err)
		}
		life := claims.Expiry.Time().Sub(claims.IssuedAt.Time())
		if claims.Issuer != issuerA || claims.Subject != issuerA || len(claims.Audience) != 1 || claims.Audience[0] != url+"/base/api/platforms" || claims.ID == "" || life <= 0 || life > 300*time.Second {
			t.Errorf("claims: %+v", claims)
		}
		if answer == http.StatusFound {
			rw.Header().Set("Location", "/elsewhere")
		}
		rw.WriteHeader(answer)
		fmt.Fprintf(rw, `{"platform":{"id":"p1","name":"my-agents","issuer":%q,"jwksUri":"x","enabled":true}}`, issuerA)
	}))
	defer provider.Close()
	url = provider.URL
	req := &signerv1.RegisterProviderRequest{Provider: url + "/base/", Name: "my-agents"}

	for _, answer = range []int{201, 200} {
		resp, err := w.admin().RegisterProvider(ctx, req)
		if err != nil || resp.PlatformId != "p1" || resp.Created != (answer == 201) || !resp.Enabled || resp.Issuer != issuerA {
			t.Errorf("%d: %v, %v", answer, resp, err)
		}
		if e := w.lastAct(); e.Action != "provider.register" || e.Target != url+"/base/api/platforms" || e.Detail["name"] != "my-agents" || e.Detail["jti"] == "" || strings.Contains(e.String(), token) {
			t.Errorf("audit: %v", e)
		}
	}
	for code, want := range map[int]codes.Code{400: codes.FailedPrecondition, 401: codes.FailedPrecondition, 302: codes.FailedPrecondition, 409: codes.AlreadyExists, 503: codes.Unavailable} {
		answer = code
		if _, err := w.admin().RegisterProvider(ctx, req); status.Code(err) != want {
			t.Errorf("%d: %v", code, err)
		}
		if e := w.lastAct(); e.Action != "provider.register.failed" || e.Detail["error"] == "" || strings.Contains(e.String(), token) {
			t.Errorf("%d: audit: %v", code, e)
		}
	}
	for _, bad := range []*signerv1.RegisterProviderRequest{
		{Provider: url, Name: "X"}, {Provider: url, Name: "a"}, {Provider: url, Name: "-a"}, {Provider: url, Name: strings.Repeat("a", 64)},
		{Provider: "http://provider.example.com", Name: "my-agents"}, {Provider: url + "?x=1", Name: "my-agents"}, {Name: "my-agents"},
	} {
		if _, err := w.admin().RegisterProvider(ctx, bad); refusal(err).Reason != "INVALID_REQUEST" {
			t.Errorf("%v: %v", bad, err)
		}
	}
	provider.Close()
	if _, err := w.admin().RegisterProvider(ctx, req); status.Code(err) != codes.Unavailable || refusal(err).Reason != "PROVIDER_UNREACHABLE" {
		t.Errorf("nobody there: %v", err)
	}

	// The kill switch stops a registration, as it stops every signature.
	token = ""
	k, err := w.admin().Kill(ctx, &signerv1.KillRequest{Scope: &signerv1.Scope{Kind: "all"}, Reason: "drill"})
	if err != nil {
		t.Fatal(err)
	}
	w.wait(k.Entry.Epoch)
	_, err = w.admin().RegisterProvider(ctx, req)
	if refusal(err).Reason != "DISABLED" || refusal(err).Metadata["entry"] != k.Entry.Id || token != "" {
		t.Errorf("killed: %v", err)
	}
	if strings.Contains(w.log.String(), "eyJ") {
		t.Error("the log holds a token")
	}
}

// An issuer that signs RS256 cannot register, and is told what to do.
func TestAdminRegisterRS256(t *testing.T) {
	w := newAdminWorldWith(t, jose.RS256, issuerA)
	_, err := w.client(w.tokens[signer.RoleAdmin]).RegisterProvider(ctx, &signerv1.RegisterProviderRequest{Provider: "https://provider.example.com", Name: "my-agents"})
	if refusal(err).Reason != "ALGORITHM_NOT_SUPPORTED" || !strings.Contains(err.Error(), "rotate --to ES256") {
		t.Errorf("got %v", err)
	}
}
