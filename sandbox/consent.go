package sandbox

import (
	"context"
	"net/http"
	"net/url"
	"slices"
)

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
		s.answering.Lock()
		v, ok := s.store.take(s.store.assertions, assertion, s.now())
		if !ok {
			v, ok = s.reused(r.Context(), assertion, "assertion-reuse")
		}
		if ok = ok && v.brand == b.ID; ok {
			s.spent.Add(hashOf(assertion), spent{visit: v})
		}
		s.answering.Unlock()
		if !ok {
			s.showSpent(w, b, assertion)
			return
		}
		s.askConsent(r.Context(), w, b, v)
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
		v.typed = true
		v.userCode = parseUserCode(form.Get("user_code"))
		s.askConsent(ctx, w, b, v)
	case refused != nil:
		s.showError(w, refused.status, b, refused.trouble)
	default:
		seeOther(w, b.connectedURL(decision))
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
		if !containsAll(auth.scopes, ticked) && !s.faults.hit(ctx, "lax-consent") {
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

// askConsent shows the consent page, or the one that asks for the code.
func (s *Sandbox) askConsent(ctx context.Context, w http.ResponseWriter, b *business, v visit) {
	if v.userCode == "" {
		problem := ""
		if v.typed {
			problem = "This is not a code: a code has eight letters."
		}
		s.askCode(w, b, v, problem)
		return
	}
	auth, waits, err := s.store.undecided(ctx, b.ID, v.userCode, s.now())
	if err != nil {
		s.showFailure(w, b, err)
		return
	}
	if !waits {
		s.showAnswered(ctx, w, b, v)
		return
	}
	known, _, err := s.store.platform(ctx, auth.party.issuer)
	if err != nil {
		s.showFailure(w, b, err)
		return
	}
	p := s.visitPage(b, v, "Allow access?")
	p.Asker, p.AskerName, p.UserCode, p.NotShared = auth.party.issuer, known.Name, auth.userCode, b.NotShared
	p.Lasts = spell(s.params.GrantTTL)
	for _, scope := range b.Scopes {
		if slices.Contains(auth.scopes, scope.ID) {
			p.Scopes = append(p.Scopes, scope)
		}
	}
	if n := len(p.Scopes); n > 0 && s.faults.hit(ctx, "consent-missing-scope") {
		p.Scopes = p.Scopes[:n-1]
	}
	s.show(w, http.StatusOK, "consent.html", p)
}

// visitPage is a page that posts a new session of the visit to the consent address.
func (s *Sandbox) visitPage(b *business, v visit, title string) page {
	p := s.pageOf(b, title)
	p.Action = b.consentURL()
	p.User, p.Email = s.userName(v.user)
	p.Again = &link{Href: s.signInLink(b, v.userCode)}
	p.Secret = s.store.give(s.store.sessions, v, s.params.SessionTTL, s.now())
	return p
}

// showAnswered is for a code that nothing waits for. Consent behind a step-up's link
// answers a request that has a code of its own too: for who gave it, that is all well.
func (s *Sandbox) showAnswered(ctx context.Context, w http.ResponseWriter, b *business, v visit) {
	allowed, err := s.store.approved(ctx, b.ID, v.userCode, v.user, s.now())
	switch {
	case err != nil:
		s.showFailure(w, b, err)
	case allowed:
		seeOther(w, b.connectedURL("approved"))
	case v.typed:
		s.askCode(w, b, v, "Nothing waits for this code. Check it, then try again.")
	default:
		s.showError(w, http.StatusGone, b, noAsker)
	}
}

// codeTries is how many wrong codes may be typed after one login.
const codeTries = 5

// askCode shows the page that asks for the code, with what was wrong with the last one.
func (s *Sandbox) askCode(w http.ResponseWriter, b *business, v visit, problem string) {
	v.userCode, v.typed = "", false
	if problem != "" {
		v.wrongCodes++
	}
	if v.wrongCodes >= codeTries {
		s.showError(w, http.StatusGone, b, wrongCodes)
		return
	}
	p := s.visitPage(b, v, "Enter your code")
	p.State, p.Problem = problem, problem
	s.show(w, http.StatusOK, "code.html", p)
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
