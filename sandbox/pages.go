package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
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
// post; on the users' pages its action is absolute and has no "&".
type page struct {
	Style    template.CSS
	Title    string
	State    string // goes before the title in the window's title, "Error:" before that if there is a Problem
	Brand    string // whose page it is; "" if nobody's
	Initials string // of the brand
	Hue      int    // of the brand: a class of the stylesheet
	Action   string // where the form goes; "" without a form

	Problem string // what went wrong
	Wrong   bool   // the problem is with what was typed
	Advice  string // error: what to do now
	Again   *link  // error: a way to do it; else to sign in as somebody else

	ReturnTo string // login
	Email    string
	User     string // name of who is signed in
	Secret   string // assertion or session, base64url

	Asker     string // consent: the issuer that asks
	AskerName string // as it registered itself
	UserCode  string
	Scopes    []Scope
	NotShared []string
	Lasts     string // how long what is allowed lasts

	Approved bool // connected

	Owner *ownerView // the owner's pages
}

// link is a link on a page.
type link struct{ Href, Text string }

// hues is how many colours the stylesheet has for brands.
const hues = 6

// pageOf is a page of a brand, in its colour and with its initials.
func (s *Sandbox) pageOf(b *business, title string) page {
	return page{Title: title, Brand: b.Name, Initials: initialsOf(b.Name), Hue: s.hueOf(b.ID)}
}

// hueOf gives brands that stand together different colours.
func (s *Sandbox) hueOf(brand string) int {
	return max(0, slices.IndexFunc(s.brands, func(b *business) bool { return b.ID == brand })) % hues
}

// initialsOf stand for a logo: the first letters of a name's first two words.
func initialsOf(name string) string {
	var initials []rune
	for _, word := range strings.Fields(name) {
		for _, r := range word {
			if unicode.IsLetter(r) || unicode.IsDigit(r) {
				initials = append(initials, unicode.ToUpper(r))
				break
			}
		}
	}
	return string(initials[:min(2, len(initials))])
}

// show writes a page: never cached or framed, without anything loaded, posting
// nowhere but to its form's origin, and referred from by no more than its own.
func (s *Sandbox) show(w http.ResponseWriter, status int, name string, p page) {
	p.Style = pageStyle
	var body bytes.Buffer
	if err := pageTemplates.ExecuteTemplate(&body, name, p); err != nil {
		s.log.Error("page failed", "page", name, "error", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	// Browsers hold redirects after a post to form-action too: all of ours stay on
	// the origin that was posted to.
	formAction, referrer := "'none'", "origin" // with "no-referrer" a form's Origin would be null
	switch {
	case p.Owner != nil:
		formAction, referrer = "'self'", "same-origin"
	case p.Action != "":
		formAction = sourceOf(originOf(p.Action))
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src "+pageStyleHash+
		"; form-action "+formAction+"; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", referrer)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	writeBody(w, status, "text/html; charset=utf-8", body.Bytes())
}

// sourceOf names an origin in a Content-Security-Policy. It has no word for an IPv6
// address (CSP3 section 2.3.1): then it is any host of the scheme.
func sourceOf(origin string) string {
	if scheme, host, _ := strings.Cut(origin, "://"); strings.HasPrefix(host, "[") {
		return scheme + ":"
	}
	return origin
}

// trouble is an error page: what happened, and what to do now.
type trouble struct {
	title, problem, advice string
	again                  *link
}

const askAgain = "Go back to your assistant and ask it for a new link. You can close this page."

var (
	foreignReturn = trouble{title: "This link does not work", advice: askAgain,
		problem: "This sign-in link is not one of ours, or a part of it is missing."}
	foreignSite = trouble{title: "Sent from another website",
		problem: "This form was sent from another website. Nothing was changed by it.",
		advice:  "If you did not mean to send anything, close this page: you are safe. Otherwise go back to your assistant and open its link again."}
	notOurs = trouble{title: "This form could not be read", advice: askAgain,
		problem: "A part of this form is missing. Nothing was allowed by it."}
	notAsked = trouble{title: "Nobody asked for this", advice: askAgain,
		problem: "This form holds a permission that nobody asked for. Nothing was allowed."}
	usedUp = trouble{title: "This page has run out", advice: askAgain,
		problem: "This page waited too long, or was used already. Nothing was changed by it."}
	sentAgain = trouble{title: "This page was used already", advice: "If you have not answered yet, sign in again.",
		problem: "Each page works once, to keep you safe. Sending it again changed nothing."}
	noAsker = trouble{title: "Nobody waits for this any more",
		problem: "The request was answered already, or has run out. Nothing was changed.",
		advice:  "If your assistant still waits, ask it for a new link. Otherwise you can close this page."}
	noPage = trouble{title: "This address is not complete",
		problem: "A part of this address is missing, so there is nothing to show.",
		advice:  "Go back to your assistant: it knows whether anything was allowed."}
	failed = trouble{title: "Something went wrong here",
		problem: "We could not do this just now. Nothing was allowed by it.",
		advice:  "Wait a moment, then open your assistant’s link again. If this goes on, ask your assistant for a new link."}
)

// showError shows an error page, in the colours of the brand it is about; nil for
// none.
func (s *Sandbox) showError(w http.ResponseWriter, status int, b *business, t trouble) {
	var p page
	if b != nil {
		p = s.pageOf(b, "")
	}
	p.Title, p.Problem, p.Advice, p.Again = t.title, t.problem, t.advice, t.again
	s.show(w, status, "error.html", p)
}

// showFailure answers for an error of our own, which the log gets and the user
// does not.
func (s *Sandbox) showFailure(w http.ResponseWriter, b *business, err error) {
	s.log.Error("page failed", "error", err)
	s.showError(w, http.StatusInternalServerError, b, failed)
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

// loginPage is GET /login on the brands' domain.
func (s *Sandbox) loginPage(w http.ResponseWriter, r *http.Request) {
	returnTo := r.URL.Query().Get("return_to")
	b, _, ok := s.returnTarget(returnTo)
	if !ok {
		s.showError(w, http.StatusBadRequest, nil, foreignReturn)
		return
	}
	s.show(w, http.StatusOK, "login.html", s.loginForm(b, returnTo))
}

func (s *Sandbox) loginForm(b *business, returnTo string) page {
	p := s.pageOf(b, "Sign in")
	p.Action, p.ReturnTo = s.brandURL+loginPath, returnTo
	return p
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
		s.showError(w, http.StatusBadRequest, nil, foreignReturn)
		return
	}
	again := s.loginForm(b, returnTo)
	again.Email = form.Get("email")
	user, wait := s.signIn(again.Email, form.Get("password"))
	if known := s.account(again.Email); user == nil && known != nil && s.lax(r.Context(), "lax-password") {
		user, wait = known, 0
	}
	switch {
	case wait > 0:
		w.Header().Set("Retry-After", retryAfter(wait))
		again.State = "Too many attempts"
		again.Problem = "Too many attempts. Wait " + spell(wait) + ", then try again."
		s.show(w, http.StatusTooManyRequests, "login.html", again)
	case user == nil:
		again.State, again.Wrong = "Email or password is not right", true
		again.Problem = "Email or password is not right. Check both, then try again."
		s.show(w, http.StatusForbidden, "login.html", again)
	default:
		p := s.pageOf(b, "You are signed in")
		p.Action, p.User, p.Email = returnTo, cmp.Or(user.name, user.email), user.email
		p.Again = &link{Href: s.signInLink(b, userCode)}
		p.Secret = s.store.give(s.store.assertions, visit{b.ID, user.id, userCode}, s.params.AssertionTTL, s.now())
		s.show(w, http.StatusOK, "signedin.html", p)
	}
}

// consentLink is GET on the consent address, as a reload or a bookmark gives: the
// way in is the login.
func (s *Sandbox) consentLink(w http.ResponseWriter, r *http.Request, b *business) {
	w.Header().Set("Location", s.signInLink(b, parseUserCode(r.URL.Query().Get("user_code"))))
	w.WriteHeader(http.StatusSeeOther)
}

// spent is what became of an assertion or a session that was used: so that a
// double submit, a reload or the back button ends on a page that knows.
type spent struct {
	visit    visit
	decision string // "approved", "denied", or "" for none
}

// spentPages is how many of them are remembered.
const spentPages = 4096

// showSpent says what became of a page that is sent once more.
func (s *Sandbox) showSpent(w http.ResponseWriter, b *business, secret string) {
	was, ok := s.spent.Get(hashOf(secret))
	switch {
	case !ok || was.visit.brand != b.ID:
		s.showError(w, http.StatusBadRequest, b, usedUp)
	case was.decision != "":
		p := s.pageOf(b, "You have answered already")
		p.State = "Nothing was allowed"
		if was.decision == "approved" {
			p.State, p.Approved = "Access allowed", true
		}
		s.show(w, http.StatusConflict, "answered.html", p)
	default:
		again := sentAgain
		again.again = &link{s.signInLink(b, was.visit.userCode), "Sign in again"}
		s.showError(w, http.StatusBadRequest, b, again)
	}
}

// consent is POST on the consent address: an assertion shows the page, a session
// answers it. Both work once.
func (s *Sandbox) consent(w http.ResponseWriter, r *http.Request, b *business) {
	form, ok := s.pageForm(w, r)
	if !ok {
		return
	}
	assertion, session := form.Get("assertion"), form.Get("session")
	switch {
	case (assertion == "") == (session == ""):
		s.showError(w, http.StatusBadRequest, b, notOurs)
	case assertion != "":
		v, ok := s.store.take(s.store.assertions, assertion, s.now())
		if !ok {
			v, ok = s.reused(r.Context(), assertion, "assertion-reuse")
		}
		if !ok || v.brand != b.ID {
			s.showSpent(w, b, assertion)
			return
		}
		s.spent.Add(hashOf(assertion), spent{visit: v})
		s.askConsent(r.Context(), w, b, v, "")
	default:
		s.answer(r.Context(), w, b, session, form)
	}
}

// answer takes what was sent with a session: a code that was typed, or a decision.
func (s *Sandbox) answer(ctx context.Context, w http.ResponseWriter, b *business, session string, form url.Values) {
	// Whoever sends the same page at the same moment waits here, and then hears what
	// was decided.
	s.answering.Lock()
	v, ok := s.store.take(s.store.sessions, session, s.now())
	if !ok {
		v, ok = s.reused(ctx, session, "session-reuse")
	}
	ok = ok && v.brand == b.ID
	var decision string
	var refused *refusal
	if ok {
		if v.userCode != "" {
			decision, refused = s.decide(ctx, b, v, form)
		}
		s.spent.Add(hashOf(session), spent{v, decision})
	}
	s.answering.Unlock()
	switch {
	case !ok:
		s.showSpent(w, b, session)
	case v.userCode == "":
		v.userCode = parseUserCode(form.Get("user_code"))
		s.askConsent(ctx, w, b, v, "This is not a code: a code has eight letters.")
	case refused != nil:
		s.showError(w, refused.status, b, refused.trouble)
	default:
		w.Header().Set("Location", b.asIssuer()+"/connected?brand="+b.ID+"&status="+decision)
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusSeeOther)
	}
}

// refusal is why a decision is not taken.
type refusal struct {
	status int
	trouble
}

// decide records what the user decided: "approved" or "denied". Allow with nothing
// ticked is no.
func (s *Sandbox) decide(ctx context.Context, b *business, v visit, form url.Values) (string, *refusal) {
	auth, ok, err := s.store.undecided(ctx, b.ID, v.userCode, s.now())
	if err != nil {
		s.log.Error("page failed", "error", err)
		return "", &refusal{http.StatusInternalServerError, failed}
	}
	if !ok {
		return "", &refusal{http.StatusGone, noAsker}
	}
	var granted []string
	switch ticked := form["scope"]; form.Get("decision") {
	case "deny":
	case "allow":
		if !containsAll(auth.scopes, ticked) && !s.lax(ctx, "lax-consent") {
			return "", &refusal{http.StatusBadRequest, notAsked}
		}
		granted, _ = b.pick(ticked)
		granted = s.spoilConsent(ctx, auth.scopes, granted)
	default:
		return "", &refusal{http.StatusBadRequest, notOurs}
	}
	if ok, err = s.store.decide(ctx, b.ID, v.userCode, v.user, granted, s.now()); err != nil {
		s.log.Error("page failed", "error", err)
		return "", &refusal{http.StatusInternalServerError, failed}
	}
	if !ok {
		return "", &refusal{http.StatusGone, noAsker}
	}
	if len(granted) == 0 {
		return "denied", nil
	}
	return "approved", nil
}

// askConsent shows the consent page, or first the one that asks for the code, with
// what was wrong with the last one.
func (s *Sandbox) askConsent(ctx context.Context, w http.ResponseWriter, b *business, v visit, problem string) {
	p := s.pageOf(b, "Allow access?")
	p.Action = b.consentURL()
	p.User, p.Email = s.userName(v.user)
	p.Again = &link{Href: s.signInLink(b, v.userCode)}
	name := "consent.html"
	auth, ok, err := s.store.undecided(ctx, b.ID, v.userCode, s.now())
	if err != nil {
		s.showFailure(w, b, err)
		return
	}
	switch {
	case v.userCode == "":
		name = "code.html"
		p.Title, p.State, p.Problem = "Enter your code", problem, problem
	case !ok:
		s.showError(w, http.StatusGone, b, noAsker)
		return
	default:
		p.Asker, p.UserCode, p.NotShared = auth.party.issuer, auth.userCode, b.NotShared
		p.Lasts = spell(s.params.GrantTTL)
		known, _, err := s.store.platform(ctx, auth.party.issuer)
		if err != nil {
			s.showFailure(w, b, err)
			return
		}
		p.AskerName = known.Name
		for _, scope := range b.Scopes {
			if slices.Contains(auth.scopes, scope.ID) {
				p.Scopes = append(p.Scopes, scope)
			}
		}
		if n := len(p.Scopes); n > 0 && s.faults.hit(ctx, "consent-missing-scope") {
			p.Scopes = p.Scopes[:n-1]
		}
	}
	p.Secret = s.store.give(s.store.sessions, v, s.params.SessionTTL, s.now())
	s.show(w, http.StatusOK, name, p)
}

// connected is the last page. It says what the address says, and knows nothing.
func (s *Sandbox) connected(w http.ResponseWriter, r *http.Request, b *business) {
	p := s.pageOf(b, "Nothing was allowed")
	switch r.URL.Query().Get("status") {
	case "approved":
		p.Title, p.Approved = "Access allowed", true
	case "denied":
	default:
		s.showError(w, http.StatusBadRequest, b, noPage)
		return
	}
	s.show(w, http.StatusOK, "connected.html", p)
}

// pageForm reads a form that a page of ours posted: if the browser says from which
// origin, it is one of our two. Only scope may come more than once.
func (s *Sandbox) pageForm(w http.ResponseWriter, r *http.Request) (url.Values, bool) {
	for _, origin := range r.Header.Values("Origin") {
		if origin != s.publicURL && origin != s.brandURL {
			s.showError(w, http.StatusForbidden, nil, foreignSite)
			return nil, false
		}
	}
	form, err := readPageForm(w, r)
	if err != nil {
		s.showError(w, http.StatusBadRequest, nil, notOurs)
	}
	return form, err == nil
}

func readPageForm(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	body, err := readBody(w, r)
	if err != nil {
		return nil, err
	}
	return parsePageForm(r.Header.Get("Content-Type"), body)
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

// userName is how pages call a user, and what they sign in with; the id itself if
// nobody has it any more.
func (s *Sandbox) userName(id string) (name, email string) {
	for _, a := range s.accounts {
		if a.id == id {
			return cmp.Or(a.name, a.email), a.email
		}
	}
	return id, ""
}

// spell says a duration in one unit, as people do, rounded up.
func spell(d time.Duration) string {
	for _, unit := range []struct {
		name string
		long time.Duration
	}{{"day", 24 * time.Hour}, {"hour", time.Hour}, {"minute", time.Minute}} {
		if d >= 2*unit.long {
			return strconv.Itoa(int((d+unit.long-1)/unit.long)) + " " + unit.name + "s"
		}
	}
	if n := seconds(d); n != 1 {
		return strconv.Itoa(n) + " seconds"
	}
	return "a second"
}
