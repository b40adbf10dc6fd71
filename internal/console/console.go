// Package console is the operator's page: one page, read-only, that says how a fleet
// of signers is, for who is woken up and has a browser. It is served on the admin
// listener, at [Path].
//
// What it shows is what the admin service tells a viewer, read when the page is
// asked for. What could not be read is shown as unknown, never as fine.
//
// Who looks signs in with an admin token, once, and gets a session that lasts
// [SessionTTL], ends when the token does, and can do nothing but look; or sends the
// token as "Authorization: Bearer" with each request. Nothing on the page is a
// script, and nothing is loaded from elsewhere.
package console

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// Where the page is, and where its forms go. All else on the listener is not ours.
const (
	Path        = "/"
	signInPath  = "/sign-in"
	signOutPath = "/sign-out"
)

// Serves tells whether a request's path is one of ours.
func Serves(path string) bool { return path == Path || path == signInPath || path == signOutPath }

// Admin is the admin service in this process. *signer.Admin implements it.
type Admin interface {
	// Bearer finds whose token an Authorization header holds, given its values.
	Bearer(authorization []string) (signer.AdminToken, bool)
	// Token finds a token by its name.
	Token(name string) (signer.AdminToken, bool)
	// As is the service for the owner of a token.
	As(t signer.AdminToken) signerv1.AdminServiceClient
}

// Issuer is what the page knows of an issuer's schedule beside its keys.
type Issuer struct {
	URL string
	// Period is how long a key signs before the next one takes over by itself; 0 is
	// until somebody rotates. Lead is how long a key is published before it signs.
	Period, Lead time.Duration
}

// Config configures the page. Admin is required.
type Config struct {
	// Admin returns the service, nil while no admin token is known, and whether all
	// of them are known.
	Admin func() (admin Admin, complete bool)
	// Secret is the same on every replica and known to nobody else, so that a session
	// is one at all of them. It is asked until it answers once. Nil, and while it
	// fails: a session is one at this replica alone.
	Secret func(ctx context.Context) ([]byte, error)
	// Issuers are the deployment's issuers.
	Issuers []Issuer
	// Replica names this replica, Version what it runs.
	Replica, Version string
	// Now is this replica's clock. Default: time.Now.
	Now func() time.Time
	// Log gets who signed in, and causes of failures. Default: slog.Default.
	Log *slog.Logger
}

// Console serves the page. Safe for concurrent use.
type Console struct {
	cfg      Config
	sessions *sessions
	failures *limiter
	crossing *http.CrossOriginProtection
	mux      *http.ServeMux
	tail     auditTail
}

// New returns the page.
func New(cfg Config) (*Console, error) {
	if cfg.Admin == nil {
		return nil, errors.New("console: Admin is required")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	c := &Console{
		cfg: cfg, sessions: newSessions(cfg), failures: newLimiter(),
		crossing: http.NewCrossOriginProtection(), mux: http.NewServeMux(),
	}
	c.mux.HandleFunc("GET "+Path+"{$}", c.look)
	c.mux.HandleFunc("GET "+signInPath, c.toPage) // who reloads after a sign-in that was refused
	c.mux.HandleFunc("GET "+signOutPath, c.toPage)
	c.mux.HandleFunc("POST "+signInPath, c.signIn)
	c.mux.HandleFunc("POST "+signOutPath, c.signOut)
	return c, nil
}

// ServeHTTP implements [http.Handler], for the paths of [Serves].
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	harden(w.Header())
	if err := c.crossing.Check(r); err != nil {
		c.cfg.Log.DebugContext(r.Context(), "operator's page: a form from elsewhere is refused", "reason", err) // any website can send one
		c.refuse(w, http.StatusForbidden, "This form was sent from another website. Nothing was done.")
		return
	}
	c.mux.ServeHTTP(w, r)
}

func (c *Console) toPage(w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, Path, http.StatusSeeOther)
}

// look shows the page to who may see it, and the sign-in to all others.
func (c *Console) look(w http.ResponseWriter, r *http.Request) {
	admin, complete := c.cfg.Admin()
	if admin == nil {
		c.showUnknownTokens(w)
		return
	}
	if authorization := r.Header.Values("Authorization"); len(authorization) > 0 {
		c.lookWithToken(w, r, admin, complete, authorization)
		return
	}
	s, t, err := c.sessions.find(r, admin)
	switch {
	case errors.Is(err, errNoSession):
		c.showSignIn(w, http.StatusOK, complete, "")
	case err != nil:
		forget(w, r, c.sessions.name(r))
		c.showSignIn(w, http.StatusOK, complete, err.Error())
	default:
		c.showFleet(w, r, admin, t, &s)
	}
}

// lookWithToken is for callers that are no browser.
func (c *Console) lookWithToken(w http.ResponseWriter, r *http.Request, admin Admin, complete bool, authorization []string) {
	t, ok := admin.Bearer(authorization)
	if !ok {
		w.Header().Set("WWW-Authenticate", `Bearer realm="admin"`)
		c.refuseToken(w, r, complete)
		return
	}
	c.showFleet(w, r, admin, t, nil)
}

// showFleet reads what there is to show, and shows it. Whoever looks does no more
// than that, whatever the token's role.
func (c *Console) showFleet(w http.ResponseWriter, r *http.Request, admin Admin, t signer.AdminToken, s *session) {
	viewer := t
	viewer.Role = signer.RoleViewer
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	view := c.view(c.read(ctx, admin.As(viewer)))
	view.Token, view.Role = t.Name, t.Role.String()
	if s != nil {
		view.Session = &sessionView{Until: view.moment(s.expires), Local: s.local}
	}
	p := page{Title: view.Headline, Level: view.Level, Fleet: view, Refresh: refreshEvery}
	if r.URL.Query().Get("refresh") == "off" {
		p.Refresh = 0
	}
	c.show(w, http.StatusOK, "fleet.html", p)
}

// refreshEvery is how many seconds the page stands before it is read again.
const refreshEvery = 10

const (
	whyUnknownTokens = "The first admin token is not known yet: custody, which has its hash, cannot be reached, or “signer init” was not run. /readyz on the ops listener and the signer’s log say which."
	onlyConfigured   = whyUnknownTokens + " Until then only tokens that the configuration names are accepted."
)

func (c *Console) showUnknownTokens(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "2")
	c.show(w, http.StatusServiceUnavailable, "notice.html", page{
		Title: "Nobody can sign in yet", Level: "unknown", Problem: whyUnknownTokens, Refresh: refreshEvery,
		Advice: "This says nothing about the fleet: it may be well or not. This page asks again by itself.",
	})
}

func (c *Console) showSignIn(w http.ResponseWriter, status int, complete bool, problem string) {
	p := page{Title: "Sign in", Problem: problem, Wrong: status == http.StatusUnauthorized}
	if !complete {
		p.Advice = onlyConfigured
	}
	c.show(w, status, "signin.html", p)
}

// refuse answers what is no sign-in and no look.
func (c *Console) refuse(w http.ResponseWriter, status int, problem string) {
	c.show(w, status, "notice.html", page{Title: "This was refused", Problem: problem, Again: true})
}

//go:embed pages
var files embed.FS

var (
	style, styleHash = readStyle()
	templates        = template.Must(template.New("").Funcs(template.FuncMap{"visible": visible}).ParseFS(files, "pages/*.html"))
)

// readStyle returns the stylesheet and the CSP source that allows it inline.
func readStyle() (template.CSS, string) {
	css, err := files.ReadFile("pages/style.css")
	if err != nil {
		panic(err) // embedded at build
	}
	sum := sha256.Sum256(css)
	return template.CSS(css), "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// page is what the templates are given.
type page struct {
	Style   template.CSS
	Title   string
	Level   string // calm, info, warn, stop or unknown; "" where nothing is told of the fleet
	Refresh int    // seconds; 0 stands still
	Problem string
	Wrong   bool // the problem is with what was typed
	Advice  string
	Again   bool // with a link to the page
	Fleet   *fleetView
}

// harden sets what holds for every answer: kept nowhere, framed nowhere, nothing
// loaded, nothing posted elsewhere.
func harden(h http.Header) {
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src "+styleHash+"; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin") // with no-referrer a form's Origin would be null
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

func (c *Console) show(w http.ResponseWriter, status int, name string, p page) {
	p.Style = style
	var body bytes.Buffer
	if err := templates.ExecuteTemplate(&body, name, p); err != nil {
		c.cfg.Log.Error("operator's page failed", "page", name, "err", err)
		http.Error(w, "the page failed; the signer's log says how", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes()) // a client that has left is not our error
}
