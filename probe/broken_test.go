package probe_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/jwks"
	"github.com/pactsigner/pactsigner/probe"
)

const (
	signPath   = "/pact/sign"
	statusPath = "/pact/status"
	enrollPath = "/pact/enroll"
)

// give answers with JSON.
func give(w http.ResponseWriter, status int, body any) bool {
	data, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(data)
	return true
}

// accept answers a sign as if it were right.
func accept(w http.ResponseWriter, x *exchange) bool {
	return give(w, http.StatusOK, map[string]any{"token": "a.b.c", "nonce": x.asks["nonce"]})
}

// edit changes a member of the signer's 200.
func edit(w http.ResponseWriter, x *exchange, change func(map[string]any)) bool {
	got := map[string]any{}
	if x.answer.Code != http.StatusOK || json.Unmarshal(x.answer.Body.Bytes(), &got) != nil {
		return false
	}
	change(got)
	return give(w, http.StatusOK, got)
}

// assertion reads the device assertion of a request.
func (x *exchange) assertion() (header, claims map[string]any, signature string) {
	compact, ok := strings.CutPrefix(x.Header.Get("Authorization"), "PACT-Device ")
	parts := strings.Split(compact, ".")
	if !ok || len(parts) != 3 {
		return nil, nil, ""
	}
	for i, into := range []*map[string]any{&header, &claims} {
		data, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err != nil || json.Unmarshal(data, into) != nil {
			return nil, nil, ""
		}
	}
	return header, claims, parts[2]
}

// only breaks an endpoint.
func only(path string, f breaker) breaker {
	return func(w http.ResponseWriter, x *exchange) bool { return x.URL.Path == path && f(w, x) }
}

// Whatever is broken, the check for it fails, and no other.
func TestBroken(t *testing.T) {
	world := newWorld(t)
	var mu sync.Mutex
	seen := map[string]bool{}
	first := func(x *exchange) bool {
		mu.Lock()
		defer mu.Unlock()
		key := x.Header.Get("Authorization")
		defer func() { seen[key] = true }()
		return !seen[key]
	}
	otherKeys := func(w http.ResponseWriter, _ *exchange) bool {
		return give(w, http.StatusOK, json.RawMessage(otherSet(t)))
	}
	for name, c := range map[string]struct {
		breaks breaker
		failed []string
		says   string // the detail of the first of them
	}{
		"nothing": {breaks: func(http.ResponseWriter, *exchange) bool { return false }},
		"replays are accepted": {only(signPath, func(w http.ResponseWriter, x *exchange) bool {
			return !first(x) && x.answer.Code == http.StatusUnauthorized && x.asks["sub"] == nil && strings.HasPrefix(x.Header.Get("Authorization"), "PACT-Device") && accept(w, x)
		}), []string{probe.CheckReplayed}, "a used assertion was accepted"},
		"any audience is registered": {only(signPath, func(w http.ResponseWriter, x *exchange) bool {
			return x.answer.Code == http.StatusUnprocessableEntity && accept(w, x)
		}), []string{probe.CheckUnregistered}, "must be answered 422 audience_not_registered"},
		"unregistered is 404": {only(signPath, func(w http.ResponseWriter, x *exchange) bool {
			return x.answer.Code == http.StatusUnprocessableEntity && give(w, http.StatusNotFound, map[string]string{"error": "audience_not_registered"})
		}), []string{probe.CheckUnregistered}, "404"},
		"another's nonce": {only(signPath, func(w http.ResponseWriter, x *exchange) bool {
			return edit(w, x, func(m map[string]any) { m["nonce"] = "another" })
		}), []string{probe.CheckVerify}, "nonce"},
		"another's token": {only(signPath, func(w http.ResponseWriter, x *exchange) bool {
			return edit(w, x, func(m map[string]any) { m["token"] = m["token"].(string)[:20] })
		}), []string{probe.CheckVerify}, "token"},
		"changed signature": {only(signPath, func(w http.ResponseWriter, x *exchange) bool {
			return edit(w, x, func(m map[string]any) {
				token := m["token"].(string)
				end := strings.LastIndexByte(token, '.') + 1
				m["token"] = token[:end] + strings.Map(func(r rune) rune {
					if r == 'A' {
						return 'B'
					}
					return 'A'
				}, token[end:end+1]) + token[end+1:]
			})
		}), []string{probe.CheckVerify}, "does not verify"},
		"the key that signs is not published": {only(jwks.WellKnownPath, otherKeys), []string{probe.CheckVerify}, "signs and is not in the key set"},
		"no key set":                          {only(jwks.WellKnownPath, fail(http.StatusServiceUnavailable)), []string{probe.CheckJWKS}, "503"},
		"an empty key set": {only(jwks.WellKnownPath, func(w http.ResponseWriter, x *exchange) bool {
			return give(w, http.StatusOK, map[string]any{"keys": []any{}})
		}), []string{probe.CheckJWKS}, "no key"},
		"nobody may keep the key set": {only(jwks.WellKnownPath, func(w http.ResponseWriter, x *exchange) bool {
			w.Header().Set("Cache-Control", "no-store")
			return give(w, http.StatusOK, json.RawMessage(x.answer.Body.Bytes()))
		}), []string{probe.CheckJWKS}, "no-store"},
		"discovery is another's": {only(jwks.DiscoveryPath, func(w http.ResponseWriter, x *exchange) bool {
			return edit(w, x, func(m map[string]any) { m["jwks_uri"] = "https://elsewhere.example/keys" })
		}), []string{probe.CheckJWKS}, "does not name this issuer"},
		"sign fails":            {only(signPath, fail(http.StatusInternalServerError)), []string{probe.CheckSign}, "500"},
		"sign is unavailable":   {only(signPath, func(w http.ResponseWriter, _ *exchange) bool { return unavailable(w) }), []string{probe.CheckSign}, "503 unavailable"},
		"all is unavailable":    {func(w http.ResponseWriter, _ *exchange) bool { return unavailable(w) }, []string{probe.CheckEnroll, probe.CheckStatus, probe.CheckSign, probe.CheckJWKS}, "503 unavailable"},
		"sign redirects":        {only(signPath, redirect), []string{probe.CheckSign}, "307"},
		"sign answers a page":   {only(signPath, page), []string{probe.CheckSign}, "not JSON"},
		"status answers a page": {only(statusPath, page), []string{probe.CheckStatus}, "not JSON"},
		"status fails":          {only(statusPath, fail(http.StatusBadGateway)), []string{probe.CheckStatus}, "502"},
		"connections are cut": {only(signPath, func(w http.ResponseWriter, x *exchange) bool {
			panic(http.ErrAbortHandler)
		}), []string{probe.CheckSign}, "no answer"},
		"more than can be read": {only(signPath, func(w http.ResponseWriter, x *exchange) bool {
			io.Copy(w, io.LimitReader(zeros{}, 1<<20)) // until the reader leaves
			return true
		}), []string{probe.CheckSign}, "64 KiB"},
		"assertions are good for every call": {only(signPath, func(w http.ResponseWriter, x *exchange) bool {
			_, claims, _ := x.assertion()
			aud, _ := claims["aud"].(string)
			return strings.HasSuffix(aud, statusPath) && accept(w, x)
		}), []string{probe.CheckEndpoint}, "was accepted"},
		"alg none is accepted": {only(signPath, func(w http.ResponseWriter, x *exchange) bool {
			header, _, signature := x.assertion()
			return header["alg"] == "none" && signature == "" && accept(w, x)
		}), []string{probe.CheckAlgNone}, "was accepted"},
		"alg none is accepted with some signature": {only(signPath, func(w http.ResponseWriter, x *exchange) bool {
			header, _, signature := x.assertion()
			return header["alg"] == "none" && signature != "" && accept(w, x)
		}), []string{probe.CheckAlgNone}, "was accepted"},
		"expired is accepted": {only(signPath, func(w http.ResponseWriter, x *exchange) bool {
			_, claims, _ := x.assertion()
			exp, ok := claims["exp"].(float64)
			return ok && time.Now().After(time.Unix(int64(exp), 0)) && accept(w, x)
		}), []string{probe.CheckExpired}, "was accepted"},
		"signatures are not checked": {only(signPath, func(w http.ResponseWriter, x *exchange) bool {
			fresh := first(x)
			header, claims, _ := x.assertion()
			exp, _ := claims["exp"].(float64)
			aud, _ := claims["aud"].(string)
			return fresh && x.answer.Code == http.StatusUnauthorized && header["alg"] == "ES256" && time.Now().Before(time.Unix(int64(exp), 0)) &&
				strings.HasSuffix(aud, signPath) && accept(w, x)
		}), []string{probe.CheckTampered}, "was accepted"},
		"credentials are not looked up": {only(signPath, func(w http.ResponseWriter, x *exchange) bool {
			return strings.HasPrefix(x.Header.Get("Authorization"), "Bearer ") && accept(w, x)
		}), []string{probe.CheckCredential}, "was accepted"},
		"members are ignored": {only(signPath, func(w http.ResponseWriter, x *exchange) bool {
			return x.asks["sub"] != nil && accept(w, x)
		}), []string{probe.CheckMember}, "must be answered 400 invalid_request"},
		"kills are not enforced": {only(signPath, func(w http.ResponseWriter, x *exchange) bool {
			return x.asks["audience"] == probe.DefaultKilledAudience && accept(w, x)
		}), []string{probe.CheckKilled}, "must be answered 403 disabled"},
		"somebody else's 403": {only(signPath, func(w http.ResponseWriter, x *exchange) bool {
			return x.answer.Code == http.StatusForbidden && fail(http.StatusForbidden)(w, x)
		}), []string{probe.CheckKilled}, "403, which is not in the signer's words"},
		"a killed audience is listed": {only(statusPath, func(w http.ResponseWriter, x *exchange) bool {
			return edit(w, x, func(m map[string]any) {
				m["audiences"].(map[string]any)["https://k.example"] = probe.DefaultKilledAudience
			})
		}), []string{probe.CheckKilled}, "status lists it"},
		"status says disabled": {only(statusPath, func(w http.ResponseWriter, x *exchange) bool {
			return edit(w, x, func(m map[string]any) { m["disabled"] = true })
		}), []string{probe.CheckSign}, "to a caller that status says is disabled"},
		"another subject": {only(statusPath, func(w http.ResponseWriter, x *exchange) bool {
			return edit(w, x, func(m map[string]any) { m["subject"] = "pa_another" })
		}), []string{probe.CheckStatus}, "pa_another"},
		"another issuer": {only(statusPath, func(w http.ResponseWriter, x *exchange) bool {
			return edit(w, x, func(m map[string]any) { m["issuer"] = "https://another.example" })
		}), []string{probe.CheckStatus}, "https://another.example"},
		"enrolment fails": {only(enrollPath, fail(http.StatusInternalServerError)), []string{probe.CheckEnroll}, "500"},
	} {
		t.Run(name, func(t *testing.T) {
			config := world.config()
			config.ConnectTo = world.proxy(t, c.breaks)
			r := round(t, config)
			wants(t, r, c.failed...)
			if len(c.failed) == 0 {
				return
			}
			if d := find(t, r, c.failed[0]); !strings.Contains(d.Detail, c.says) || d.Remedy == "" {
				t.Errorf("%s says %q and %q, not %q", d.Check, d.Detail, d.Remedy, c.says)
			}
		})
	}
}

func fail(status int) breaker {
	return func(w http.ResponseWriter, _ *exchange) bool {
		http.Error(w, "an ingress says no", status)
		return true
	}
}

func unavailable(w http.ResponseWriter) bool {
	return give(w, http.StatusServiceUnavailable, map[string]string{"error": "unavailable"})
}

func redirect(w http.ResponseWriter, x *exchange) bool {
	http.Redirect(w, x.Request, "/elsewhere", http.StatusTemporaryRedirect)
	return true
}

func page(w http.ResponseWriter, _ *exchange) bool {
	io.WriteString(w, "<html>Welcome")
	return true
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// otherSet is a good key set of other keys.
func otherSet(t *testing.T) []byte {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jwks.Marshal([]jwks.Key{{ID: "other", Algorithm: jose.ES256, Public: &private.PublicKey}})
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// A token that was given out before is another's, or a cache's.
func TestSameToken(t *testing.T) {
	w := newWorld(t)
	c := w.config()
	var mu sync.Mutex
	var first any
	c.ConnectTo = w.proxy(t, only(signPath, func(out http.ResponseWriter, x *exchange) bool {
		return edit(out, x, func(m map[string]any) {
			mu.Lock()
			defer mu.Unlock()
			if first == nil {
				first = m["token"]
			}
			m["token"] = first
		})
	}))
	p, err := probe.New(c)
	if err != nil {
		t.Fatal(err)
	}
	wants(t, p.Round(t.Context()))
	r := p.Round(t.Context())
	wants(t, r, probe.CheckVerify)
	if got := find(t, r, probe.CheckVerify); !strings.Contains(got.Detail, "given out before") {
		t.Errorf("%+v", got)
	}
}

// A signer that answers late, or not at all, fails sign alone, and is left at the
// time that was given.
func TestLate(t *testing.T) {
	w := newWorld(t)
	slow := only(signPath, func(out http.ResponseWriter, x *exchange) bool {
		if x.answer.Code != http.StatusOK {
			return false
		}
		late := time.NewTimer(1500 * time.Millisecond)
		defer late.Stop()
		select {
		case <-late.C:
		case <-x.Context().Done():
		}
		return false
	})
	c := w.config()
	c.ConnectTo, c.Deadline = w.proxy(t, slow), time.Second
	r := round(t, c)
	if got := find(t, r, probe.CheckSign); got.Outcome != probe.Failed || !strings.Contains(got.Detail, "1s is the deadline") {
		t.Errorf("%+v", got)
	}
	if got := find(t, r, probe.CheckVerify); got.Outcome != probe.Passed {
		t.Errorf("%+v", got)
	}

	c.ConnectTo = w.proxy(t, only(signPath, func(_ http.ResponseWriter, x *exchange) bool {
		<-x.Context().Done()
		return true
	}))
	c.Deadline, c.Timeout = 5*time.Second, 5*time.Second
	r = round(t, c)
	if got := find(t, r, probe.CheckSign); got.Outcome != probe.Failed || !strings.Contains(got.Detail, "no answer within 5s") {
		t.Errorf("%+v", got)
	}
	if got := find(t, r, probe.CheckAlgNone); got.Outcome != probe.LeftOut || !strings.Contains(got.Detail, "sign was not answered") { // or each would wait
		t.Errorf("%+v", got)
	}
}

// An issuer whose tokens say what they must not, with good signatures.
func TestTokens(t *testing.T) {
	w := newWorld(t)
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	set, err := jwks.Marshal([]jwks.Key{{ID: "k", Algorithm: jose.ES256, Public: &private.PublicKey}})
	if err != nil {
		t.Fatal(err)
	}
	from := func(seconds int64) int64 { return time.Now().Unix() + seconds }
	for name, c := range map[string]struct {
		change func(claims, header map[string]any)
		says   string
	}{
		"good":            {func(_, _ map[string]any) {}, ""},
		"issuer":          {func(c, _ map[string]any) { c["iss"] = "https://another.example" }, "token.iss"},
		"subject":         {func(c, _ map[string]any) { c["sub"] = "pa_another" }, "another subject"},
		"audience":        {func(c, _ map[string]any) { c["aud"] = "urn:another" }, "token.aud"},
		"two audiences":   {func(c, _ map[string]any) { c["aud"] = []any{probe.DefaultAudience} }, "token.aud"},
		"lives too long":  {func(c, _ map[string]any) { c["exp"] = c["iat"].(float64) + 301 }, "token.exp"},
		"expired":         {func(c, _ map[string]any) { c["iat"], c["exp"] = from(-200), from(-100) }, "token.exp"},
		"from the future": {func(c, _ map[string]any) { c["iat"], c["exp"] = from(100), from(200) }, "token.iat"},
		"made long ago":   {func(c, _ map[string]any) { c["iat"], c["exp"] = from(-60), from(60) }, "before it was asked for"},
		"no jti":          {func(c, _ map[string]any) { delete(c, "jti") }, "jti"},
		"no kid":          {func(_, h map[string]any) { delete(h, "kid") }, "kid"},
		"unknown kid":     {func(_, h map[string]any) { h["kid"] = "other" }, "key other signs and is not in the key set"},
	} {
		t.Run(name, func(t *testing.T) {
			config := w.config()
			config.ConnectTo = w.proxy(t, func(out http.ResponseWriter, x *exchange) bool {
				if x.URL.Path == jwks.WellKnownPath {
					return give(out, http.StatusOK, json.RawMessage(set))
				}
				return x.URL.Path == signPath && edit(out, x, func(m map[string]any) {
					payload, err := base64.RawURLEncoding.DecodeString(strings.Split(m["token"].(string), ".")[1])
					claims, header := map[string]any{}, map[string]any{"kid": "k"}
					if err != nil || json.Unmarshal(payload, &claims) != nil {
						t.Errorf("token: %v", err)
					}
					c.change(claims, header)
					m["token"] = signed(t, private, claims, header)
				})
			})
			r := round(t, config)
			got := find(t, r, probe.CheckVerify)
			if c.says == "" {
				wants(t, r)
			} else if wants(t, r, probe.CheckVerify); !strings.Contains(got.Detail, c.says) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// signed makes a token.
func signed(t *testing.T, key *ecdsa.PrivateKey, claims, header map[string]any) string {
	t.Helper()
	options := &jose.SignerOptions{}
	for name, v := range header {
		options.WithHeader(jose.HeaderKey(name), v)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, options)
	if err != nil {
		t.Error(err)
		return ""
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Error(err)
		return ""
	}
	jws, err := signer.Sign(payload)
	if err != nil {
		t.Error(err)
		return ""
	}
	token, err := jws.CompactSerialize()
	if err != nil {
		t.Error(err)
	}
	return token
}

// A replica with another key set fails, and one that is only a moment behind does not.
func TestReplicas(t *testing.T) {
	w := newWorld(t)
	var asked atomic.Int32
	other := otherSet(t)
	for name, c := range map[string]struct {
		replica breaker
		settle  time.Duration
		failed  []string
		says    string
	}{
		"stale": {only(jwks.WellKnownPath, func(out http.ResponseWriter, _ *exchange) bool {
			return give(out, http.StatusOK, json.RawMessage(other))
		}), time.Nanosecond, []string{probe.CheckReplicas}, "serves another key set (other) than the public URL"},
		"behind for a moment": {only(jwks.WellKnownPath, func(out http.ResponseWriter, _ *exchange) bool {
			return asked.Add(1) < 3 && give(out, http.StatusOK, json.RawMessage(other))
		}), time.Minute, nil, "agreed after "},
		"not ready":     {only(jwks.WellKnownPath, func(out http.ResponseWriter, _ *exchange) bool { return unavailable(out) }), time.Nanosecond, []string{probe.CheckReplicas}, "503 unavailable"},
		"other issuer":  {only(jwks.WellKnownPath, fail(http.StatusNotFound)), time.Nanosecond, []string{probe.CheckReplicas}, "404"},
		"does not sign": {only(signPath, func(out http.ResponseWriter, _ *exchange) bool { return unavailable(out) }), time.Nanosecond, nil, "2 replicas agree"},
		"takes replays": {only(signPath, accept), time.Nanosecond, []string{probe.CheckReplayed}, "at 127.0.0.1:"},
	} {
		t.Run(name, func(t *testing.T) {
			config := w.config()
			config.Replicas = []string{w.public(), w.proxy(t, c.replica)}
			config.Settle = c.settle
			r := round(t, config)
			wants(t, r, c.failed...)
			check := probe.CheckReplicas
			if len(c.failed) > 0 {
				check = c.failed[0]
			}
			if d := find(t, r, check).Detail; !strings.Contains(d, c.says) {
				t.Error(d)
			}
		})
	}
}

// While replicas are replaced DNS names some that have ended. They count for nothing
// once they are not named any more, and whoever is named and silent all the time does.
func TestReplaced(t *testing.T) {
	w := newWorld(t)
	up, port, err := net.SplitHostPort(w.public())
	if err != nil {
		t.Fatal(err)
	}
	caller := w.credential(t)                                             // which replays nothing, so that jwks_replicas alone resolves names
	ended := func(n int32) string { return fmt.Sprintf("127.0.1.%d", n) } // where nobody listens
	for name, c := range map[string]struct {
		lookup func(n int32) ([]string, error) // n is 1 the first time that jwks_replicas asks
		settle time.Duration
		says   string
		fails  bool
	}{
		"a replica ended": {func(n int32) ([]string, error) {
			if n > 2 {
				return []string{up}, nil
			}
			return []string{up, ended(1)}, nil
		}, time.Minute, "1 replica agrees with the public URL; agreed after", false},
		"one after another ends": {func(n int32) ([]string, error) { return []string{ended(n), up}, nil }, time.Minute, "with the public URL; 127.0.1.", false},
		"all are replaced":       {func(n int32) ([]string, error) { return []string{ended(n)}, nil }, 5 * time.Second, "no replica answers", true},
		"a replica is dead":      {func(int32) ([]string, error) { return []string{up, ended(1)}, nil }, time.Second, "replica 127.0.1.1:" + port + ": no answer", true},
		"not at once": {func(n int32) ([]string, error) {
			if n > 1 {
				return []string{up}, nil
			}
			return nil, errors.New("no such host")
		}, time.Minute, "agreed after", false},
		"not at all": {func(int32) ([]string, error) { return nil, errors.New("no such host") }, time.Nanosecond, "find the replicas: no such host", true},
	} {
		t.Run(name, func(t *testing.T) {
			config := w.config()
			config.Device, config.Credential = nil, caller
			config.Replicas, config.Settle = []string{"replicas.example:" + port}, c.settle
			var asked atomic.Int32
			config.Lookup = func(_ context.Context, host string) ([]string, error) {
				if host != "replicas.example" {
					t.Error(host)
				}
				return c.lookup(asked.Add(1))
			}
			r := round(t, config)
			got := find(t, r, probe.CheckReplicas)
			if (got.Outcome == probe.Failed) != c.fails || !strings.Contains(got.Detail, c.says) {
				t.Errorf("%+v", got)
			}
			if c.fails {
				wants(t, r, probe.CheckReplicas)
			}
		})
	}
}

// However many replicas there are, so many are asked at a time that this does no harm.
// Nor is one asked before all names are looked up, whose time slow replicas would take.
func TestManyReplicas(t *testing.T) {
	w := newWorld(t)
	const least = 3
	var now, most atomic.Int32
	var known atomic.Bool
	several := make(chan struct{}) // closed when so many requests are there at the same time
	signer := w.broken(t, nil)
	replica := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if !known.Load() {
			t.Error("a replica is asked, and another's name is not looked up")
		}
		n := now.Add(1)
		defer now.Add(-1)
		for old := most.Load(); n > old; old = most.Load() {
			if most.CompareAndSwap(old, n) {
				if old < least && n >= least {
					close(several)
				}
				break
			}
		}
		select {
		case <-several:
		case <-r.Context().Done():
		}
		signer.ServeHTTP(out, r)
	}))
	defer replica.Close()
	config := w.config()
	for range 99 {
		config.Replicas = append(config.Replicas, hostPort(replica.URL))
	}
	host, port, err := net.SplitHostPort(hostPort(replica.URL))
	if err != nil {
		t.Fatal(err)
	}
	config.Replicas = append(config.Replicas, "last.example:"+port)
	config.Lookup = func(context.Context, string) ([]string, error) { known.Store(true); return []string{host}, nil }
	r := round(t, config)
	wants(t, r)
	if got := find(t, r, probe.CheckReplicas); !strings.HasPrefix(got.Detail, "100 replicas agree") {
		t.Errorf("%+v", got)
	}
	if n := most.Load(); n < least || n > 32 { // the key sets' and the replay's
		t.Errorf("%d requests at the same time", n)
	}
}

// A cache's copy of the key set may be older: replicas are compared with one another.
func TestCache(t *testing.T) {
	w := newWorld(t)
	real := w.schedule(t).JWKS
	c := w.config()
	c.ConnectTo = w.proxy(t, only(jwks.WellKnownPath, func(out http.ResponseWriter, _ *exchange) bool {
		out.Header().Set("Age", "120")
		var set struct{ Keys []json.RawMessage }
		var more struct{ Keys []json.RawMessage }
		if json.Unmarshal(real, &set) != nil || json.Unmarshal(otherSet(t), &more) != nil {
			t.Error("the key set cannot be read")
		}
		return give(out, http.StatusOK, map[string]any{"keys": append(set.Keys, more.Keys...)})
	}))
	c.Replicas = []string{w.public()}
	c.Settle = time.Nanosecond
	c.Schedule = func(context.Context) (probe.Schedule, error) { return w.schedule(t), nil }
	r := round(t, c)
	wants(t, r)
	for _, check := range []string{probe.CheckReplicas, probe.CheckSchedule} {
		if d := find(t, r, check).Detail; !strings.Contains(d, "not compared") {
			t.Error(d)
		}
	}
}

// The key set is held to the schedule.
func TestSchedule(t *testing.T) {
	w := newWorld(t)
	now := time.Now()
	var asked atomic.Int32
	for name, c := range map[string]struct {
		change func(*probe.Schedule) error
		settle time.Duration
		says   string // of a failure; empty: it passes
	}{
		"as it is": {func(*probe.Schedule) error { return nil }, time.Nanosecond, ""},
		"a key is missing": {func(s *probe.Schedule) error {
			s.Keys = append(s.Keys, probe.Key{ID: "new", State: "published"})
			return nil
		}, time.Nanosecond, "are published"},
		"a key that is to come": {func(s *probe.Schedule) error {
			s.Keys = append(s.Keys, probe.Key{ID: "new", State: "pending"})
			return nil
		}, time.Nanosecond, ""},
		"another key set":     {func(s *probe.Schedule) error { s.JWKS = otherSet(t); s.Keys[0].ID = "other"; return nil }, time.Nanosecond, "the public URL serves another key set"},
		"a replica is behind": {func(s *probe.Schedule) error { s.Replicas["b"] = 2; return nil }, time.Nanosecond, "replica b serves revision 2 of the schedule, and the newest is 3"},
		"a replica was behind": {func(s *probe.Schedule) error {
			if asked.Add(1) < 3 {
				s.Replicas["b"] = 2
			}
			return nil
		}, time.Minute, ""},
		"signs too early":        {func(s *probe.Schedule) error { s.Keys[0].SignAt = now.Add(time.Hour); return nil }, time.Nanosecond, "was not to"},
		"signs as clocks differ": {func(s *probe.Schedule) error { s.Keys[0].SignAt = time.Now().Add(2 * time.Second); return nil }, time.Nanosecond, ""},
		"signs too late": {func(s *probe.Schedule) error {
			s.Keys[0].SignAt, s.Keys[0].RetireAt = now.Add(-time.Hour), now.Add(-time.Minute)
			return nil
		}, time.Nanosecond, "was not to"},
		"cannot be asked": {func(*probe.Schedule) error { return errors.New("the admin listener is away") }, time.Nanosecond, "the admin listener is away"},
	} {
		t.Run(name, func(t *testing.T) {
			config := w.config()
			config.Settle = c.settle
			config.Schedule = func(context.Context) (probe.Schedule, error) {
				s := w.schedule(t)
				return s, c.change(&s)
			}
			r := round(t, config)
			if c.says == "" {
				wants(t, r)
				return
			}
			wants(t, r, probe.CheckSchedule)
			if d := find(t, r, probe.CheckSchedule).Detail; !strings.Contains(d, c.says) {
				t.Error(d)
			}
		})
	}
}

// A key that is revoked between the token and the key set is no failure: the next token
// is by another.
func TestRevokedMeanwhile(t *testing.T) {
	w := newWorld(t)
	var served atomic.Int32
	c := w.config()
	c.ConnectTo = w.proxy(t, func(out http.ResponseWriter, x *exchange) bool {
		// The set lacks the first token's key once; by then an emergency has replaced it.
		return x.URL.Path == jwks.WellKnownPath && served.Add(1) == 1 && give(out, http.StatusOK, json.RawMessage(otherSet(t)))
	})
	wants(t, round(t, c))
}
