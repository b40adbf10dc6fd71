package sandbox

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
)

// TestIdentityIsStrict walks what makes a PA-JWT good or bad.
func TestIdentityIsStrict(t *testing.T) {
	w := newWorld(t)
	rsaKey := newKey(t, jose.RS256)
	w.issuer.change(func() { w.issuer.keys = append(w.issuer.keys, rsaKey) })
	now := w.clock.now().Unix()
	set := func(name string, value any) func(map[string]any) {
		return func(c map[string]any) {
			if value == nil {
				delete(c, name)
				return
			}
			c[name] = value
		}
	}
	times := func(iat, exp any) func(map[string]any) {
		return func(c map[string]any) { c["iat"], c["exp"] = iat, exp }
	}
	none := func(map[string]any) {}
	for _, tc := range []struct {
		name   string
		claims func(map[string]any)
		key    jose.JSONWebKey
		header map[jose.HeaderKey]any
		want   int
	}{
		{name: "good", claims: none, want: 200},
		{name: "good RS256", claims: none, key: rsaKey, want: 200},
		{name: "longest life", claims: times(now, now+300), want: 200},
		{name: "issued as far ahead as skew goes", claims: times(now+30, now+100), want: 200},
		{name: "expired as long ago as skew goes", claims: times(now-100, now-29), want: 200},
		{name: "longest sub", claims: set("sub", strings.Repeat("ü", 256)), want: 200},
		{name: "other claims", claims: set("name", map[string]any{"a": 1}), want: 200},
		{name: "lives too long", claims: times(now, now+301), want: 401},
		{name: "issued ahead", claims: times(now+32, now+100), want: 401},
		{name: "expired", claims: times(now-100, now-31), want: 401},
		{name: "ends before it starts", claims: times(now+10, now+10), want: 401},
		{name: "no iat", claims: set("iat", nil), want: 401},
		{name: "no exp", claims: set("exp", nil), want: 401},
		{name: "iat not whole", claims: set("iat", 1795964300.5), want: 401},
		{name: "exp a string", claims: set("exp", "1795964420"), want: 401},
		{name: "no sub", claims: set("sub", nil), want: 401},
		{name: "empty sub", claims: set("sub", ""), want: 401},
		{name: "long sub", claims: set("sub", strings.Repeat("u", 257)), want: 401},
		{name: "sub a number", claims: set("sub", 7), want: 401},
		{name: "no jti", claims: set("jti", nil), want: 401},
		{name: "jti a number", claims: set("jti", 7), want: 401},
		{name: "no iss", claims: set("iss", nil), want: 401},
		{name: "iss with a slash", claims: set("iss", w.issuer.url+"/"), want: 401},
		{name: "iss elsewhere", claims: set("iss", "https://pa.example"), want: 401},
		{name: "aud missing", claims: set("aud", nil), want: 401},
		{name: "aud the interface", claims: set("aud", w.url(MarrowID, "")), want: 401},
		{name: "aud with a slash", claims: set("aud", w.ready.Audience+"/"), want: 401},
		{name: "aud an array", claims: set("aud", []string{w.ready.Audience}), want: 401},
		{name: "key unknown", claims: none, key: newKey(t, jose.ES256), want: 401},
		{name: "kid missing", claims: none, header: map[jose.HeaderKey]any{"kid": ""}, want: 401},
		{name: "typ of something else", claims: none, header: map[jose.HeaderKey]any{"typ": "pact-device+jwt"}, want: 401},
		{name: "crit", claims: none, header: map[jose.HeaderKey]any{"crit": []string{"x"}, "x": 1}, want: 401},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w.t = t
			claims := w.claims()
			tc.claims(claims)
			key := tc.key
			if key.Key == nil {
				key = w.issuer.keys[0]
			}
			a := w.do(http.MethodGet, w.url(MarrowID, "tasks"), "", "Authorization: Bearer "+sign(t, key, claims, tc.header))
			if a.status != tc.want {
				t.Errorf("status %d, want %d", a.status, tc.want)
			}
			if a.status == 401 && (a.header.Get("WWW-Authenticate") != `Bearer realm="a2a"` || len(a.body) > 0) {
				t.Errorf("refused with %v %q", a.header, a.body)
			}
		})
	}
}

// TestIdentityHeader walks forms of the header and of the compact serialization.
func TestIdentityHeader(t *testing.T) {
	w := newWorld(t)
	good := w.token()
	parts := strings.Split(good, ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","kid":"` + w.issuer.keys[0].KeyID + `"}`))
	twice := base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"` + w.issuer.url + `","iss":"` + w.issuer.url + `"}`))
	for _, tc := range []struct {
		name    string
		headers []string
		want    int
	}{
		{"good", []string{"Bearer " + good}, 200},
		{"scheme in lower case", []string{"bearer " + good}, 200},
		{"again: no replay store", []string{"Bearer " + good}, 200},
		{"none", nil, 401},
		{"empty", []string{"Bearer "}, 401},
		{"another scheme", []string{"Basic " + good}, 401},
		{"two", []string{"Bearer " + good, "Bearer " + good}, 401},
		{"alg none", []string{"Bearer " + none + "." + parts[1] + ".AA"}, 401},
		{"no signature", []string{"Bearer " + parts[0] + "." + parts[1] + "."}, 401},
		{"signature of another", []string{"Bearer " + parts[0] + "." + parts[1] + "." + strings.Split(w.token(), ".")[2]}, 401},
		{"a claim twice", []string{"Bearer " + parts[0] + "." + twice + "." + parts[2]}, 401},
		{"four parts", []string{"Bearer " + good + ".AA"}, 401},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w.t = t
			var headers []string
			for _, h := range tc.headers {
				headers = append(headers, "Authorization: "+h)
			}
			if a := w.do(http.MethodGet, w.url(MarrowID, "tasks"), "", headers...); a.status != tc.want {
				t.Errorf("status %d, want %d", a.status, tc.want)
			}
		})
	}
}

func TestUnknownKidRefetchesOncePer30Seconds(t *testing.T) {
	w := newWorld(t)
	get := func(key jose.JSONWebKey) int {
		return w.do(http.MethodGet, w.url(MarrowID, "tasks"), "", "Authorization: Bearer "+sign(t, key, w.claims(), nil)).status
	}
	fetches := func(want int64) {
		t.Helper()
		if got := w.issuer.fetches.Load(); got != want {
			t.Fatalf("%d fetches, want %d", got, want)
		}
	}
	old, next, third := w.issuer.keys[0], newKey(t, jose.ES256), newKey(t, jose.ES256)
	if get(old) != 200 {
		t.Fatal("the first key does not work")
	}
	fetches(1)
	w.issuer.change(func() { w.issuer.keys = append(w.issuer.keys, next) })
	if get(next) != 200 {
		t.Fatal("a new key is not found")
	}
	fetches(2)
	w.issuer.change(func() { w.issuer.keys = append(w.issuer.keys, third) })
	w.clock.advance(29 * time.Second)
	if get(third) != 401 {
		t.Fatal("a second refetch within 30 s")
	}
	fetches(2)
	w.clock.advance(time.Second)
	if get(third) != 200 {
		t.Fatal("no refetch after 30 s")
	}
	fetches(3)
	// A key that is withdrawn works until the set is read again.
	w.issuer.change(func() { w.issuer.keys = w.issuer.keys[1:] })
	if get(old) != 200 {
		t.Fatal("the cached set is not used")
	}
	w.clock.advance(Defaults().KeySetTTL)
	if get(old) != 401 {
		t.Fatal("the set outlives its time")
	}
	fetches(4)
}

func TestIssuerFoundThroughDiscovery(t *testing.T) {
	for _, tc := range []struct {
		name string
		conf func(iss *issuer) any
		want int
	}{
		{"its own", func(i *issuer) any { return map[string]string{"issuer": i.url, "jwks_uri": i.url + "/keys"} }, 200},
		{"another issuer", func(i *issuer) any { return map[string]string{"issuer": i.url + "/", "jwks_uri": i.url + "/keys"} }, 401},
		{"keys elsewhere", func(i *issuer) any {
			elsewhere := newIssuer(t)
			elsewhere.keys = i.keys
			return map[string]string{"issuer": i.url, "jwks_uri": elsewhere.url + "/.well-known/jwks.json"}
		}, 401},
		{"no keys", func(i *issuer) any { return map[string]string{"issuer": i.url} }, 401},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			w.issuer.change(func() {
				w.issuer.serve = map[string]func() any{
					"/keys":                             w.issuer.jwks,
					"/.well-known/openid-configuration": func() any { return tc.conf(w.issuer) },
				}
			})
			if a := w.call(http.MethodGet, w.url(MarrowID, "tasks"), ""); a.status != tc.want {
				t.Errorf("status %d, want %d", a.status, tc.want)
			}
		})
	}
}

func TestLoopbackIssuers(t *testing.T) {
	local := Issuers{Local: true}
	for iss, want := range map[string]bool{
		"http://127.0.0.1:4312": true, "http://localhost": true, "http://[::1]": true, "https://127.1.2.3": true,
		"http://127.0.0.1:4312/": false, "http://127.0.0.1/x": false, "http://user@127.0.0.1": false,
		"http://127.0.0.1#": false, "http://127.0.0.1?x": false, "http://169.254.169.254": false,
		"http://localhost.example": false, "https://pa.example": false, "": false, "127.0.0.1": false, "ftp://localhost": false,
	} {
		if _, err := local.keys(iss, ""); (err == nil) != want {
			t.Errorf("%q: %v, want %v", iss, err, want)
		}
	}
}

func TestKeyFetcherGoesNowhereElse(t *testing.T) {
	f := newKeyFetcher(time.Now, Defaults())
	defer f.close()
	redirect := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
	}))
	defer redirect.Close()
	large := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, fetchLimit+1))
	}))
	defer large.Close()
	for name, address := range map[string]string{
		"http beyond loopback": "http://192.0.2.1/jwks", "an internal address": "https://10.0.0.1/jwks",
		"a redirect": redirect.URL + "/jwks", "too large": large.URL + "/jwks", "no URL": "http://[",
	} {
		if body, err := f.keySet(t.Context(), address); err == nil {
			t.Errorf("%s: got %q", name, body)
		}
	}
}

func TestRegistration(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Issuers = &Issuers{Local: true, Registered: true} })
	address := w.ready.Provider + platformsPath
	claims := func() map[string]any {
		c := w.claims()
		c["sub"], c["aud"] = w.issuer.url, address
		return c
	}
	body := func(members map[string]any) string {
		b, err := json.Marshal(members)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	keys := w.issuer.url + "/.well-known/jwks.json"
	good := map[string]any{"name": "my-pa", "jwksUri": keys}
	post := func(body string, claims map[string]any, key jose.JSONWebKey) answer {
		return w.do(http.MethodPost, address, body, "Content-Type: application/json", "Authorization: Bearer "+sign(t, key, claims, nil))
	}
	key := w.issuer.keys[0]
	rsaKey := newKey(t, jose.RS256)
	w.issuer.change(func() { w.issuer.keys = append(w.issuer.keys, rsaKey) })

	if a := w.call(http.MethodGet, w.url(MarrowID, "tasks"), ""); a.status != 401 {
		t.Fatalf("an issuer that is not registered: %d", a.status)
	}
	for name, bad := range map[string]string{
		"not JSON": "{", "other member": body(map[string]any{"name": "my-pa", "jwksUri": keys, "x": 1}),
		"member twice": `{"name":"my-pa","name":"my-pa","jwksUri":"` + keys + `"}`,
		"bad name":     body(map[string]any{"name": "My PA", "jwksUri": keys}),
		"short name":   body(map[string]any{"name": "a", "jwksUri": keys}),
		"no URL":       body(map[string]any{"name": "my-pa", "jwksUri": "keys"}),
		"http":         body(map[string]any{"name": "my-pa", "jwksUri": "http://pa.example/jwks.json"}),
		"elsewhere":    body(map[string]any{"name": "my-pa", "jwksUri": "https://pa.example/jwks.json"}),
	} {
		if a := post(bad, claims(), key); a.status != 400 {
			t.Errorf("%s: %d", name, a.status)
		}
	}
	with := func(name string, value any) map[string]any {
		c := claims()
		c[name] = value
		return c
	}
	for name, a := range map[string]answer{
		"no token":        w.do(http.MethodPost, address, body(good), "Content-Type: application/json"),
		"user's token":    post(body(good), with("sub", "user-7f3a"), key),
		"other audience":  post(body(good), with("aud", w.ready.Audience), key),
		"RS256":           post(body(good), claims(), rsaKey),
		"somebody's key":  post(body(good), claims(), newKey(t, jose.ES256)),
		"lives too long":  post(body(good), with("exp", w.clock.now().Unix()+301), key),
		"bad body, no ID": w.do(http.MethodPost, address, "{"),
	} {
		if a.status != 401 || a.header.Get("WWW-Authenticate") != `Bearer realm="platforms"` {
			t.Errorf("%s: %d %v", name, a.status, a.header)
		}
	}
	for i, want := range []int{201, 200} {
		a := post(body(good), claims(), key)
		if a.status != want {
			t.Fatalf("registration %d: %d %s", i, a.status, a.body)
		}
		p := a.json(t)["platform"].(map[string]any)
		if p["name"] != "my-pa" || p["issuer"] != w.issuer.url || p["jwksUri"] != keys || p["enabled"] != true || p["id"] == "" || len(p) != 5 {
			t.Errorf("platform %v", p)
		}
	}
	if a := post(body(map[string]any{"name": "other", "jwksUri": keys}), claims(), key); a.status != 409 {
		t.Errorf("the issuer under another name: %d", a.status)
	}
	if a := w.do(http.MethodGet, address, ""); a.status != 405 || a.header.Get("Allow") != "POST" {
		t.Errorf("GET: %d", a.status)
	}
	if a := w.call(http.MethodGet, w.url(MarrowID, "tasks"), ""); a.status != 200 {
		t.Errorf("a registered issuer: %d", a.status)
	}
	first := w.issuer
	w.issuer = newIssuer(t)
	keys = w.issuer.url + "/.well-known/jwks.json"
	if a := post(body(map[string]any{"name": "my-pa", "jwksUri": keys}), claims(), w.issuer.keys[0]); a.status != 409 {
		t.Errorf("a name that %s has: %d", first.url, a.status)
	}
}
