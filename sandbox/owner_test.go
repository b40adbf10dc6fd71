package sandbox

import (
	"context"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const testOwnerPassword = "owner of all"

func withOwner(c *Config) { c.OwnerPassword = testOwnerPassword }

// owning is a world whose owner is in front of a browser.
type owning struct {
	*world
	cookie string // as a header
}

func (w *world) owner(path string) string { return w.ready.Owner.URL + path }

// openOwner logs in as the owner.
func openOwner(t *testing.T, w *world) *owning {
	t.Helper()
	a := w.post(w.owner("/login"), url.Values{"password": {testOwnerPassword}})
	if a.status != http.StatusSeeOther || a.header.Get("Location") != OwnerPath {
		t.Fatalf("login: %d %s", a.status, a.body)
	}
	cookie, attributes, _ := strings.Cut(a.header.Get("Set-Cookie"), "; ")
	if attributes != "Path=/owner; HttpOnly; SameSite=Strict" {
		t.Errorf("cookie with %q", attributes)
	}
	return &owning{w, "Cookie: " + cookie}
}

func (o *owning) get(path string, headers ...string) answer {
	o.t.Helper()
	return o.do(http.MethodGet, o.owner(path), "", append(headers, o.cookie)...)
}

func (o *owning) submit(path string, form url.Values, headers ...string) answer {
	o.t.Helper()
	return o.do(http.MethodPost, o.owner(path), form.Encode(), append(headers, o.cookie, formType)...)
}

// token is what the forms of a page hold.
func (o *owning) token(a answer) string {
	o.t.Helper()
	found := regexp.MustCompile(`<input type="hidden" name="token" value="([A-Za-z0-9_-]{40,})">`).FindSubmatch(a.body)
	if a.status != http.StatusOK || found == nil {
		o.t.Fatalf("%d, no token in %s", a.status, a.body)
	}
	return string(found[1])
}

// granted makes a grant and returns its id and a delegation token.
func (w *world) granted(scopes ...string) (id, access, refresh string) {
	w.t.Helper()
	got := w.grant(0, strings.Join(scopes, " "))
	grants, err := w.sandbox.store.grantList(w.t.Context(), w.clock.now())
	if err != nil || len(grants) == 0 {
		w.t.Fatalf("%d grants, %v", len(grants), err)
	}
	return grants[0].id, text(w.t, got, "access_token"), text(w.t, got, "refresh_token")
}

func TestOwnerSeesAndRevokes(t *testing.T) {
	w := newWorld(t, withOwner)
	o := openOwner(t, w)
	says := func(a answer, wants ...string) {
		t.Helper()
		for _, want := range append(wants, "<title>") {
			if a.status != http.StatusOK || !strings.Contains(string(a.body), want) {
				t.Errorf("%d, no %q in %s", a.status, want, a.body)
			}
		}
	}
	says(o.get(""), "Nobody has allowed anything yet.")

	if _, _, err := w.sandbox.store.register(t.Context(), platform{Name: "my-pa", Issuer: w.issuer.url, JWKSURI: w.issuer.url + "/.well-known/jwks.json", Enabled: true}); err != nil {
		t.Fatal(err)
	}
	first, _, _ := w.granted(scopeHistory)
	w.clock.advance(time.Minute)
	id, access, refresh := w.granted(scopeUpcoming, scopeRebook)
	list := o.get("")
	says(list, "2 grants, newest first; 2 active.", "Larkline Air", "<bdi>"+w.issuer.url+"</bdi> (<bdi>user-7f3a</bdi>) for <bdi>Robin (lark-4471)</bdi>",
		"View your upcoming flights", "Rebook your flights", "View your past flights", "29 Nov 2026, 14:59:20 UTC", "27 Feb 2027, 14:59:20 UTC", "never")
	if newer, older := strings.Index(string(list.body), id), strings.Index(string(list.body), first); newer < 0 || older < newer {
		t.Errorf("order: %d, %d", newer, older)
	}
	says(o.get("/grants/"+id), id, w.subject, "calls itself “<bdi>my-pa</bdi>”", "None. A receipt is given", "Revoke…")

	w.clock.advance(time.Minute)
	w.reply(w.say(LarklineID, "m-1", "", "Show my upcoming flights", access))
	receipts, err := w.sandbox.store.grantReceipts(t.Context(), id)
	if err != nil || len(receipts) != 1 {
		t.Fatalf("%d receipts, %v", len(receipts), err)
	}
	one := o.get("/grants/" + id)
	says(one, "1 receipt, newest first.", receipts[0].jws, receipts[0].contextID, "m-1", receipts[0].tools[0], "29 Nov 2026, 15:00:20 UTC")
	if strings.Contains(string(one.body), access) || strings.Contains(string(one.body), refresh) {
		t.Error("the page holds a token")
	}
	says(o.get(""), "29 Nov 2026, 15:00:20 UTC")

	// Looking at the question revokes nothing.
	confirm := o.get("/grants/" + id + "/revoke")
	says(confirm, "Revoke this grant?", "View your upcoming flights", "Keep it")
	w.reply(w.say(LarklineID, "m-2", "", "Show my upcoming flights", access))
	token := o.token(confirm)
	a := o.submit("/grants/"+id+"/revoke", url.Values{"token": {token}}, "Origin: "+w.ready.Provider, "Sec-Fetch-Site: same-origin")
	if a.status != http.StatusSeeOther || a.header.Get("Location") != OwnerPath+"/grants/"+id+"?revoked" {
		t.Fatalf("%d %v", a.status, a.header)
	}
	gone := o.get("/grants/" + id + "?revoked")
	says(gone, "Revoked. Its tokens no longer work.", `<span class="state revoked">Revoked</span>`, "2 receipts")
	if strings.Contains(string(gone.body), "Revoke…") {
		t.Error("it can be revoked twice")
	}
	says(o.get(""), "2 grants, newest first; 1 active.", `<span class="state revoked">Revoked</span>`)
	if a := w.say(LarklineID, "m-3", "", "Show my upcoming flights", access); a.status != 401 || a.header.Get("WWW-Authenticate") != `Bearer realm="a2a", error="invalid_token"` {
		t.Errorf("the delegation token: %d %s", a.status, a.header.Get("WWW-Authenticate"))
	}
	w.wantOAuthError(w.oauth("token", "grant_type", grantRefresh, "refresh_token", refresh), 400, "invalid_grant")

	// Double submit, and the question once more, end at the grant.
	if a := o.submit("/grants/"+id+"/revoke", url.Values{"token": {token}}); a.status != http.StatusSeeOther {
		t.Errorf("again: %d", a.status)
	}
	if a := o.get("/grants/" + id + "/revoke"); a.status != http.StatusSeeOther || a.header.Get("Location") != OwnerPath+"/grants/"+id {
		t.Errorf("the question again: %d %v", a.status, a.header)
	}
	says(o.get("/grants/"+first+"?revoked"), `<span class="state active">Active</span>`)
	if a := o.get("/grants/" + first + "?revoked"); strings.Contains(string(a.body), "no longer work") {
		t.Error("an active grant is said to be revoked")
	}
}

// TestOwnerIsNotFound: from elsewhere there is no owner's page, as for any path that
// is none.
func TestOwnerIsNotFound(t *testing.T) {
	w := newWorld(t, withOwner)
	port := w.ready.Provider[strings.LastIndex(w.ready.Provider, ":"):]
	ask := func(remote, host, path string, header ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, "http://"+host+path, nil)
		r.RemoteAddr = remote
		for i := 0; i < len(header); i += 2 {
			r.Header.Add(header[i], header[i+1])
		}
		got := httptest.NewRecorder()
		w.sandbox.Provider().ServeHTTP(got, r)
		return got
	}
	const here = "127.0.0.1:40000"
	for _, at := range [][2]string{
		{here, "127.0.0.1" + port}, {here, "localhost" + port}, {here, "LOCALHOST"}, {here, "127.9.9.9"},
		{"[::1]:40000", "[::1]" + port}, {"[::ffff:127.0.0.1]:40000", "[::1]"},
	} {
		if got := ask(at[0], at[1], OwnerPath+"/login"); got.Code != http.StatusOK {
			t.Errorf("from %s to %s: %d", at[0], at[1], got.Code)
		}
	}
	refused := [][]string{
		{"192.0.2.7:40000", "127.0.0.1" + port}, {"[2001:db8::1]:40000", "localhost" + port}, {"@", "localhost" + port}, {"", "localhost"},
		{here, "provider.example"}, {here, "localhost.evil.example" + port}, {here, "127.0.0.1.nip.example"}, {here, "localhost." + port},
		{here, "10.0.0.1" + port}, {here, "0.0.0.0" + port}, {here, "[::]" + port}, {here, "[fe80::1]"},
	}
	for _, header := range []string{"Forwarded", "Via", "X-Real-IP", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Anything", "X-Forwarded"} {
		refused = append(refused, []string{here, "127.0.0.1" + port, header, "127.0.0.1"}, []string{here, "127.0.0.1" + port, strings.ToLower(header), ""})
	}
	nowhere := ask(here, "localhost", "/nowhere")
	for _, at := range refused {
		for _, path := range []string{OwnerPath, OwnerPath + "/login", OwnerPath + "/grants/x"} {
			got := ask(at[0], at[1], path, at[2:]...)
			if got.Code != http.StatusNotFound || got.Body.Len() != 0 || fmt.Sprint(got.Result().Header) != fmt.Sprint(nowhere.Result().Header) {
				t.Errorf("%s for %q: %d %v", path, at, got.Code, got.Result().Header)
			}
		}
	}
	// A proxy speaks this to what it stands before, no browser does.
	old := httptest.NewRequest(http.MethodGet, "http://localhost"+OwnerPath+"/login", nil)
	old.RemoteAddr, old.Proto, old.ProtoMinor = here, "HTTP/1.0", 0
	got := httptest.NewRecorder()
	if w.sandbox.Provider().ServeHTTP(got, old); got.Code != http.StatusNotFound || got.Body.Len() > 0 {
		t.Errorf("HTTP/1.0: %d", got.Code)
	}
	if got := ask(here, "", OwnerPath); got.Code != http.StatusNotFound {
		t.Errorf("no Host: %d", got.Code)
	}
	// A path that only begins alike is none of it, and neither is the brands' domain.
	if a := w.do(http.MethodGet, w.ready.Provider+"/owners", ""); a.status != 404 || len(a.body) > 0 {
		t.Errorf("/owners: %d", a.status)
	}
	if a := w.do(http.MethodGet, w.sandbox.brandURL+OwnerPath, ""); a.status != 404 {
		t.Errorf("on the brands' domain: %d", a.status)
	}
}

// TestOwnerListensApart: where something stands before the Provider's listener, or on
// demand, the owner's page is not on it, however much a request looks like one of
// this machine.
func TestOwnerListensApart(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"behind a proxy":  func(c *Config) { c.PublicURL = "https://provider.example" },
		"behind one here": func(c *Config) { c.PublicURL = "https://127.0.0.1:8443" },
		"a subdomain":     func(c *Config) { c.PublicURL = "http://provider.localhost:8791" },
		"on demand":       func(c *Config) { c.OwnerListen = "localhost:0" },
		"both, at one origin": func(c *Config) {
			c.PublicURL, c.OwnerListen, c.OneOrigin = "https://provider.example", "[::1]:0", true
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, withOwner, change)
			own, err := url.Parse(w.ready.Owner.URL)
			if err != nil || own.Scheme != "http" || !isLoopbackHost(own.Host) || own.Path != OwnerPath || w.ready.Provider == "http://"+own.Host {
				t.Fatalf("the owner's page at %v, %v", own, err)
			}
			provider := "http://" + w.sandbox.provider.listener.Addr().String()
			for _, path := range []string{"", "/login", "/grants/x", "/"} {
				if a := w.do(http.MethodGet, provider+OwnerPath+path, ""); a.status != http.StatusNotFound || len(a.body) > 0 {
					t.Errorf("the Provider's %s: %d %s", OwnerPath+path, a.status, a.body)
				}
			}
			if a := w.post(provider+OwnerPath+"/login", url.Values{"password": {testOwnerPassword}}); a.status != http.StatusNotFound || a.header.Get("Set-Cookie") != "" {
				t.Errorf("a login at the Provider: %d", a.status)
			}
			o := openOwner(t, w)
			if a := o.submit("/logout", url.Values{"token": {o.token(o.get(""))}}, "Origin: http://"+own.Host, "Sec-Fetch-Site: same-origin"); a.status != http.StatusSeeOther {
				t.Errorf("logout: %d %s", a.status, a.body)
			}
			// There is nothing else.
			for _, path := range []string{"/", "/owners", ControlPath, "/a2a/" + LarklineID + "/.well-known/agent-card.json"} {
				if a := w.do(http.MethodGet, "http://"+own.Host+path, ""); a.status != http.StatusNotFound || len(a.body) > 0 {
					t.Errorf("the owner's %s: %d %s", path, a.status, a.body)
				}
			}
			if a := w.do(http.MethodGet, w.owner("/login"), "", "X-Forwarded-For: 192.0.2.7"); a.status != http.StatusNotFound {
				t.Errorf("through a proxy: %d", a.status)
			}
		})
	}
	for _, listen := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.7:0", "provider.example:0", "127.0.0.1"} {
		s, err := New(Config{OwnerListen: listen, PasswordMemory: 64})
		if err == nil {
			_ = s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "OwnerListen: \""+listen+"\": write HOST:PORT with a loopback address") {
			t.Errorf("%q: %v", listen, err)
		}
	}
}

// TestOwnerSeesWhatIsSaid: what others call themselves cannot turn the words around
// it, or hide among them.
func TestOwnerSeesWhatIsSaid(t *testing.T) {
	w := newWorld(t, withOwner)
	w.subject = "user\u202e\u0000\n7f3a\U000e0041"
	const shown = "<bdi>user⟨U+202E⟩⟨U+0000⟩⟨U+000A⟩7f3a⟨U+E0041⟩</bdi>"
	if _, _, err := w.sandbox.store.register(t.Context(), platform{Name: "م\u2067y\u200b-pa", Issuer: w.issuer.url, JWKSURI: w.issuer.url + "/.well-known/jwks.json", Enabled: true}); err != nil {
		t.Fatal(err)
	}
	const name = "“<bdi>م⟨U+2067⟩y⟨U+200B⟩-pa</bdi>”"
	read := func(a answer) string { return html.UnescapeString(string(a.body)) }
	if page := read(w.consentPage(text(t, w.device(scopeUpcoming), "verification_uri_complete"))); !strings.Contains(page, name) {
		t.Errorf("no %s in %s", name, page)
	}
	o := openOwner(t, w)
	id, access, _ := w.granted(scopeUpcoming)
	w.reply(w.say(LarklineID, "m-\u20661", "", "Show my upcoming flights", access))
	for path, wants := range map[string][]string{
		"": {shown}, "/grants/" + id: {shown, name, "<bdi>m-⟨U+2066⟩1</bdi>"}, "/grants/" + id + "/revoke": {"<bdi>" + w.issuer.url + "</bdi>"},
	} {
		page := read(o.get(path))
		for _, want := range wants {
			if !strings.Contains(page, want) {
				t.Errorf("%s: no %s in %s", path, want, page)
			}
		}
		if strings.ContainsAny(page, "\u202e\u2066\u2067\u200b\ufffd\U000e0041") {
			t.Errorf("%s has them as they are", path)
		}
	}
}

func TestVisible(t *testing.T) {
	for said, want := range map[string]string{
		"": "", "user-7f3a": "user-7f3a", "Zoë 日本 عربي 👍🏽": "Zoë 日本 عربي 👍🏽", "a\ufffd": "a\ufffd",
		"a\xffb\xe2\x80": "a⟨FF⟩b⟨E2⟩⟨80⟩", "\u202a\u202b\u202c\u202d\u202e": "⟨U+202A⟩⟨U+202B⟩⟨U+202C⟩⟨U+202D⟩⟨U+202E⟩",
		"\u200e\u200f\u061c": "⟨U+200E⟩⟨U+200F⟩⟨U+061C⟩", "\u2066\u2067\u2068\u2069": "⟨U+2066⟩⟨U+2067⟩⟨U+2068⟩⟨U+2069⟩",
		"\t\r\x7f\u0085\u2028\u2029": "⟨U+0009⟩⟨U+000D⟩⟨U+007F⟩⟨U+0085⟩⟨U+2028⟩⟨U+2029⟩", "\ufeff\u00ad\u3164\ue000": "⟨U+FEFF⟩⟨U+00AD⟩⟨U+3164⟩⟨U+E000⟩",
	} {
		if got := visible(said); got != want {
			t.Errorf("%+q: %q, want %q", said, got, want)
		}
	}
}

func TestOwnerLoginFailures(t *testing.T) {
	w := newWorld(t, withOwner, func(c *Config) {
		c.Params = Defaults()
		c.Params.LoginLimit = Limit{Every: time.Minute, Burst: 3}
	})
	login := func(password string) answer { return w.post(w.owner("/login"), url.Values{"password": {password}}) }
	for _, path := range []string{"", "/grants/x", "/grants/x/revoke", "/nowhere", "/"} {
		if a := w.do(http.MethodGet, w.owner(path), ""); a.status != 303 || a.header.Get("Location") != OwnerPath+"/login" {
			t.Errorf("%s without a login: %d %v", path, a.status, a.header)
		}
	}
	for _, password := range []string{"", testOwnerPassword + " ", strings.Repeat("x", 1000)} {
		if a := login(password); a.status != 403 || a.header.Get("Set-Cookie") != "" || !strings.Contains(string(a.body), "<title>Error: The password is not right") {
			t.Errorf("%q: %d %s", password, a.status, a.body)
		}
	}
	if a := login(testOwnerPassword); a.status != 429 || a.header.Get("Retry-After") != "60" || a.header.Get("Set-Cookie") != "" || !strings.Contains(string(a.body), "Wait 60 seconds") {
		t.Errorf("the fourth: %d %v %s", a.status, a.header, a.body)
	}
	w.clock.advance(time.Minute)
	for range 5 { // good ones cost nothing
		openOwner(t, w)
	}
	if a := w.do(http.MethodPost, w.owner("/login"), "password="+url.QueryEscape(testOwnerPassword), "Content-Type: text/plain"); a.status != 400 || a.header.Get("Set-Cookie") != "" {
		t.Errorf("another content type: %d", a.status)
	}
	if a := w.post(w.owner("/login"), url.Values{"password": {testOwnerPassword, "x"}}); a.status != 400 {
		t.Errorf("two passwords: %d", a.status)
	}
}

// A post needs the cookie, the session's token and, from a browser, its own origin.
func TestOwnerForgeries(t *testing.T) {
	w := newWorld(t, withOwner)
	o := openOwner(t, w)
	id, _, _ := w.granted(scopeUpcoming)
	revoke := "/grants/" + id + "/revoke"
	token := o.token(o.get(revoke))
	other := openOwner(t, w)
	active := func() bool {
		t.Helper()
		_, ok, err := w.sandbox.store.grant(t.Context(), id, w.clock.now())
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	for name, tc := range map[string]struct {
		form    url.Values
		headers []string
	}{
		"no token":             {url.Values{}, nil},
		"empty token":          {url.Values{"token": {""}}, nil},
		"another session's":    {url.Values{"token": {o.token(other.get(revoke))}}, nil},
		"two tokens":           {url.Values{"token": {token, token}}, nil},
		"another origin":       {url.Values{"token": {token}}, []string{"Origin: https://evil.example"}},
		"null origin":          {url.Values{"token": {token}}, []string{"Origin: null"}},
		"another port":         {url.Values{"token": {token}}, []string{"Origin: http://127.0.0.1:1"}},
		"another port, modern": {url.Values{"token": {token}}, []string{"Sec-Fetch-Site: same-site", "Origin: " + w.ready.Provider}},
		"cross site":           {url.Values{"token": {token}}, []string{"Sec-Fetch-Site: cross-site"}},
		"contradiction":        {url.Values{"token": {token}}, []string{"Sec-Fetch-Site: same-origin", "Origin: https://evil.example"}},
	} {
		if a := o.submit(revoke, tc.form, tc.headers...); a.status != http.StatusForbidden || !active() || !strings.Contains(string(a.body), "Nothing was changed by it.") {
			t.Errorf("%s: %d, active %v, %s", name, a.status, active(), a.body)
		}
	}
	if a := w.post(w.owner(revoke), url.Values{"token": {token}}); a.status != 303 || a.header.Get("Location") != OwnerPath+"/login" || !active() {
		t.Errorf("no cookie: %d", a.status)
	}
	for _, path := range []string{"/login", "/logout"} {
		if a := o.submit(path, url.Values{"token": {token}, "password": {testOwnerPassword}}, "Origin: https://evil.example"); a.status != 403 || a.header.Get("Set-Cookie") != "" {
			t.Errorf("%s from elsewhere: %d", path, a.status)
		}
	}
	// No GET changes anything.
	if a := o.get(revoke + "?token=" + token); a.status != 200 || !active() {
		t.Errorf("GET: %d", a.status)
	}
	if a := o.do("DELETE", w.owner(revoke), "", o.cookie); a.status != 403 || !active() {
		t.Errorf("DELETE: %d", a.status)
	}
	if a := o.submit(revoke, url.Values{"token": {token}}, "Origin: "+w.ready.Provider); a.status != 303 || active() {
		t.Errorf("the real one: %d", a.status)
	}
}

func TestOwnerSessionsEnd(t *testing.T) {
	w := newWorld(t, withOwner)
	in := func(o *owning) bool {
		t.Helper()
		a := o.get("")
		if a.status != 200 && (a.status != 303 || a.header.Get("Location") != OwnerPath+"/login") {
			t.Fatalf("%d %s", a.status, a.body)
		}
		return a.status == 200
	}
	o, other := openOwner(t, w), openOwner(t, w)
	// Two sandboxes on one machine do not log each other's owner out.
	ours, _, _ := strings.Cut(o.cookie, "=")
	if theirs, _, _ := strings.Cut(openOwner(t, newWorld(t, withOwner)).cookie, "="); ours == theirs {
		t.Errorf("two sandboxes share the cookie %s", ours)
	}
	token := o.token(o.get(""))
	if a := o.get("/login"); a.status != 303 || a.header.Get("Location") != OwnerPath {
		t.Errorf("the login of who is logged in: %d", a.status)
	}
	a := o.submit("/logout", url.Values{"token": {token}})
	if a.status != 303 || !strings.Contains(a.header.Get("Set-Cookie"), "=; Path=/owner; Max-Age=0;") {
		t.Errorf("logout: %d %v", a.status, a.header)
	}
	if in(o) {
		t.Error("a cookie works after its logout")
	}
	if a := o.submit("/grants/x/revoke", url.Values{"token": {token}}); a.status != 303 {
		t.Errorf("a form after its logout: %d", a.status)
	}
	if a := other.submit("/logout", url.Values{"token": {token}}); a.status != 403 || !in(other) {
		t.Errorf("the token of who logged out: %d", a.status)
	}
	w.clock.advance(ownerSessionTTL - time.Second)
	if !in(other) {
		t.Error("it ended early")
	}
	w.clock.advance(time.Second)
	if in(other) {
		t.Error("it does not end")
	}
	for _, cookie := range []string{"", "x", strings.Repeat("A", 43)} {
		name, _, _ := strings.Cut(o.cookie, "=")
		if in(&owning{w, name + "=" + cookie}) {
			t.Errorf("cookie %q works", cookie)
		}
	}
}

// TestOwnerAfterRestart: grants stay, logins do not, and neither do drawn passwords.
func TestOwnerAfterRestart(t *testing.T) {
	w := newDurable(t, withOwner)
	o := openOwner(t, w.world)
	id, _, _ := w.granted(scopeUpcoming)
	revoke := "/grants/" + id + "/revoke"
	form := url.Values{"token": {o.token(o.get(revoke))}}
	w.restart()
	if a := o.get(""); a.status != 303 {
		t.Errorf("the cookie of before: %d", a.status)
	}
	if a := o.submit(revoke, form); a.status != 303 || a.header.Get("Location") != OwnerPath+"/login" {
		t.Errorf("the form of before: %d", a.status)
	}
	o = openOwner(t, w.world)
	if a := o.get("/grants/" + id); a.status != 200 || !strings.Contains(string(a.body), "Active") {
		t.Errorf("the grant of before: %d %s", a.status, a.body)
	}
	if a := o.submit(revoke, form); a.status != 403 {
		t.Errorf("the form of before with the cookie of now: %d", a.status)
	}
	if one, two := newWorld(t).ready.Owner, newWorld(t).ready.Owner; one.Password == two.Password || len(one.Password) < 12 {
		t.Error("drawn passwords repeat")
	}
}

func TestOwnerPaging(t *testing.T) {
	w := newWorld(t, withOwner)
	o := openOwner(t, w)
	const grants = 2*ownerPageSize + 1
	p := party{LarklineID, caller{w.issuer.url, w.subject}}
	for i := range grants {
		now := testStart.Add(time.Duration(i) * time.Second)
		code := fmt.Sprint("code-", i)
		auth, err := w.sandbox.store.authorize(t.Context(), authorization{device: code, party: p, scopes: []string{scopeUpcoming}}, now)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.sandbox.store.decide(t.Context(), LarklineID, auth.userCode, "lark-4471", auth.scopes, now); err != nil {
			t.Fatal(err)
		}
		if _, err := w.sandbox.store.collect(t.Context(), code, p, fmt.Sprintf("grant-%03d", i), code, now); err != nil {
			t.Fatal(err)
		}
	}
	shown := regexp.MustCompile(`href="/owner/grants/(grant-\d+)"`)
	links := regexp.MustCompile(`href="/owner\?page=(\d+)" rel="(prev|next)"`)
	for page, want := range map[string]struct {
		first, last string
		links       []string
	}{
		"":           {"grant-050", "grant-026", []string{"2 next"}},
		"?page=2":    {"grant-025", "grant-001", []string{"1 prev", "3 next"}},
		"?page=3":    {"grant-000", "grant-000", []string{"2 prev"}},
		"?page=99":   {"grant-000", "grant-000", []string{"2 prev"}},
		"?page=-1":   {"grant-050", "grant-026", []string{"2 next"}},
		"?page=nope": {"grant-050", "grant-026", []string{"2 next"}},
	} {
		a := o.get(page)
		ids := shown.FindAllStringSubmatch(string(a.body), -1)
		var turns []string
		for _, l := range links.FindAllStringSubmatch(string(a.body), -1) {
			turns = append(turns, l[1]+" "+l[2])
		}
		if len(ids) == 0 || ids[0][1] != want.first || ids[len(ids)-1][1] != want.last || !slices.Equal(turns, want.links) {
			t.Errorf("%q: %q, links %q", page, ids, turns)
		}
	}
}

func TestOwnerProblems(t *testing.T) {
	w := newWorld(t, withOwner)
	o := openOwner(t, w)
	id, _, _ := w.granted(scopeUpcoming)
	token := url.Values{"token": {o.token(o.get(""))}}
	for _, path := range []string{"/grants/nope", "/grants/nope/revoke", "/nope", "/grants", "/grants/", "/grants/" + id + "/x"} {
		if a := o.get(path); a.status != 404 || !strings.Contains(string(a.body), "<title>Error: There is no such") {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	if a := o.submit("/grants/nope/revoke", token); a.status != 404 {
		t.Errorf("revoking nothing: %d", a.status)
	}
	// The state is gone.
	if err := w.sandbox.store.close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", "/grants/" + id, "/grants/" + id + "/revoke"} {
		if a := o.get(path); a.status != 500 || !strings.Contains(string(a.body), "could not read or change its state") || strings.Contains(string(a.body), "sql") {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	if a := o.submit("/grants/"+id+"/revoke", token); a.status != 500 {
		t.Errorf("revoke: %d", a.status)
	}
}

// TestOwnerPagesAreGuarded: they cannot be framed, kept or made to load anything.
func TestOwnerPagesAreGuarded(t *testing.T) {
	w := newWorld(t, withOwner)
	o := openOwner(t, w)
	id, _, _ := w.granted(scopeUpcoming)
	for name, a := range map[string]answer{
		"login": w.do(http.MethodGet, w.owner("/login"), ""), "list": o.get(""), "one": o.get("/grants/" + id),
		"revoke": o.get("/grants/" + id + "/revoke"), "error": o.get("/nope"),
	} {
		h := a.header
		csp := h.Get("Content-Security-Policy")
		if !strings.HasPrefix(csp, "default-src 'none'; style-src 'sha256-") || !strings.HasSuffix(csp, "; form-action 'self'; frame-ancestors 'none'; base-uri 'none'") ||
			h.Get("X-Frame-Options") != "DENY" || h.Get("Cache-Control") != "no-store" || h.Get("Referrer-Policy") != "same-origin" ||
			h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cross-Origin-Opener-Policy") != "same-origin" {
			t.Errorf("%s: %v", name, h)
		}
	}
}

// A grant of a brand that the configuration no longer has is still shown.
func TestOwnerOfFormerBrand(t *testing.T) {
	w := newWorld(t, withOwner)
	v, err := w.sandbox.owner.grantView(context.Background(), grant{
		id: "g", party: party{"FORMER", caller{"https://pa.example", "s"}}, user: "u-1", scopes: []string{"a:b"}, made: testStart, expires: testStart,
	})
	if err != nil || v.Business != "FORMER" || v.User != "u-1 (no longer an account)" || len(v.Permissions) != 1 || v.Permissions[0] != (Scope{ID: "a:b"}) {
		t.Errorf("%+v, %v", v, err)
	}
}
