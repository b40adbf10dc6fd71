package sandbox

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// OwnerPath is where the owner lists and revokes grants: at the Provider if its origin
// is http on loopback, else on a listener of its own, see Config.OwnerListen. It
// answers whoever is on this machine and knows the owner's password; to all others
// there is nothing there.
const OwnerPath = "/owner"

const (
	ownerSessionTTL = time.Hour
	ownerPageSize   = 25
)

// owner is the owner's page: who is logged in on it, and its routes.
type owner struct {
	sandbox  *Sandbox
	password *passwordHash
	cookie   string // its name; cookies know no ports, so it names the sandbox
	failures *limiter
	crossing *http.CrossOriginProtection
	mux      *http.ServeMux

	mu       sync.Mutex
	sessions map[string]ownerSession // by hash of the cookie
}

// ownerSession ends with the process too.
type ownerSession struct {
	token   string // what forms must hold
	expires time.Time
}

func newOwner(s *Sandbox) *owner {
	o := &owner{
		sandbox:  s,
		password: &s.ownerPassword,
		cookie:   "owner-" + hashOf(s.publicURL)[:12],
		failures: newLimiter(s.params.LoginLimit),
		crossing: http.NewCrossOriginProtection(),
		mux:      http.NewServeMux(),
		sessions: map[string]ownerSession{},
	}
	o.mux.HandleFunc("GET "+OwnerPath+"/login", o.showLogin)
	o.mux.HandleFunc("POST "+OwnerPath+"/login", o.login)
	o.mux.HandleFunc("POST "+OwnerPath+"/logout", o.loggedIn(o.logout))
	o.mux.HandleFunc("GET "+OwnerPath, o.loggedIn(o.list))
	o.mux.HandleFunc("GET "+OwnerPath+"/grants/{id}", o.loggedIn(o.one))
	o.mux.HandleFunc("GET "+OwnerPath+"/grants/{id}/revoke", o.loggedIn(o.confirm))
	o.mux.HandleFunc("POST "+OwnerPath+"/grants/{id}/revoke", o.loggedIn(o.revoke))
	o.mux.HandleFunc(OwnerPath+"/", o.loggedIn(func(w http.ResponseWriter, _ *http.Request, as ownerSession) {
		o.problem(w, http.StatusNotFound, as, noOwnerPage)
	}))
	return o
}

// isOwnerPath: the path is of the owner's pages.
func isOwnerPath(path string) bool {
	return path == OwnerPath || strings.HasPrefix(path, OwnerPath+"/")
}

// serveOwnerSite is the owner's own listener.
func (s *Sandbox) serveOwnerSite(w http.ResponseWriter, r *http.Request) {
	closeUnread(w.Header(), r)
	if !isOwnerPath(r.URL.EscapedPath()) {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	s.owner.ServeHTTP(w, r)
}

// ServeHTTP answers only a browser on this machine that came here directly. The
// Host keeps out websites whose name was made to resolve to this machine, and the
// version and headers of what a proxy brings in from outside.
func (o *owner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !fromThisMachine(r) {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if err := o.sameOrigin(r); err != nil {
		o.sandbox.log.Info("owner's form refused", "reason", err)
		o.problem(w, http.StatusForbidden, ownerSession{}, foreignOwnerForm)
		return
	}
	o.mux.ServeHTTP(w, r)
}

func fromThisMachine(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !peer.Addr().Unmap().IsLoopback() || !isLoopbackHost(r.Host) || !r.ProtoAtLeast(1, 1) {
		return false
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Forwarded") || slices.Contains([]string{"Forwarded", "Via", "X-Real-Ip"}, name) {
			return false
		}
	}
	return true
}

// isLoopbackHost tells of a Host header whether it names this machine only.
func isLoopbackHost(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	return loopbackHost(strings.ToLower(host))
}

// sameOrigin refuses a post that a page of another origin sent. Another port of this
// machine is another origin, though the same site to a SameSite cookie.
func (o *owner) sameOrigin(r *http.Request) error {
	if err := o.crossing.Check(r); err != nil {
		return err
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return nil
	}
	for _, origin := range r.Header.Values("Origin") {
		if origin != "http://"+r.Host && origin != "https://"+r.Host {
			return errors.New("its Origin is not this page's")
		}
	}
	return nil
}

// grantView puts a grant into the business's words.
func (o *owner) grantView(ctx context.Context, g grant) (grantView, error) {
	s := o.sandbox
	v := grantView{
		brand: g.brand, ID: g.id, Href: OwnerPath + "/grants/" + url.PathEscape(g.id), Anchor: "of-" + g.id,
		Business: g.brand, Issuer: g.issuer, Subject: g.subject, User: g.user,
		Permissions: o.words(g.brand, g.scopes),
		State:       "Active", StateClass: "active", Active: true, EndWord: "Until",
		Since: momentOf(g.made, ""), End: momentOf(g.expires, ""), LastUsed: momentOf(g.lastUsed, "never"),
	}
	if b := s.business(g.brand); b != nil {
		v.Business = b.Name
	}
	v.Initials, v.Hue = initialsOf(v.Business), s.hueOf(g.brand)
	if name, _ := s.userName(g.user); name != g.user {
		v.User = name + " (" + g.user + ")"
	}
	if !s.hasAccount(g.user) {
		v.User = g.user + " (no longer an account)"
	}
	known, _, err := s.store.platform(ctx, g.issuer)
	if err != nil {
		return v, err
	}
	v.IssuerName = known.Name
	if !g.revoked.IsZero() {
		v.State, v.StateClass, v.Active, v.EndWord = "Revoked", "revoked", false, "Revoked"
		v.End = momentOf(g.revoked, "")
	}
	return v, nil
}

// words are the business's for scopes; one that it no longer has stands alone.
func (o *owner) words(brand string, scopes []string) []Scope {
	b, words := o.sandbox.business(brand), make([]Scope, 0, len(scopes))
	for _, id := range scopes {
		scope := Scope{ID: id}
		if b != nil {
			if i := slices.IndexFunc(b.Scopes, func(s Scope) bool { return s.ID == id }); i >= 0 {
				scope = b.Scopes[i]
			}
		}
		words = append(words, scope)
	}
	return words
}

var (
	allGrants = &link{OwnerPath, "All grants"}

	noOwnerPage = trouble{title: "There is no such page", again: allGrants,
		problem: "Nothing is at this address.",
		advice:  "Go back to the list of grants."}
	noGrant = trouble{title: "There is no such grant", again: allGrants,
		problem: "No grant has this id: it has ended, or was of a run whose state was not kept.",
		advice:  "Go back to the list of grants."}
	foreignOwnerForm = trouble{title: "This was stopped", again: &link{OwnerPath, "To the owner’s page"},
		problem: "This form was sent from another website. Nothing was changed by it.",
		advice:  "Use the owner’s page itself."}
	staleOwnerForm = trouble{title: "This page is too old", again: allGrants,
		problem: "This form is of an earlier login, or is not complete. Nothing was changed by it.",
		advice:  "Open the page again and repeat what you did."}
	ownerFailed = trouble{title: "Something went wrong here", again: allGrants,
		problem: "The sandbox could not read or change its state just now. Its log says why.",
		advice:  "Look at what is on the list before you try again."}
)

// page is one of the owner's.
func (v ownerView) page(title string) page {
	return page{Title: title, Brand: "Owner’s page", Initials: "O", Owner: &v}
}

func (o *owner) problem(w http.ResponseWriter, status int, as ownerSession, t trouble) {
	p := ownerView{Token: as.token}.page(t.title)
	p.Problem, p.Advice, p.Again = t.problem, t.advice, t.again
	o.sandbox.show(w, status, "error.html", p)
}

func (o *owner) failure(w http.ResponseWriter, as ownerSession, err error) {
	o.sandbox.log.Error("owner's page failed", "error", err)
	o.problem(w, http.StatusInternalServerError, as, ownerFailed)
}

func seeOther(w http.ResponseWriter, to string) {
	w.Header().Set("Location", to)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusSeeOther)
}

// session finds who is logged in by the cookie.
func (o *owner) session(r *http.Request) (hash string, as ownerSession, ok bool) {
	c, err := r.Cookie(o.cookie)
	if err != nil {
		return "", ownerSession{}, false
	}
	hash = hashOf(c.Value)
	o.mu.Lock()
	defer o.mu.Unlock()
	as, ok = o.sessions[hash]
	return hash, as, ok && o.sandbox.now().Before(as.expires)
}

// loggedIn sends who is not to the login. A post must hold the session's token.
func (o *owner) loggedIn(then func(http.ResponseWriter, *http.Request, ownerSession)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, as, ok := o.session(r)
		if !ok {
			seeOther(w, OwnerPath+"/login")
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			form, err := readPageForm(w, r)
			if err != nil || subtle.ConstantTimeCompare([]byte(form.Get("token")), []byte(as.token)) != 1 {
				o.problem(w, http.StatusForbidden, as, staleOwnerForm)
				return
			}
		}
		then(w, r, as)
	}
}

func (o *owner) showLogin(w http.ResponseWriter, r *http.Request) {
	if _, _, ok := o.session(r); ok {
		seeOther(w, OwnerPath)
		return
	}
	o.sandbox.show(w, http.StatusOK, "owner_login.html", ownerView{}.page("Log in"))
}

func (o *owner) login(w http.ResponseWriter, r *http.Request) {
	again := ownerView{}.page("Log in")
	form, err := readPageForm(w, r)
	if err != nil {
		again.Problem = "This form could not be read. Try again."
		o.sandbox.show(w, http.StatusBadRequest, "owner_login.html", again)
		return
	}
	now := o.sandbox.now()
	// All come from this machine, so there is one limit. It holds for the right password
	// too: a guesser would else not be limited.
	wait, back := o.failures.take("owner", now)
	if wait > 0 {
		w.Header().Set("Retry-After", retryAfter(wait))
		again.State = "Too many attempts"
		again.Problem = "Too many attempts. Wait " + spell(wait) + ", then try again."
		o.sandbox.show(w, http.StatusTooManyRequests, "owner_login.html", again)
		return
	}
	if !o.password.fits(form.Get("password")) {
		o.sandbox.log.Info("owner's login refused", "from", r.RemoteAddr)
		again.State, again.Problem, again.Wrong = "The password is not right", "The password is not right.", true
		o.sandbox.show(w, http.StatusForbidden, "owner_login.html", again)
		return
	}
	back()
	secret := newSecret("")
	o.mu.Lock()
	for hash, old := range o.sessions {
		if !now.Before(old.expires) {
			delete(o.sessions, hash)
		}
	}
	o.sessions[hashOf(secret)] = ownerSession{token: newSecret(""), expires: now.Add(ownerSessionTTL)}
	o.mu.Unlock()
	o.setCookie(w, secret, 0)
	seeOther(w, OwnerPath)
}

// setCookie is for a page that is reached over plain http on this machine, so it
// cannot be Secure.
func (o *owner) setCookie(w http.ResponseWriter, value string, maxAge int) {
	http.SetCookie(w, &http.Cookie{
		Name: o.cookie, Value: value, Path: OwnerPath, MaxAge: maxAge,
		HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
}

func (o *owner) logout(w http.ResponseWriter, r *http.Request, _ ownerSession) {
	hash, _, _ := o.session(r)
	o.mu.Lock()
	delete(o.sessions, hash)
	o.mu.Unlock()
	o.setCookie(w, "", -1)
	seeOther(w, OwnerPath+"/login")
}

// turn cuts a list into pages: which part the request asks for, and the links to
// the ones beside it.
func (v *ownerView) turn(r *http.Request, total int) (from, to int) {
	pages := max(1, (total+ownerPageSize-1)/ownerPageSize)
	at, err := strconv.Atoi(cmp.Or(r.URL.Query().Get("page"), "1"))
	if err != nil {
		at = 1
	}
	at = min(max(at, 1), pages)
	linkTo := func(n int) string { return r.URL.EscapedPath() + "?page=" + strconv.Itoa(n) }
	if at > 1 {
		v.Earlier = linkTo(at - 1)
	}
	if at < pages {
		v.Later = linkTo(at + 1)
	}
	v.Place = fmt.Sprintf("Page %d of %d", at, pages)
	return (at - 1) * ownerPageSize, min(at*ownerPageSize, total)
}

// countOf says how many there are of something.
func countOf(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return strconv.Itoa(n) + " " + of + "s"
}

func (o *owner) list(w http.ResponseWriter, r *http.Request, as ownerSession) {
	grants, err := o.sandbox.store.grantList(r.Context(), o.sandbox.now())
	if err != nil {
		o.failure(w, as, err)
		return
	}
	v, active := ownerView{Token: as.token}, 0
	for _, g := range grants {
		if g.revoked.IsZero() {
			active++
		}
	}
	v.Summary = fmt.Sprintf("%s, newest first; %d active.", countOf(len(grants), "grant"), active)
	from, to := v.turn(r, len(grants))
	for _, g := range grants[from:to] {
		shown, err := o.grantView(r.Context(), g)
		if err != nil {
			o.failure(w, as, err)
			return
		}
		v.Grants = append(v.Grants, shown)
	}
	p := v.page("What users allowed")
	if len(grants) == 0 {
		p.State = "Nothing yet"
	}
	o.sandbox.show(w, http.StatusOK, "owner_grants.html", p)
}

// grant finds the grant that the path names, or answers.
func (o *owner) grant(w http.ResponseWriter, r *http.Request, as ownerSession) (*grantView, bool) {
	grants, err := o.sandbox.store.grantList(r.Context(), o.sandbox.now())
	if err != nil {
		o.failure(w, as, err)
		return nil, false
	}
	i := slices.IndexFunc(grants, func(g grant) bool { return g.id == r.PathValue("id") })
	if i < 0 {
		o.problem(w, http.StatusNotFound, as, noGrant)
		return nil, false
	}
	v, err := o.grantView(r.Context(), grants[i])
	if err != nil {
		o.failure(w, as, err)
		return nil, false
	}
	return &v, true
}

func (o *owner) one(w http.ResponseWriter, r *http.Request, as ownerSession) {
	g, ok := o.grant(w, r, as)
	if !ok {
		return
	}
	receipts, err := o.sandbox.store.grantReceipts(r.Context(), g.ID)
	if err != nil {
		o.failure(w, as, err)
		return
	}
	v := ownerView{Token: as.token, Back: true, Grant: g, Summary: countOf(len(receipts), "receipt") + ", newest first."}
	if r.URL.Query().Has("revoked") && !g.Active {
		v.Notice = "Revoked. Its tokens no longer work."
	}
	slices.SortStableFunc(receipts, func(a, b receiptRow) int { return b.at.Compare(a.at) })
	from, to := v.turn(r, len(receipts))
	v.First = len(receipts) - from
	for _, row := range receipts[from:to] {
		v.Receipts = append(v.Receipts, receiptView{
			At: momentOf(row.at, ""), Tools: row.tools, Used: o.words(g.brand, row.scopesUsed),
			ContextID: row.contextID, MessageID: row.messageID, JWS: row.jws,
		})
	}
	p := v.page("Grant at " + g.Business)
	p.State = g.State
	o.sandbox.show(w, http.StatusOK, "owner_grant.html", p)
}

// confirm asks before anything is revoked.
func (o *owner) confirm(w http.ResponseWriter, r *http.Request, as ownerSession) {
	g, ok := o.grant(w, r, as)
	switch {
	case !ok:
	case !g.Active:
		seeOther(w, g.Href)
	default:
		o.sandbox.show(w, http.StatusOK, "owner_revoke.html", ownerView{Token: as.token, Back: true, Grant: g}.page("Revoke this grant?"))
	}
}

func (o *owner) revoke(w http.ResponseWriter, r *http.Request, as ownerSession) {
	g, ok := o.grant(w, r, as)
	if !ok {
		return
	}
	done, err := o.sandbox.store.revoke(r.Context(), g.ID, o.sandbox.now())
	if err != nil {
		o.failure(w, as, err)
		return
	}
	if done {
		o.sandbox.log.Info("grant revoked by the owner", "grant", g.ID)
	}
	seeOther(w, g.Href+"?revoked")
}
