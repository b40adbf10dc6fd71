package sandbox

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/sandbox/person"
)

var (
	formTag   = regexp.MustCompile(`<form method="post" action="([^"]*)">`)
	hiddenTag = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)
	base64url = regexp.MustCompile(`^[A-Za-z0-9_-]{40,}$`)
)

// firstForm reads a page as a suite does, by pattern.
func firstForm(t *testing.T, a answer) (action, name, value string) {
	t.Helper()
	form, hidden := formTag.FindSubmatch(a.body), hiddenTag.FindSubmatch(a.body)
	if a.status != 200 || form == nil || hidden == nil {
		t.Fatalf("%d, no form in %s", a.status, a.body)
	}
	return string(form[1]), string(hidden[1]), string(hidden[2])
}

// login posts a login for a sign-in link.
func (w *world) login(link, email, password string) answer {
	w.t.Helper()
	u, err := url.Parse(link)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.post(u.Scheme+"://"+u.Host+loginPath, url.Values{"return_to": {u.Query().Get("return_to")}, "email": {email}, "password": {password}})
}

// consentPage signs in and returns the consent page.
func (w *world) consentPage(link string) answer {
	w.t.Helper()
	action, name, assertion := firstForm(w.t, w.login(link, testAccounts[0].Email, testAccounts[0].Password))
	if name != "assertion" || !base64url.MatchString(assertion) {
		w.t.Fatalf("hidden %s=%q", name, assertion)
	}
	return w.post(action, url.Values{"assertion": {assertion}})
}

func TestPagesByPattern(t *testing.T) {
	w := newWorld(t)
	link := text(t, w.device(scopeUpcoming+" "+scopeRebook), "verification_uri_complete")
	if !strings.HasPrefix(link, w.sandbox.brandURL+"/login?return_to="+url.QueryEscape(w.url(LarklineID, "oauth/consent?user_code="))) {
		t.Errorf("link %s", link)
	}
	page := w.consentPage(link)
	action, name, session := firstForm(t, page)
	if name != "session" || !base64url.MatchString(session) || action != w.url(LarklineID, "oauth/consent") {
		t.Fatalf("%s: hidden %s=%q", action, name, session)
	}
	for _, want := range []string{
		"View your upcoming flights", "Rebook your flights", `name="scope" value="flights:rebook"`,
		w.issuer.url, "Larkline Air", "Your payment cards.", "Robin", "Allow", "Don’t allow",
	} {
		if !strings.Contains(string(page.body), want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if strings.Contains(string(page.body), "Cancel your flights") {
		t.Error("the page offers what was not asked for")
	}
	a := w.post(action, url.Values{"session": {session}, "decision": {"allow"}, "scope": {scopeRebook}})
	to := a.header.Get("Location")
	if a.status != 303 || !regexp.MustCompile(`/connected\?.*&status=approved$`).MatchString(to) {
		t.Fatalf("%d %s", a.status, to)
	}
	if a := w.do(http.MethodGet, to, ""); a.status != 200 || !strings.Contains(string(a.body), "Access allowed") {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestPagesAreGuarded(t *testing.T) {
	w := newWorld(t)
	link := text(t, w.device(scopeUpcoming), "verification_uri_complete")
	style := regexp.MustCompile(`(?s)<style>(.*?)</style>`)
	for name, page := range map[string]struct {
		answer
		posts string // where its form may go, redirects included
	}{
		"login":     {w.do(http.MethodGet, link, ""), w.sandbox.brandURL},
		"signed in": {w.login(link, testAccounts[0].Email, testAccounts[0].Password), w.ready.Provider},
		"consent":   {w.consentPage(link), w.ready.Provider},
		"code":      {w.consentPage(text(t, w.device(scopeUpcoming), "verification_uri")), w.ready.Provider},
		"connected": {w.do(http.MethodGet, w.url(LarklineID, "oauth/connected?brand=x&status=denied"), ""), "'none'"},
		"error":     {w.do(http.MethodGet, w.url(LarklineID, "oauth/connected"), ""), "'none'"},
	} {
		a := page.answer
		found := style.FindSubmatch(a.body)
		if found == nil {
			t.Fatalf("%s: no style in %s", name, a.body)
		}
		sum := sha256.Sum256(found[1])
		want := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
			"'; form-action " + page.posts + "; frame-ancestors 'none'; base-uri 'none'"
		if got := a.header.Get("Content-Security-Policy"); got != want {
			t.Errorf("%s: CSP %q, want %q", name, got, want)
		}
		if a.header.Get("X-Frame-Options") != "DENY" || a.header.Get("Cache-Control") != "no-store" ||
			a.header.Get("Referrer-Policy") != "origin" || a.header.Get("X-Content-Type-Options") != "nosniff" ||
			a.header.Get("Content-Type") != "text/html; charset=utf-8" || a.header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %v", name, a.header)
		}
		if strings.Contains(string(a.body), "<script") || strings.Contains(string(a.body), "ZgotmplZ") {
			t.Errorf("%s: %s", name, a.body)
		}
	}
}

func TestFormActionSource(t *testing.T) {
	for origin, want := range map[string]string{
		"https://air.example": "https://air.example", "http://127.0.0.1:8792": "http://127.0.0.1:8792",
		"http://[::1]:8792": "http:", "https://[2001:db8::1]": "https:",
	} {
		if got := sourceOf(origin); got != want {
			t.Errorf("%s: %q", origin, got)
		}
	}
}

// A form that a browser sends from another website is refused, and what it holds is
// not used up by it. Who is no browser says no origin.
func TestFormsOfOtherSites(t *testing.T) {
	w := newWorld(t)
	form := func(address, origin string, values url.Values) answer {
		headers := []string{"Content-Type: application/x-www-form-urlencoded"}
		if origin != "" {
			headers = append(headers, "Origin: "+origin)
		}
		return w.do(http.MethodPost, address, values.Encode(), headers...)
	}
	foreign := []string{"https://evil.example", "null", w.ready.Provider + "0", w.ready.Provider + "/", strings.ToUpper(w.ready.Provider)}
	for _, own := range []string{"", w.ready.Provider, w.sandbox.brandURL} {
		action, _, assertion := firstForm(t, w.login(text(t, w.device(scopeUpcoming), "verification_uri_complete"), testAccounts[0].Email, testAccounts[0].Password))
		steps := []url.Values{{"assertion": {assertion}}, nil}
		for i, values := range steps {
			for _, origin := range foreign {
				if a := form(action, origin, values); a.status != http.StatusForbidden || !strings.Contains(string(a.body), "another website") {
					t.Errorf("step %d from %s: %d %s", i, origin, a.status, a.body)
				}
			}
			a := form(action, own, values)
			if i == 0 {
				_, _, session := firstForm(t, a)
				steps[1] = url.Values{"session": {session}, "decision": {"deny"}}
			} else if a.status != http.StatusSeeOther {
				t.Errorf("from %q: %d %s", own, a.status, a.body)
			}
		}
	}
	if a := form(w.sandbox.brandURL+loginPath, "https://evil.example", nil); a.status != http.StatusForbidden {
		t.Errorf("login: %d", a.status)
	}
}

func TestLoginTakesNoForeignReturn(t *testing.T) {
	w := newWorld(t)
	consent := w.url(LarklineID, "oauth/consent")
	for _, to := range []string{
		"", "https://evil.example/", consent + "/", consent + "x", consent + "?user_code=", consent + "?user_code=abcd",
		consent + "?user_code=BCDF-GHJK&x=1", consent + "?x=1", consent + "#x", consent + "?user_code=bcdf-ghjk",
		w.url(MarrowID, "oauth/consent"), w.url("nope", "oauth/consent"),
		strings.Replace(consent, "http://", "http://evil@", 1), "javascript:alert(1)", "//evil.example" + consent,
	} {
		if a := w.do(http.MethodGet, w.sandbox.brandURL+"/login?return_to="+url.QueryEscape(to), ""); a.status != 400 || formTag.Match(a.body) {
			t.Errorf("GET %q: %d", to, a.status)
		}
		a := w.post(w.sandbox.brandURL+"/login", url.Values{"return_to": {to}, "email": {testAccounts[0].Email}, "password": {testAccounts[0].Password}})
		if a.status != 400 || formTag.Match(a.body) {
			t.Errorf("POST %q: %d", to, a.status)
		}
	}
}

func TestLoginFailures(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Params = Defaults()
		c.Params.LoginLimit = Limit{Every: time.Minute, Burst: 3}
	})
	link := text(t, w.device(scopeUpcoming), "verification_uri_complete")
	good := testAccounts[0]
	for _, password := range []string{"", "wrong horse", strings.Repeat("x", 1000)} {
		a := w.login(link, " Robin@Example.com ", password)
		if a.status != 403 || !strings.Contains(string(a.body), "Email or password is not right.") {
			t.Errorf("%q: %d %s", password, a.status, a.body)
		}
	}
	a := w.login(link, good.Email, good.Password)
	if a.status != 429 || a.header.Get("Retry-After") != "60" {
		t.Errorf("the fourth: %d, Retry-After %q", a.status, a.header.Get("Retry-After"))
	}
	if a := w.login(link, testAccounts[1].Email, testAccounts[1].Password); a.status != 200 {
		t.Errorf("another account: %d", a.status)
	}
	w.clock.advance(time.Minute)
	for range 5 { // good ones cost nothing
		if a := w.login(link, good.Email, good.Password); a.status != 200 {
			t.Fatalf("after a while: %d", a.status)
		}
	}
	for i := range 4 {
		want := 403
		if i == 3 {
			want = 429
		}
		if a := w.login(link, "nobody@example.com", good.Password); a.status != want {
			t.Errorf("no account, %d: %d", i, a.status)
		}
	}
	if a := w.login(link, `"><script>`, "x"); strings.Contains(string(a.body), "<script>") {
		t.Errorf("the email is not escaped: %s", a.body)
	}
}

// TestLoginTellsNoAccounts: whether an account has an email shows neither in the
// answers to wrong passwords nor in when they end.
func TestLoginTellsNoAccounts(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Params = Defaults()
		c.Params.LoginLimit = Limit{Every: time.Minute, Burst: 2}
	})
	link := text(t, w.device(scopeUpcoming), "verification_uri_complete")
	tries := func(emails ...string) (said []string) {
		for _, email := range emails {
			a := w.login(link, email, "wrong horse")
			a.header.Del("Date")
			a.header.Del("Content-Length")
			said = append(said, fmt.Sprint(a.status, a.header, strings.ReplaceAll(string(a.body), html.EscapeString(email), "")))
		}
		return said
	}
	// Another spelling of an email is the same one, and takes no more guesses.
	unknown := tries("kiss@example.com", " KISS@example.com", "\u212ai\u017fs@example.com")
	known := tries("robin@example.com", " ROBIN@example.com", "robin@EXAMPLE.com ")
	if !strings.HasPrefix(unknown[1], "403") || !strings.HasPrefix(unknown[2], "429") {
		t.Errorf("%.40q", unknown)
	}
	if !slices.Equal(known, unknown) {
		t.Errorf("known %q\nunknown %q", known, unknown)
	}
	// One email that is used up says nothing about another.
	if got := tries("other@example.com", testAccounts[1].Email); got[0] != got[1] || !strings.HasPrefix(got[0], "403") {
		t.Errorf("others: %.40q", got)
	}
}

// TestLoginsOfAnAddress: from one address fewer logins may fail than there are emails
// to try; the right one of another address is still looked at.
func TestLoginsOfAnAddress(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Params = Defaults()
		c.Params.LoginLimit = Limit{Every: time.Minute, Burst: 1}
	})
	good, s := testAccounts[0], w.sandbox
	const here, sameNetwork = "[2001:db8::1]:40000", "[2001:db8::ffff]:40001"
	for range 20 { // good ones cost nothing
		if a, wait := s.signIn(good.Email, good.Password, here); a == nil || wait > 0 {
			t.Fatalf("%v, %v", a, wait)
		}
	}
	for i := range loginsOfPeer {
		if a, wait := s.signIn(fmt.Sprint(i), "wrong horse", here); a != nil || wait > 0 {
			t.Fatalf("%d: %v, %v", i, a, wait)
		}
	}
	if a, wait := s.signIn(good.Email, good.Password, sameNetwork); a != nil || wait != time.Minute/loginsOfPeer {
		t.Errorf("from there: %v, %v", a, wait)
	}
	for _, elsewhere := range []string{"192.0.2.7:40000", "[::ffff:192.0.2.8]:40000", "[2001:db8:0:1::1]:40000", "@"} {
		if a, wait := s.signIn(good.Email, good.Password, elsewhere); a == nil || wait > 0 {
			t.Errorf("from %s: %v, %v", elsewhere, a, wait)
		}
	}
	// What the address was refused was not charged to the email.
	w.clock.advance(time.Minute / loginsOfPeer)
	if a, wait := s.signIn(good.Email, good.Password, here); a == nil || wait > 0 {
		t.Errorf("after a while: %v, %v", a, wait)
	}
}

// TestAllowedAlready: the link of a request that consent behind a step-up's link has
// answered ends where it was answered, for the user who did, until a poll has collected
// it.
func TestAllowedAlready(t *testing.T) {
	w := newWorld(t)
	access := text(t, w.grant(0, scopeUpcoming), "access_token")
	task := w.say(LarklineID, "m-1", "", "Please rebook me onto LK 318", access).json(t)
	if _, err := w.person(0).AllowAll(t.Context(), text(t, task, "task", "metadata", "pact.verificationUriComplete")); err != nil {
		t.Fatal(err)
	}
	d := w.device(scopeRebook)
	link, code := text(t, d, "verification_uri_complete"), text(t, d, "user_code")
	if a := w.consentPage(link); a.status != http.StatusSeeOther || a.header.Get("Location") != w.url(LarklineID, "oauth/connected?brand="+LarklineID+"&status=approved") {
		t.Errorf("its link: %d %v", a.status, a.header)
	}
	action, _, session := firstForm(t, w.consentPage(text(t, d, "verification_uri")))
	if a := w.post(action, url.Values{"session": {session}, "user_code": {code}}); a.status != http.StatusSeeOther {
		t.Errorf("its code: %d %s", a.status, a.body)
	}
	if a := w.post(action, url.Values{"session": {session}, "user_code": {code}}); a.status != http.StatusBadRequest {
		t.Errorf("the same page again: %d", a.status)
	}
	_, _, assertion := firstForm(t, w.login(link, testAccounts[1].Email, testAccounts[1].Password))
	if a := w.post(action, url.Values{"assertion": {assertion}}); a.status != http.StatusGone {
		t.Errorf("another user: %d", a.status)
	}
	if a := w.poll(d["device_code"]); a.status != http.StatusOK {
		t.Errorf("the token: %d %s", a.status, a.body)
	}
	if a := w.consentPage(link); a.status != http.StatusGone {
		t.Errorf("once collected: %d", a.status)
	}
}

// TestMadeUp: only of the brands built in do pages say that all is made up, and only
// if there are no others do those of no brand.
func TestMadeUp(t *testing.T) {
	own := Marrow()
	own.ID, own.Name, own.Scopes = "kestrel", "Kestrel Cycles", []Scope{{"repairs:read", "See your repairs"}}
	for name, brands := range map[string][]Brand{"built in": nil, "configured": {own, Marrow()}} {
		w := newWorld(t, func(c *Config) { c.Brands = brands })
		first := w.ready.Brands[0].ID
		for _, path := range []string{"/login", "/login?return_to=" + url.QueryEscape(w.url(first, "oauth/consent"))} {
			a := w.do(http.MethodGet, w.sandbox.brandURL+path, "")
			if got := strings.Contains(string(a.body), "made up"); !strings.Contains(string(a.body), "<p>A PACT sandbox.") || got != (brands == nil) {
				t.Errorf("%s, %s: made up %t: %d %s", name, path, got, a.status, a.body)
			}
		}
	}
}

// TestWrongCodes: who mistypes a code can type it again, some times, on pages that work
// once.
func TestWrongCodes(t *testing.T) {
	w := newWorld(t)
	d := w.device(scopeUpcoming)
	consent, page := w.url(LarklineID, "oauth/consent"), w.consentPage(text(t, d, "verification_uri"))
	typed := func(code string) url.Values {
		_, _, session := firstForm(t, page)
		return url.Values{"session": {session}, "user_code": {code}}
	}
	for i, code := range []string{"BCDF-GHJK", "nonsense", "", "bcdf ghjk"} {
		form := typed(code)
		page = w.post(consent, form)
		want := map[bool]string{true: "Nothing waits for this code.", false: "This is not a code"}[i%3 == 0]
		if page.status != http.StatusOK || !strings.Contains(string(page.body), want) || !strings.Contains(string(page.body), `name="user_code"`) {
			t.Fatalf("%q: %d %s", code, page.status, page.body)
		}
		if a := w.post(consent, form); a.status != http.StatusBadRequest {
			t.Errorf("%q again: %d", code, a.status)
		}
	}
	last := typed(text(t, d, "user_code"))
	if a := w.post(consent, typed("BCDF-GHJK")); a.status != http.StatusGone || formTag.Match(a.body) || !strings.Contains(string(a.body), "Too many wrong codes") {
		t.Errorf("the fifth: %d %s", a.status, a.body)
	}
	if a := w.post(consent, last); a.status != http.StatusBadRequest {
		t.Errorf("the right one on a used page: %d", a.status)
	}
	// After three wrong ones the right one is right.
	page = w.consentPage(text(t, d, "verification_uri"))
	for range codeTries - 1 {
		page = w.post(consent, typed("BCDF-GHJK"))
	}
	page = w.post(consent, typed(text(t, d, "user_code")))
	form := typed("")
	form.Del("user_code")
	form.Set("decision", "deny")
	if a := w.post(consent, form); a.status != http.StatusSeeOther || !strings.HasSuffix(a.header.Get("Location"), "status=denied") {
		t.Errorf("the decision: %d %s", a.status, a.body)
	}
}

// watchedLock tells of each who comes to it.
type watchedLock struct {
	sync.Mutex
	came chan struct{}
}

func (l *watchedLock) Lock() {
	l.came <- struct{}{}
	l.Mutex.Lock()
}

// TestTwoAnswersAtOnce: who sends a page again while the first decision is under way
// hears what became of that one.
func TestTwoAnswersAtOnce(t *testing.T) {
	for decision, want := range map[string]string{"allow": "You allowed access with this page.", "deny": "Nothing was allowed with this page."} {
		t.Run(decision, func(t *testing.T) {
			w := newWorld(t)
			action, _, session := firstForm(t, w.consentPage(text(t, w.device(scopeUpcoming), "verification_uri_complete")))
			form := url.Values{"session": {session}, "decision": {decision}, "scope": {scopeUpcoming}}
			lock := &watchedLock{came: make(chan struct{}, 2)}
			w.sandbox.answering = lock
			answers := make(chan answer, 2)
			post := func() { answers <- w.post(action, form) }

			w.sandbox.store.mu.Lock() // the first decision cannot be kept
			free := sync.OnceFunc(w.sandbox.store.mu.Unlock)
			t.Cleanup(free)
			for range 2 {
				go post()
			}
			for range 2 {
				select {
				case <-lock.came:
				case a := <-answers:
					t.Fatalf("answered before the decision: %d %s", a.status, a.body)
				}
			}
			free()
			first, second := <-answers, <-answers
			if first.status != http.StatusSeeOther {
				first, second = second, first
			}
			if first.status != http.StatusSeeOther || second.status != http.StatusConflict || !strings.Contains(string(second.body), want) {
				t.Errorf("%d, then %d %s", first.status, second.status, second.body)
			}
		})
	}
}

func TestAssertionsAndSessionsWorkOnce(t *testing.T) {
	w := newWorld(t)
	consent := w.url(LarklineID, "oauth/consent")
	post := func(form url.Values) int { return w.post(consent, form).status }
	signIn := func(link string) (string, url.Values) {
		action, _, assertion := firstForm(t, w.login(link, testAccounts[0].Email, testAccounts[0].Password))
		return action, url.Values{"assertion": {assertion}}
	}
	d := w.device(scopeUpcoming)
	link := text(t, d, "verification_uri_complete")

	action, assertion := signIn(link)
	w.clock.advance(Defaults().AssertionTTL)
	if a := w.post(action, assertion); a.status != 400 {
		t.Errorf("an assertion after its time: %d", a.status)
	}
	action, assertion = signIn(link)
	page := w.post(action, assertion)
	// Who went back has a way on.
	if a := w.post(action, assertion); a.status != 400 || !strings.Contains(string(a.body), `<a class="button" href="`+link+`">Sign in again</a>`) {
		t.Errorf("an assertion again: %d %s", a.status, a.body)
	}
	_, _, session := firstForm(t, page)
	if got := post(url.Values{"assertion": {session}}); got != 400 {
		t.Errorf("a session as assertion: %d", got)
	}
	allow := url.Values{"session": {session}, "decision": {"allow"}, "scope": {scopeUpcoming}}
	if got := post(url.Values{"session": {session}, "assertion": {"x"}}); got != 400 {
		t.Errorf("both: %d", got)
	}
	if got := post(url.Values{}); got != 400 {
		t.Errorf("neither: %d", got)
	}
	if got := post(url.Values{"session": {session, session}}); got != 400 {
		t.Errorf("a session twice: %d", got)
	}
	// Two pages of the same request, as with the back button: one decides.
	_, _, other := firstForm(t, w.consentPage(link))
	won := 0
	for _, a := range w.together(4, http.MethodPost, consent, func(int) string { return allow.Encode() }, formType) {
		if a.status == 303 {
			won++
		} else if a.status != 409 || !strings.Contains(string(a.body), "You allowed access with this page. That stands.") {
			t.Errorf("a double submit: %d %s", a.status, a.body)
		}
	}
	if won != 1 {
		t.Errorf("%d submits won", won)
	}
	if a := w.post(consent, url.Values{"session": {session}, "decision": {"deny"}}); a.status != 409 || !strings.Contains(string(a.body), "You allowed") {
		t.Errorf("another mind: %d %s", a.status, a.body)
	}
	if got := post(url.Values{"session": {other}, "decision": {"deny"}}); got != 410 {
		t.Errorf("a second decision: %d", got)
	}
	if a := w.poll(d["device_code"]); a.status != 200 {
		t.Errorf("the first decision does not hold: %d", a.status)
	}
	if a := w.consentPage(link); a.status != 410 {
		t.Errorf("the link again: %d", a.status)
	}

	d = w.device(scopeUpcoming)
	_, _, session = firstForm(t, w.consentPage(text(t, d, "verification_uri_complete")))
	w.clock.advance(Defaults().SessionTTL)
	allow.Set("session", session)
	if got := post(allow); got != 400 {
		t.Errorf("a session after its time: %d", got)
	}
}

// TestOneDecision: two pages that were both shown in time cannot both decide.
func TestOneDecision(t *testing.T) {
	s := openStore(t, "")
	a, err := s.authorize(t.Context(), authorization{device: "d", party: party{brand: LarklineID}, scopes: []string{scopeUpcoming}}, testStart)
	if err != nil {
		t.Fatal(err)
	}
	decide := func(brand, user string, granted []string, at time.Time) bool {
		waited, err := s.decide(t.Context(), brand, a.userCode, user, granted, at)
		if err != nil {
			t.Fatal(err)
		}
		return waited
	}
	for _, brand := range []string{MarrowID, ""} {
		if decide(brand, "lark-4471", a.scopes, testStart) {
			t.Errorf("a decision at brand %q", brand)
		}
	}
	if decide(LarklineID, "lark-4471", a.scopes, a.expires) {
		t.Error("a decision after its time")
	}
	if !decide(LarklineID, "lark-4471", a.scopes, testStart) {
		t.Fatal("the first decision")
	}
	if decide(LarklineID, "lark-9000", nil, testStart) {
		t.Error("a second decision")
	}
}

// TestLoginIsForOneBrand: what a login at one brand proves is nothing at another.
func TestLoginIsForOneBrand(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		other := Larkline(testStart)
		other.ID = "OTHER"
		c.Brands = []Brand{Larkline(testStart), other}
	})
	link := text(t, w.device(scopeUpcoming), "verification_uri_complete")
	action, _, assertion := firstForm(t, w.login(link, testAccounts[0].Email, testAccounts[0].Password))
	form := url.Values{"assertion": {assertion}}
	if a := w.post(strings.Replace(action, LarklineID, "OTHER", 1), form); a.status != 400 || formTag.Match(a.body) {
		t.Errorf("%d %s", a.status, a.body)
	}
	// Nor is a consent page, before and after it was answered.
	_, _, session := firstForm(t, w.consentPage(link))
	allow := url.Values{"session": {session}, "decision": {"allow"}, "scope": {scopeUpcoming}}
	if a := w.post(strings.Replace(action, LarklineID, "OTHER", 1), allow); a.status != 400 {
		t.Errorf("%d %s", a.status, a.body)
	}
	_, _, allow["session"][0] = firstForm(t, w.consentPage(link))
	if a := w.post(action, allow); a.status != 303 {
		t.Errorf("at its own: %d %s", a.status, a.body)
	}
	if a := w.post(strings.Replace(action, LarklineID, "OTHER", 1), allow); a.status != 400 || strings.Contains(string(a.body), "You allowed") {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := w.do(http.MethodGet, w.ready.Provider+"/.well-known/agent-card.json", ""); a.status != 404 {
		t.Errorf("two brands share a well-known card: %d", a.status)
	}
}

func TestConsentDecisions(t *testing.T) {
	w := newWorld(t)
	for _, tc := range []struct {
		name     string
		form     url.Values
		status   int
		decision string // at the end of Location
		poll     string // error, or the scope granted
	}{
		{"all", url.Values{"decision": {"allow"}, "scope": {scopeHistory, scopeUpcoming}}, 303, "approved", scopeUpcoming + " " + scopeHistory},
		{"some", url.Values{"decision": {"allow"}, "scope": {scopeHistory}}, 303, "approved", scopeHistory},
		{"one twice", url.Values{"decision": {"allow"}, "scope": {scopeHistory, scopeHistory}}, 303, "approved", scopeHistory},
		{"nothing ticked", url.Values{"decision": {"allow"}}, 303, "denied", "access_denied"},
		{"deny", url.Values{"decision": {"deny"}, "scope": {scopeHistory}}, 303, "denied", "access_denied"},
		{"more than asked", url.Values{"decision": {"allow"}, "scope": {scopeHistory, scopeCancel}}, 400, "", "authorization_pending"},
		{"no decision", url.Values{"scope": {scopeHistory}}, 400, "", "authorization_pending"},
		{"another decision", url.Values{"decision": {"ALLOW"}, "scope": {scopeHistory}}, 400, "", "authorization_pending"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w.t = t
			d := w.device(scopeUpcoming + " " + scopeHistory)
			action, _, session := firstForm(t, w.consentPage(text(t, d, "verification_uri_complete")))
			tc.form.Set("session", session)
			a := w.post(action, tc.form)
			if a.status != tc.status || !strings.HasSuffix(a.header.Get("Location"), tc.decision) {
				t.Fatalf("%d %s", a.status, a.header.Get("Location"))
			}
			if a = w.poll(d["device_code"]); a.status == 200 {
				if got := a.json(t)["scope"]; got != tc.poll {
					t.Errorf("granted %v, want %s", got, tc.poll)
				}
				return
			}
			w.wantOAuthError(a, 400, tc.poll)
		})
	}
}

func TestTypedUserCode(t *testing.T) {
	w := newWorld(t)
	d := w.device(scopeUpcoming)
	page := w.consentPage(text(t, d, "verification_uri"))
	action, name, session := firstForm(t, page)
	if name != "session" || !strings.Contains(string(page.body), `name="user_code"`) {
		t.Fatalf("%s", page.body)
	}
	page = w.post(action, url.Values{"session": {session}, "user_code": {"nonsense"}})
	if _, _, session = firstForm(t, page); !strings.Contains(string(page.body), "eight letters") {
		t.Fatalf("%s", page.body)
	}
	typed := strings.ToLower(strings.ReplaceAll(text(t, d, "user_code"), "-", " "))
	page = w.post(action, url.Values{"session": {session}, "user_code": {typed}})
	if _, _, session = firstForm(t, page); !strings.Contains(string(page.body), "View your upcoming flights") {
		t.Fatalf("%s", page.body)
	}
	if a := w.post(action, url.Values{"session": {session}, "decision": {"deny"}}); !strings.HasSuffix(a.header.Get("Location"), "denied") {
		t.Errorf("%d %v", a.status, a.header)
	}
	// A reload of the consent address leads to the login.
	a := w.do(http.MethodGet, w.url(LarklineID, "oauth/consent?user_code="+text(t, d, "user_code")), "")
	if a.status != 303 || a.header.Get("Location") != text(t, d, "verification_uri_complete") {
		t.Errorf("%d %s", a.status, a.header.Get("Location"))
	}
}

func TestConsentShowsHowTheAskerIsRegistered(t *testing.T) {
	w := newWorld(t)
	if _, _, err := w.sandbox.store.register(t.Context(), platform{Name: "my-pa", Issuer: w.issuer.url, JWKSURI: w.issuer.url + "/.well-known/jwks.json", Enabled: true}); err != nil {
		t.Fatal(err)
	}
	page := w.consentPage(text(t, w.device(scopeUpcoming), "verification_uri_complete"))
	if !strings.Contains(string(page.body), "calls itself “<bdi>my-pa</bdi>”") {
		t.Errorf("%s", page.body)
	}
}

func TestPerson(t *testing.T) {
	w := newWorld(t)
	link := func() string {
		return text(t, w.device(scopeUpcoming+" "+scopeRebook), "verification_uri_complete")
	}
	c, err := w.person(0).Allow(t.Context(), link(), scopeRebook)
	if err != nil || !c.Approved || len(c.Asked) != 2 || c.Asked[1] != (person.Box{ID: scopeRebook, Text: "Rebook your flights"}) || len(c.Ticked) != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := w.person(0).Allow(t.Context(), link()); err != nil || c.Approved {
		t.Errorf("nothing ticked: %+v, %v", c, err)
	}
	if c, err := w.person(1).Deny(t.Context(), link()); err != nil || c.Approved || len(c.Ticked) > 0 {
		t.Errorf("deny: %+v, %v", c, err)
	}
	wrong := person.Person{Login: person.Login{Email: testAccounts[0].Email, Password: "wrong"}}
	used := link()
	if _, err := wrong.AllowAll(t.Context(), used); !errors.Is(err, person.ErrPage) || !strings.Contains(err.Error(), "Email or password is not right.") {
		t.Errorf("wrong password: %v", err)
	}
	if _, err := w.person(0).Allow(t.Context(), used, scopeCancel); !errors.Is(err, person.ErrPage) {
		t.Errorf("a box that is not there: %v", err)
	}
	if _, err := w.person(0).AllowAll(t.Context(), used); err != nil {
		t.Errorf("after that: %v", err)
	}
	if _, err := w.person(0).AllowAll(t.Context(), used); !errors.Is(err, person.ErrPage) {
		t.Errorf("a used link: %v", err)
	}
	if _, err := w.person(0).AllowAll(t.Context(), w.sandbox.brandURL+"/nope"); !errors.Is(err, person.ErrPage) {
		t.Errorf("no page: %v", err)
	}
	secret := "http://127.0.0.1:1/login?return_to=secret"
	if _, err := w.person(0).AllowAll(t.Context(), secret); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("nobody there: %v", err)
	}
}
