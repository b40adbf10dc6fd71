package person

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// business is a Provider and a login on two origins, written by others than us:
// each page may be replaced.
type business struct {
	provider, login *httptest.Server
	pages           map[string]string // by path: the page; "302 URL" redirects
	posted          []string          // path and form
}

func newBusiness(t *testing.T) *business {
	b := &business{pages: map[string]string{}}
	serve := func() *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(b.serve))
		t.Cleanup(s.Close)
		return s
	}
	b.provider, b.login = serve(), serve()
	b.pages = map[string]string{
		"GET /start":     "302 " + b.login.URL + "/login?return_to=x",
		"GET /login":     `<form method=post action=/login><input type=hidden name=return_to value="x">Mail <INPUT NAME=email> <input name=password type=password><button>Go</button></form>`,
		"POST /login":    fmt.Sprintf(`<title>Hello</title><form method="POST" action="%s/consent?a=1&amp;b=2"><input type="hidden" name="assertion" value="as&amp;sertion"><input type=submit></form>`, b.provider.URL),
		"POST /consent":  `<h1>Allow?</h1><form method=post action="answer"><input type=hidden name=session value=s1><input type=checkbox name=scope value=read id=r checked><label for=r>Read <b>it</b></label><label><input type=checkbox name=scope value=write> Write it</label><button name=decision value=allow>Yes</button><button name=decision value=deny>No</button></form>`,
		"POST /answer":   "303 " + b.provider.URL + "/connected?brand=x&status=approved",
		"GET /connected": `<h1>Done`,
	}
	return b
}

func (b *business) serve(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	page, ok := b.pages[r.Method+" "+r.URL.Path]
	if r.Method == http.MethodPost {
		b.posted = append(b.posted, r.URL.RequestURI()+" "+r.PostForm.Encode())
	}
	if r.PostForm.Get("decision") == "deny" {
		page = strings.ReplaceAll(page, "approved", "denied")
	}
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if code, to, redirect := strings.Cut(page, " "); redirect && len(code) == 3 {
		var status int
		_, _ = fmt.Sscan(code, &status)
		w.Header().Set("Location", to)
		w.WriteHeader(status)
		return
	}
	_, _ = w.Write([]byte(page))
}

var robin = Person{Login: Login{Email: "robin@example.com", Password: "correct horse"}}

func TestAllow(t *testing.T) {
	b := newBusiness(t)
	c, err := robin.Allow(t.Context(), b.provider.URL+"/start", "write")
	if err != nil || !c.Approved || !slices.Equal(c.Asked, []Box{{"read", "Read it"}, {"write", "Write it"}}) || !slices.Equal(c.Ticked, []string{"write"}) {
		t.Errorf("%+v, %v", c, err)
	}
	want := []string{
		"/login email=robin%40example.com&password=correct+horse&return_to=x",
		"/consent?a=1&b=2 assertion=as%26sertion",
		"/answer decision=allow&scope=write&session=s1",
	}
	if !slices.Equal(b.posted, want) {
		t.Errorf("%q", b.posted)
	}
	if c, err := robin.AllowAll(t.Context(), b.provider.URL+"/start"); err != nil || len(c.Ticked) != 2 {
		t.Errorf("all: %+v, %v", c, err)
	}
	if c, err := robin.Deny(t.Context(), b.provider.URL+"/start"); err != nil || c.Approved || len(c.Ticked) != 0 {
		t.Errorf("deny: %+v, %v", c, err)
	}
	if got, want := b.posted[len(b.posted)-1], "/answer decision=deny&session=s1"; got != want {
		t.Errorf("deny: %q, want %q", got, want)
	}
}

// TestLooseForms holds the reading of pages to what browsers make of them.
func TestLooseForms(t *testing.T) {
	at, err := url.Parse("https://login.example/in/page?x=1")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		page, action, values string
		boxes                int
	}{
		"upper case, no quotes": {`<FORM ACTION=go METHOD=POST><INPUT TYPE=HIDDEN NAME=a VALUE=1></FORM>`, "https://login.example/in/go", "a=1", 0},
		"never closed":          {`<form action=/go><input name=a value=1><p>text`, "https://login.example/go", "a=1", 0},
		"no action":             {`<form><input name=a value=1></form>`, "https://login.example/in/page?x=1", "a=1", 0},
		"empty action, a base":  {`<base href="/z/"><form action=""><input name=a></form>`, "https://login.example/in/page?x=1", "a=", 0},
		"base":                  {`<base href="/z/"><form action="go"></form>`, "https://login.example/z/go", "", 0},
		"another scheme":        {`<form action="//other.example/go"></form>`, "https://other.example/go", "", 0},
		"first form only":       {`<form action=1><input name=a></form><form action=2><input name=b></form>`, "https://login.example/in/1", "a=", 0},
		"in a table":            {`<table><form action=go><tr><td><input name=a value=1><td><input type=checkbox name=scope value=r></table>`, "https://login.example/in/go", "a=1", 1},
		"form attribute":        {`<form id=f action=go></form><form action=2><input name=b form=f></form><input name=c form=g>`, "https://login.example/in/go", "b=", 0},
		"buttons send nothing":  {`<form action=go><input type=submit name=s value=1><button name=b value=1></button><input type=image name=i><input type=reset name=r></form>`, "https://login.example/in/go", "", 0},
		"disabled sends not":    {`<form action=go><input name=a disabled></form>`, "https://login.example/in/go", "", 0},
		"other boxes as ticked": {`<form action=go><input type=checkbox name=a checked><input type=checkbox name=b><input type=radio name=c value=1><input type=radio name=c value=2 checked></form>`, "https://login.example/in/go", "a=on&c=2", 0},
		"scope boxes apart":     {`<form action=go><input type=CheckBox name=scope value=r checked><input type=hidden name=scope value=h></form>`, "https://login.example/in/go", "scope=h", 1},
		"no form":               {`<h1>Bye</h1><input name=a>`, "", "", 0},
	} {
		p, err := readPage(at, []byte(c.page))
		if err != nil || p.Action != c.action || p.Values.Encode() != c.values || len(p.Boxes) != c.boxes {
			t.Errorf("%s: %v %q %q %d boxes", name, err, p.Action, p.Values.Encode(), len(p.Boxes))
		}
	}
}

// TestFieldNames signs in where the fields are not called email and password.
func TestFieldNames(t *testing.T) {
	b := newBusiness(t)
	b.pages["GET /login"] = `<form method=post action=/login><input type=hidden name=csrf value=1><input name=user><input type=password name=pin></form>`
	if _, err := robin.AllowAll(t.Context(), b.provider.URL+"/start"); err != nil {
		t.Error(err)
	}
	if got, want := b.posted[0], "/login csrf=1&pin=correct+horse&user=robin%40example.com"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestOnward goes on through pages that only lead on, and through a form that gets.
func TestOnward(t *testing.T) {
	b := newBusiness(t)
	b.pages["POST /login"] = `<form method=get action="/hop?gone=1"><input type=hidden name=assertion value=a1><button>Go</button></form>`
	b.pages["GET /hop"] = "307 " + b.provider.URL + "/hop2"
	b.pages["GET /hop2"] = fmt.Sprintf(`<form method=post action=%s/hop3></form>`, b.provider.URL)
	b.pages["POST /hop3"] = "308 " + b.provider.URL + "/consent"
	if c, err := robin.AllowAll(t.Context(), b.provider.URL+"/start"); err != nil || !c.Approved {
		t.Errorf("%+v, %v", c, err)
	}
	if !slices.Contains(b.posted, "/consent ") {
		t.Errorf("308 does not post again: %q", b.posted)
	}
}

// TestUserCode types the code where a page asks for it.
func TestUserCode(t *testing.T) {
	b := newBusiness(t)
	b.pages["POST /consent"], b.pages["POST /code"] = `<h1>Code?</h1><form method=post action=/code><input type=hidden name=session value=s0><input name=code></form>`, b.pages["POST /consent"]
	who := robin
	who.UserCode = "BCDF-GHJK"
	if c, err := who.AllowAll(t.Context(), b.provider.URL+"/start"); err != nil || !c.Approved {
		t.Errorf("%+v, %v", c, err)
	}
	if !slices.Contains(b.posted, "/code code=BCDF-GHJK&session=s0") {
		t.Errorf("%q", b.posted)
	}
}

func TestNothingToGoOnWith(t *testing.T) {
	for name, c := range map[string]struct {
		page, with, says string
	}{
		"no login form":   {"GET /login", `<h1>Sorry</h1>`, `no login form behind the link: "Sorry" (200)`},
		"wrong password":  {"POST /login", `<h1>Sign in</h1><p role=alert>Not right.</p><form action=/login><input name=email><input type=password name=password></form>`, `not signed in: "Sign in: Not right." (200)`},
		"error page":      {"POST /consent", `<title>Oops</title>`, `no consent form: "Oops" (200)`},
		"a code is asked": {"POST /consent", `<h1>Code</h1><form><input name=user_code></form>`, `no consent form: "Code" (200)`},
		"a blind button":  {"POST /consent", `<h1>Hm</h1><form><button name=decision value=allow>Allow</button></form>`, `no consent form: "Hm" (200)`},
		"never ends":      {"POST /consent", `<h1>Next</h1><form method=post action=/consent></form>`, "no consent form within 5 pages of the login"},
		"redirect loop":   {"GET /login", "302 /login", "too many redirects"},
		"no decision":     {"POST /answer", `<h1>What?</h1>`, `no decision on the last page: "What?" (200)`},
		"other scheme":    {"GET /login", "302 javascript:alert(1)", "redirects to a URL that is not absolute"},
		"empty page":      {"POST /login", "", `no consent form: a page without a heading (200)`},
		"bad action":      {"GET /login", `<form action="http://%zz"><input type=password name=p></form>`, "the form goes nowhere"},
	} {
		b := newBusiness(t)
		b.pages[c.page] = c.with
		_, err := robin.AllowAll(t.Context(), b.provider.URL+"/start")
		if err == nil || !strings.Contains(err.Error(), c.says) || !errors.Is(err, ErrPage) {
			t.Errorf("%s: %v", name, err)
		}
		if refused := name == "other scheme"; errors.Is(err, ErrRefused) != refused {
			t.Errorf("%s: %v; refused: %v", name, err, refused)
		}
		if err != nil && (strings.Contains(err.Error(), "return_to") || strings.Contains(err.Error(), "correct horse")) {
			t.Errorf("%s: the error holds a link or the password: %v", name, err)
		}
	}
	b := newBusiness(t)
	if _, err := robin.Allow(t.Context(), b.provider.URL+"/start", "delete"); !errors.Is(err, ErrPage) || len(b.posted) != 2 {
		t.Errorf("a box that is not there: %v, %q", err, b.posted)
	}
}

// TestPasswordStaysHome: a password goes by POST to the origin of the page that asks for
// it, whatever the pages want.
func TestPasswordStaysHome(t *testing.T) {
	var caught []string
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		caught = append(caught, r.Form.Encode())
	}))
	defer thief.Close()
	form := `<form method=%s action="%s"><input name=email><input type=password name=password></form>`
	for name, c := range map[string]struct{ page, with, says string }{
		"307 to another origin":   {"POST /login", "307 " + thief.URL + "/", "redirects the password to another origin"},
		"308 to another origin":   {"POST /login", "308 " + thief.URL + "/", "redirects the password to another origin"},
		"action of another":       {"GET /login", fmt.Sprintf(form, "post", thief.URL), "the form sends the password to another origin"},
		"get":                     {"GET /login", fmt.Sprintf(form, "get", "/login"), "the form would show the password in an address"},
		"get of another":          {"GET /login", fmt.Sprintf(form, "get", thief.URL), "the form would show the password in an address"},
		"in the clear":            {"GET /login", fmt.Sprintf(form, "post", "http://192.0.2.1/"), "the form goes to a URL that is http (that is for loopback in development)"},
		"another scheme":          {"GET /login", fmt.Sprintf(form, "post", "javascript:x"), "the form goes to a URL that is not absolute"},
		"redirected in the clear": {"GET /login", "302 http://192.0.2.1/", "redirects to a URL that is http"},
	} {
		b := newBusiness(t)
		b.pages[c.page] = c.with
		_, err := robin.AllowAll(t.Context(), b.provider.URL+"/start")
		if !errors.Is(err, ErrPage) || !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "correct") {
			t.Errorf("%s: %v; want %q", name, err, c.says)
		}
		if elsewhere := strings.Contains(c.says, "another origin"); errors.Is(err, ErrElsewhere) != elsewhere {
			t.Errorf("%s: %v; of another origin: %v", name, err, elsewhere)
		}
	}
	if len(caught) > 0 {
		t.Errorf("another origin got %q", caught)
	}
	b := newBusiness(t)
	b.pages["POST /again"], b.pages["POST /login"] = b.pages["POST /login"], "307 /again"
	if c, err := robin.AllowAll(t.Context(), b.provider.URL+"/start"); err != nil || !c.Approved {
		t.Errorf("307 on the same origin: %+v, %v", c, err)
	}
}

// answers plays servers anywhere.
type answers map[string]string // by URL: the page; "302 URL" redirects

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	page, ok := a[r.URL.String()]
	if code, to, redirect := strings.Cut(page, " "); redirect && code == "302" {
		http.Redirect(w, r, to, http.StatusFound)
	} else if !ok {
		w.WriteHeader(http.StatusNotFound)
	} else {
		_, _ = w.WriteString(page)
	}
	return w.Result(), nil
}

// TestNoWayHome: no page of the internet leads to this machine or its network, except
// in development.
func TestNoWayHome(t *testing.T) {
	for _, target := range []string{
		"https://127.0.0.1:8443/", "https://localhost/", "https://air.localhost/", "https://[::1]/", "https://[::ffff:127.0.0.1]/",
		"https://10.0.0.7/", "https://192.168.1.1/", "https://169.254.169.254/", "https://[fd00::1]/", "https://0.0.0.0/",
	} {
		for how, page := range map[string]string{"a redirect": "302 " + target, "a form": `<form method=post action="` + target + `"></form>`} {
			p := Person{Client: &http.Client{Transport: answers{"https://login.example/": page, target: "<h1>In</h1>"}}}
			follow := func() error {
				at, err := p.Open(t.Context(), "https://login.example/")
				if err == nil && at.Action != "" {
					_, err = at.Post(t.Context(), at.Values)
				}
				return err
			}
			if err := follow(); !errors.Is(err, ErrPage) || !strings.Contains(err.Error(), "no page of the internet leads") {
				t.Errorf("%s to %s: %v", how, target, err)
			}
			if p.Development = true; follow() != nil {
				t.Errorf("%s to %s in development: %v", how, target, follow())
			}
		}
	}
	for _, link := range []string{"http://login.example/", "https://u:p@login.example/", "file:///etc/hosts", "login.example", ""} {
		if _, err := (Person{}).Open(t.Context(), link); !errors.Is(err, ErrPage) {
			t.Errorf("%q: %v", link, err)
		}
	}
}

// TestLongPage: a page costs what it is long, whatever is inside what.
func TestLongPage(t *testing.T) {
	at, err := url.Parse("https://login.example/login")
	if err != nil {
		t.Fatal(err)
	}
	filler := strings.Repeat("so much to say <i>here</i> ", 40<<10/27)
	for name, page := range map[string]string{
		"alerts": strings.Repeat("<div role=alert>", 400) + filler,
		"labels": "<form>" + strings.Repeat("<label for=a>", 400) + filler + strings.Repeat("<input type=checkbox name=scope>", 1000),
		"h1":     strings.Repeat("<h1><div>", 200) + filler,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		p, err := readPage(at, []byte(page))
		runtime.ReadMemStats(&after)
		if err != nil {
			t.Fatal(err)
		}
		if spent := after.TotalAlloc - before.TotalAlloc; spent > 8<<20 || len(p.Heading) > 2*maxText+2 {
			t.Errorf("%s: a page of %d bytes takes %d; its heading has %d", name, len(page), spent, len(p.Heading))
		}
	}
	p, err := readPage(at, []byte(`<h1>Sign in</h1><p role=alert></p><p role=alert>First.</p><p role=alert>Second.</p>`))
	if err != nil || p.Heading != "Sign in: First." {
		t.Errorf("%q, %v", p.Heading, err)
	}
}

// TestCookies: a person whose client keeps cookies sends them.
func TestCookies(t *testing.T) {
	var got string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := r.Cookie("visit"); err == nil {
			got = c.Value
		}
		http.SetCookie(w, &http.Cookie{Name: "visit", Value: "7"})
		_, _ = w.Write([]byte(`<form method=post action=/>`))
	}))
	defer s.Close()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	page, err := (Person{Client: &http.Client{Jar: jar}}).Open(t.Context(), s.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := page.Post(t.Context(), page.Values); err != nil || got != "7" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestPrintsNoSecret(t *testing.T) {
	at, err := url.Parse("https://login.example/login?secret")
	if err != nil {
		t.Fatal(err)
	}
	p, err := readPage(at, []byte(`<h1>`+strings.Repeat("é", 300)+`</h1><form action="/secret"><input name=a value=secret>`))
	if err != nil {
		t.Fatal(err)
	}
	p.person = Person{Login: Login{Email: "a@b.example", Password: "secret"}}
	for _, printed := range []string{
		fmt.Sprint(p), fmt.Sprintf("%+v %#v %s %v", p, p, p, p), p.String(), p.GoString(),
		fmt.Sprintf("%v %+v %#v", p.person, p.person, p.person), p.person.Login.LogValue().String(),
	} {
		if strings.Contains(printed, "secret") || len(printed) > 2500 {
			t.Error(printed)
		}
	}
	if p.AsksPassword() {
		t.Error("a page without a password field is a login")
	}
	if _, err := (&Page{}).Post(t.Context(), nil); !errors.Is(err, ErrPage) {
		t.Errorf("no form: %v", err)
	}
}

// FuzzReadPage: whatever a page holds, it is read or refused.
func FuzzReadPage(f *testing.F) {
	at, err := url.Parse("https://login.example/login")
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		`<form action=/x><input name=a value=1><input type=password name=p><input type=checkbox name=scope value=r></form>`,
		`<table><form action="//o"><tr><td><input name=a>`, `<base href="%"><form action="%zz">`, "\x00<form",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		p, err := readPage(at, []byte(body))
		if err != nil {
			if !errors.Is(err, ErrPage) {
				t.Errorf("%v", err)
			}
			return
		}
		if p.Action != "" {
			if u, err := url.Parse(p.Action); err != nil || !u.IsAbs() {
				t.Errorf("action %q", p.Action)
			}
		}
	})
}
