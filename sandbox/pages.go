package sandbox

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

const loginPath = "/login"

//go:embed pages
var pageFiles embed.FS

var (
	pageStyle, pageStyleHash = readStyle()
	pageTemplates            = template.Must(template.ParseFS(pageFiles, "pages/*.html"))
)

// readStyle returns the stylesheet and the CSP source that allows it inline.
func readStyle() (template.CSS, string) {
	css, err := pageFiles.ReadFile("pages/style.css")
	if err != nil {
		panic(err) // embedded at build
	}
	sum := sha256.Sum256(css)
	return template.CSS(css), "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// page is what the templates are given. The first form of each page is the one to
// post; its action is absolute and has no "&".
type page struct {
	Style  template.CSS
	Title  string
	Brand  string
	Action string // where the form goes

	Problem  string // what went wrong
	ReturnTo string // login
	Email    string
	User     string // name of who is signed in
	Secret   string // assertion or session, base64url

	Asker     string // consent: the issuer that asks
	AskerName string // as it registered itself
	UserCode  string
	Scopes    []Scope
	NotShared []string

	Approved bool // connected
}

// show writes a page: never cached or framed, without anything loaded, and
// referred from by no more than its origin.
func (s *Sandbox) show(w http.ResponseWriter, status int, name string, p page) {
	p.Style = pageStyle
	var body bytes.Buffer
	if err := pageTemplates.ExecuteTemplate(&body, name, p); err != nil {
		s.log.Error("page failed", "page", name, "error", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src "+pageStyleHash+
		"; form-action "+s.publicURL+" "+s.brandURL+"; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "origin") // with "no-referrer" a form's Origin would be null
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	writeBody(w, status, "text/html; charset=utf-8", body.Bytes())
}

func (s *Sandbox) showError(w http.ResponseWriter, status int, problem string) {
	s.show(w, status, "error.html", page{Title: "This did not work", Problem: problem})
}

// signInLink is where a user signs in to answer the request of a user code, or to
// type one.
func (s *Sandbox) signInLink(b *business, userCode string) string {
	returnTo := b.consentURL()
	if userCode != "" {
		returnTo += "?user_code=" + userCode
	}
	return s.brandURL + loginPath + "?return_to=" + url.QueryEscape(returnTo)
}

// returnTarget reads a return_to: the consent address of a brand of ours, exactly
// as signInLink writes it, and nothing else.
func (s *Sandbox) returnTarget(returnTo string) (b *business, userCode string, ok bool) {
	address, code, hasCode := strings.Cut(returnTo, "?user_code=")
	if hasCode {
		if userCode = parseUserCode(code); userCode != code || code == "" {
			return nil, "", false
		}
	}
	for _, b := range s.brands {
		if b.delegated() && address == b.consentURL() {
			return b, userCode, true
		}
	}
	return nil, "", false
}

const foreignReturn = "This sign-in link is not one of ours. Go back to your assistant and ask for a new one."

// loginPage is GET /login on the brands' domain.
func (s *Sandbox) loginPage(w http.ResponseWriter, r *http.Request) {
	returnTo := r.URL.Query().Get("return_to")
	b, _, ok := s.returnTarget(returnTo)
	if !ok {
		s.showError(w, http.StatusBadRequest, foreignReturn)
		return
	}
	s.show(w, http.StatusOK, "login.html", s.loginForm(b, returnTo))
}

func (s *Sandbox) loginForm(b *business, returnTo string) page {
	return page{Title: "Sign in", Brand: b.Name, Action: s.brandURL + loginPath, ReturnTo: returnTo}
}

// login is POST /login: the page after a good one hands the single-use assertion
// to the consent address.
func (s *Sandbox) login(w http.ResponseWriter, r *http.Request) {
	form, ok := s.pageForm(w, r)
	if !ok {
		return
	}
	returnTo := form.Get("return_to")
	b, userCode, ok := s.returnTarget(returnTo)
	if !ok {
		s.showError(w, http.StatusBadRequest, foreignReturn)
		return
	}
	again := s.loginForm(b, returnTo)
	again.Email = form.Get("email")
	user, wait := s.signIn(again.Email, form.Get("password"))
	switch {
	case wait > 0:
		w.Header().Set("Retry-After", retryAfter(wait))
		again.Problem = "Too many attempts. Wait a little, then try again."
		s.show(w, http.StatusTooManyRequests, "login.html", again)
	case user == nil:
		again.Problem = "Email or password is not right."
		s.show(w, http.StatusForbidden, "login.html", again)
	default:
		assertion := s.store.give(s.store.assertions, visit{b.ID, user.id, userCode}, s.params.AssertionTTL, s.now())
		s.show(w, http.StatusOK, "signedin.html", page{
			Title: "You are signed in", Brand: b.Name, Action: returnTo, User: user.name, Secret: assertion,
		})
	}
}

// consentLink is GET on the consent address, as a reload or a bookmark gives: the
// way in is the login.
func (s *Sandbox) consentLink(w http.ResponseWriter, r *http.Request, b *business) {
	w.Header().Set("Location", s.signInLink(b, parseUserCode(r.URL.Query().Get("user_code"))))
	w.WriteHeader(http.StatusSeeOther)
}

const (
	usedUp  = "This page was used already, or waited too long. Nothing was changed by it. Go back to your assistant and ask for a new link."
	noAsker = "Nobody waits for this permission any more: the request was answered already, or has run out. Go back to your assistant and ask again."
)

// consent is POST on the consent address: an assertion shows the page, a session
// answers it.
func (s *Sandbox) consent(w http.ResponseWriter, r *http.Request, b *business) {
	form, ok := s.pageForm(w, r)
	if !ok {
		return
	}
	assertion, session := form.Get("assertion"), form.Get("session")
	if (assertion == "") == (session == "") {
		s.showError(w, http.StatusBadRequest, "This form is not one of ours.")
		return
	}
	var v visit
	if assertion != "" {
		v, ok = s.store.take(s.store.assertions, assertion, s.now())
	} else {
		v, ok = s.store.take(s.store.sessions, session, s.now())
	}
	if !ok || v.brand != b.ID {
		s.showError(w, http.StatusBadRequest, usedUp)
		return
	}
	switch {
	case assertion != "":
		s.askConsent(w, b, v, "")
	case v.userCode == "":
		v.userCode = parseUserCode(form.Get("user_code"))
		s.askConsent(w, b, v, "A code is eight letters, such as BCDF-GHJK.")
	default:
		s.answerConsent(w, b, v, form)
	}
}

// askConsent shows the consent page, or first the one that asks for the code, with
// what was wrong with the last one.
func (s *Sandbox) askConsent(w http.ResponseWriter, b *business, v visit, problem string) {
	p := page{Brand: b.Name, Action: b.consentURL(), User: s.userName(v.user)}
	auth, ok := s.store.undecided(b.ID, v.userCode, s.now())
	switch {
	case v.userCode == "":
		p.Title, p.Problem = "Enter your code", problem
	case !ok:
		s.showError(w, http.StatusGone, noAsker)
		return
	default:
		p.Title = "Allow access?"
		p.Asker, p.UserCode, p.NotShared = auth.party.issuer, auth.userCode, b.NotShared
		if known, ok := s.store.platform(auth.party.issuer); ok {
			p.AskerName = known.Name
		}
		for _, scope := range b.Scopes {
			if slices.Contains(auth.scopes, scope.ID) {
				p.Scopes = append(p.Scopes, scope)
			}
		}
	}
	p.Secret = s.store.give(s.store.sessions, v, s.params.SessionTTL, s.now())
	if v.userCode == "" {
		s.show(w, http.StatusOK, "code.html", p)
		return
	}
	s.show(w, http.StatusOK, "consent.html", p)
}

// answerConsent records what the user decided and sends them to the last page.
// Allow with nothing ticked is no.
func (s *Sandbox) answerConsent(w http.ResponseWriter, b *business, v visit, form url.Values) {
	auth, ok := s.store.undecided(b.ID, v.userCode, s.now())
	if !ok {
		s.showError(w, http.StatusGone, noAsker)
		return
	}
	var granted []string
	switch ticked := form["scope"]; form.Get("decision") {
	case "deny":
	case "allow":
		if !containsAll(auth.scopes, ticked) {
			s.showError(w, http.StatusBadRequest, "This form holds a permission that nobody asked for. Nothing was allowed.")
			return
		}
		granted, _ = b.pick(ticked)
	default:
		s.showError(w, http.StatusBadRequest, "This form holds no decision. Nothing was allowed.")
		return
	}
	if !s.store.decide(b.ID, v.userCode, v.user, granted, s.now()) {
		s.showError(w, http.StatusGone, noAsker)
		return
	}
	status := "approved"
	if len(granted) == 0 {
		status = "denied"
	}
	w.Header().Set("Location", b.asIssuer()+"/connected?brand="+b.ID+"&status="+status)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusSeeOther)
}

// connected is the last page. It says what the address says, and knows nothing.
func (s *Sandbox) connected(w http.ResponseWriter, r *http.Request, b *business) {
	p := page{Brand: b.Name}
	switch r.URL.Query().Get("status") {
	case "approved":
		p.Title, p.Approved = "Access allowed", true
	case "denied":
		p.Title = "Nothing was allowed"
	default:
		s.showError(w, http.StatusBadRequest, "This address is not complete.")
		return
	}
	s.show(w, http.StatusOK, "connected.html", p)
}

// pageForm reads a form that a page of ours posted: if the browser says from which
// origin, it is one of our two. Only scope may come more than once.
func (s *Sandbox) pageForm(w http.ResponseWriter, r *http.Request) (url.Values, bool) {
	for _, origin := range r.Header.Values("Origin") {
		if origin != s.publicURL && origin != s.brandURL {
			s.showError(w, http.StatusForbidden, "This form was sent from another website. Nothing was changed by it.")
			return nil, false
		}
	}
	body, err := readBody(w, r)
	if err == nil {
		var form url.Values
		if form, err = parsePageForm(r.Header.Get("Content-Type"), body); err == nil {
			return form, true
		}
	}
	s.showError(w, http.StatusBadRequest, "This form could not be read.")
	return nil, false
}

func parsePageForm(contentType string, body []byte) (url.Values, error) {
	if mediaType(contentType) != "application/x-www-form-urlencoded" {
		return nil, http.ErrNotSupported
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, err
	}
	for name, values := range form {
		if len(values) > 1 && name != "scope" {
			return nil, http.ErrNotSupported
		}
	}
	return form, nil
}

func (s *Sandbox) userName(id string) string {
	for _, a := range s.accounts {
		if a.id == id {
			return a.name
		}
	}
	return ""
}
