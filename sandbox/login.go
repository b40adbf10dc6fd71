package sandbox

import (
	"cmp"
	"net/http"
	"net/url"
	"strings"
)

const loginPath = "/login"

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
	user, wait := s.signIn(again.Email, form.Get("password"), r.RemoteAddr)
	if known := s.account(again.Email); user == nil && known != nil && s.faults.hit(r.Context(), "lax-password") {
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
		p.Secret = s.store.give(s.store.assertions, visit{brand: b.ID, user: user.id, userCode: userCode}, s.params.AssertionTTL, s.now())
		s.show(w, http.StatusOK, "signedin.html", p)
	}
}
