package console

import (
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"math"
	"mime"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"github.com/pactsigner/pactsigner/signer"
)

// SessionTTL is how long a session lasts; it is not prolonged.
const SessionTTL = time.Hour

const (
	// secretTimeout bounds how long a page waits for the secret that replicas share.
	secretTimeout = time.Second
	// maxSkew is how far the clocks of two replicas may be apart: more than those of two
	// that sign, of which each is 20 s off the store's at most.
	maxSkew = time.Minute
	// maxForm is the most that a form of ours can be, and maxCookie a cookie.
	maxForm, maxCookie = 16 << 10, 512
	// maxSignedOut is how many sessions that were signed out are remembered.
	maxSignedOut = 4096
)

// sessionError says to who looks why there is no session.
type sessionError string

func (e sessionError) Error() string { return string(e) }

const (
	errNoSession sessionError = "Nobody is signed in."
	errEnded     sessionError = "Your session has ended. Sign in again."
	errForeign   sessionError = "This replica does not take your session: your token was changed or withdrawn, or the session began while custody, by which replicas know each other’s sessions, was away. Sign in again."
)

// session is one sign-in of a token's owner. Its cookie says all of it, and a MAC
// that nobody can make who has only the token's hash, which configurations hold.
type session struct {
	token   string // its name
	expires time.Time
	id      string
	local   bool // only this replica takes it
}

// payload is what the MAC is over: the cookie without it.
func (s session) payload() string {
	return base64.RawURLEncoding.EncodeToString([]byte(s.token)) + "." + strconv.FormatInt(s.expires.Unix(), 10) + "." + s.id
}

// parseCookie reads a cookie, whose MAC it does not check. There is one way to write
// each session.
func parseCookie(value string) (s session, mac []byte, ok bool) {
	parts := strings.Split(value, ".")
	if len(value) > maxCookie || len(parts) != 4 {
		return session{}, nil, false
	}
	name, err1 := base64.RawURLEncoding.Strict().DecodeString(parts[0])
	expires, err2 := strconv.ParseInt(parts[1], 10, 64)
	mac, err3 := base64.RawURLEncoding.Strict().DecodeString(parts[3])
	s = session{token: string(name), expires: time.Unix(expires, 0), id: parts[2]}
	if errors.Join(err1, err2, err3) != nil || s.token == "" || s.id == "" || len(mac) != sha256.Size ||
		s.payload() != value[:len(value)-len(parts[3])-1] {
		return session{}, nil, false
	}
	return s, mac, true
}

// sessions makes and finds sessions. It keeps only those that were signed out here.
type sessions struct {
	cookie string // its name: cookies know no ports, so it names the deployment
	now    func() time.Time
	secret func(context.Context) ([]byte, error)
	own    []byte // instead of the secret

	mu        sync.Mutex
	shared    []byte               // the secret once it is known
	signedOut map[string]time.Time // ids, until they expire
}

func newSessions(cfg Config) *sessions {
	h := sha256.New()
	for _, i := range cfg.Issuers {
		h.Write([]byte(i.URL + "\n"))
	}
	s := &sessions{
		cookie: "pact-operator-" + base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:6]),
		now:    cfg.Now, secret: cfg.Secret, own: make([]byte, 32), signedOut: map[string]time.Time{},
	}
	_, _ = rand.Read(s.own) // never fails
	return s
}

// name is the cookie's; with TLS browsers hold it to that and to this host.
func (s *sessions) name(r *http.Request) string {
	if r.TLS != nil {
		return "__Host-" + s.cookie
	}
	return s.cookie
}

// sharedSecret is the secret of all replicas, nil if it is not known.
func (s *sessions) sharedSecret(ctx context.Context) []byte {
	s.mu.Lock()
	shared := s.shared
	s.mu.Unlock()
	if shared != nil || s.secret == nil {
		return shared
	}
	ctx, cancel := context.WithTimeout(ctx, secretTimeout)
	defer cancel()
	shared, err := s.secret(ctx)
	if err != nil || len(shared) < 32 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shared = shared
	return shared
}

// macOf authenticates a session of the owner of t: it ends when t has another hash.
func macOf(secret []byte, t signer.AdminToken, s session) []byte {
	key, err := hkdf.Key(sha256.New, secret, t.Hash[:], "pact signer, session of the operator's page", sha256.Size)
	if err != nil {
		panic("console: " + err.Error()) // only for a key that is too long
	}
	m := hmac.New(sha256.New, key)
	m.Write([]byte(s.payload()))
	return m.Sum(nil)
}

// begin makes a session and its cookie.
func (s *sessions) begin(r *http.Request, t signer.AdminToken) *http.Cookie {
	secret := s.sharedSecret(r.Context())
	if secret == nil {
		secret = s.own
	}
	made := session{token: t.Name, expires: s.now().Add(SessionTTL), id: rand.Text()}
	return s.bake(r, made.payload()+"."+base64.RawURLEncoding.EncodeToString(macOf(secret, t, made)))
}

// bake is the cookie of a value. The browser forgets it when it is closed; when the
// session ends is for the server to say.
func (s *sessions) bake(r *http.Request, value string) *http.Cookie {
	return &http.Cookie{
		Name: s.name(r), Value: value, Path: "/", HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
	}
}

// forget has the browser throw the cookie away.
func forget(w http.ResponseWriter, r *http.Request, name string) {
	http.SetCookie(w, &http.Cookie{Name: name, Path: "/", MaxAge: -1, HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode})
}

// find finds who is signed in. Its errors are for who looks: errNoSession, errEnded or
// errForeign.
func (s *sessions) find(r *http.Request, admin Admin) (session, signer.AdminToken, error) {
	c, err := r.Cookie(s.name(r))
	if err != nil {
		return session{}, signer.AdminToken{}, errNoSession
	}
	found, mac, ok := parseCookie(c.Value)
	if !ok {
		return session{}, signer.AdminToken{}, errForeign
	}
	t, known := admin.Token(found.token)
	if !known || t.Role < signer.RoleViewer {
		return session{}, signer.AdminToken{}, errForeign
	}
	shared := s.sharedSecret(r.Context())
	switch {
	case shared != nil && hmac.Equal(mac, macOf(shared, t, found)):
	case hmac.Equal(mac, macOf(s.own, t, found)):
		found.local = true
	default:
		return session{}, signer.AdminToken{}, errForeign
	}
	now := s.now()
	s.mu.Lock()
	_, out := s.signedOut[found.id]
	s.mu.Unlock()
	if left := found.expires.Sub(now); out || left <= 0 || left > SessionTTL+maxSkew {
		return session{}, signer.AdminToken{}, errEnded
	}
	return found, t, nil
}

// end ends a session here, also for who has a copy of its cookie. Other replicas take
// such a copy until the session's own end.
func (s *sessions) end(found session) {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, expires := range s.signedOut {
		if len(s.signedOut) >= maxSignedOut || !expires.After(now) {
			delete(s.signedOut, id)
		}
	}
	s.signedOut[found.id] = found.expires
}

// refuseToken answers a wrong token, and bounds what that writes into the log. A right
// one is never refused for the wrong ones of an address: operators share addresses.
func (c *Console) refuseToken(w http.ResponseWriter, r *http.Request, complete bool) {
	address, now := addressOf(r), c.cfg.Now()
	if wait := c.failures.wait(address, now); wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(seconds(wait)))
		c.showSignIn(w, http.StatusTooManyRequests, complete, "Too many tokens from your address were refused, as is this one. Wait "+span(wait)+", then try another.")
		return
	}
	c.failures.fail(address, now)
	c.cfg.Log.WarnContext(r.Context(), "operator's page: a token was refused", "address", address)
	c.showSignIn(w, http.StatusUnauthorized, complete, wrongToken(complete))
}

func wrongToken(complete bool) string {
	if !complete {
		return "This token is not accepted now."
	}
	return "This token is not accepted. Nobody is told whether it was withdrawn, mistyped or never one."
}

func (c *Console) signIn(w http.ResponseWriter, r *http.Request) {
	admin, complete := c.cfg.Admin()
	if admin == nil {
		c.showUnknownTokens(w)
		return
	}
	token, err := readForm(w, r)
	if err != nil {
		c.refuse(w, http.StatusBadRequest, "This form could not be read: "+err.Error()+".")
		return
	}
	t, ok := admin.Bearer([]string{"Bearer " + token})
	if !ok || t.Role < signer.RoleViewer {
		c.refuseToken(w, r, complete)
		return
	}
	c.cfg.Log.InfoContext(r.Context(), "operator's page: signed in", "token", t.Name, "address", addressOf(r))
	http.SetCookie(w, c.sessions.begin(r, t))
	c.toPage(w, r)
}

func (c *Console) signOut(w http.ResponseWriter, r *http.Request) {
	if admin, _ := c.cfg.Admin(); admin != nil {
		if s, _, err := c.sessions.find(r, admin); err == nil {
			c.sessions.end(s)
			c.cfg.Log.InfoContext(r.Context(), "operator's page: signed out", "token", s.token)
		}
	}
	forget(w, r, c.sessions.name(r))
	c.toPage(w, r)
}

// readForm reads the token from the sign-in's form.
func readForm(w http.ResponseWriter, r *http.Request) (string, error) {
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/x-www-form-urlencoded" {
		return "", errors.New("it must be application/x-www-form-urlencoded")
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	body := new(strings.Builder)
	buffer := make([]byte, 4096)
	for {
		n, err := r.Body.Read(buffer)
		body.Write(buffer[:n])
		if err != nil {
			var large *http.MaxBytesError
			if errors.As(err, &large) {
				return "", errors.New("it is too large")
			}
			break
		}
	}
	return parseForm(body.String())
}

// parseForm takes exactly the field of the sign-in. Spaces around the token are from
// copying.
func parseForm(body string) (token string, err error) {
	form, err := url.ParseQuery(body)
	if err != nil {
		return "", errors.New("it is not encoded as a form")
	}
	for name, values := range form {
		if name != "token" && name != "username" || len(values) != 1 {
			return "", errors.New("it must have the field token, once")
		}
	}
	if token = strings.TrimSpace(form.Get("token")); token == "" {
		return "", errors.New("token is required")
	}
	return token, nil
}

// Of each address this many tokens may be refused at once, and one more each while.
const (
	maxFailures   = 10
	failureEvery  = 2 * time.Second
	maxRemembered = 16384
)

// limiter counts refused tokens by address.
type limiter struct {
	buckets *lru.Cache[netip.Addr, *rate.Limiter]
}

func newLimiter() *limiter {
	buckets, err := lru.New[netip.Addr, *rate.Limiter](maxRemembered)
	if err != nil {
		panic("console: " + err.Error()) // the size is positive
	}
	return &limiter{buckets}
}

// wait is how long an address must wait before it is told of another that was refused.
func (l *limiter) wait(a netip.Addr, now time.Time) time.Duration {
	b, ok := l.buckets.Get(a)
	if !ok {
		return 0
	}
	missing := 1 - b.TokensAt(now)
	return time.Duration(math.Ceil(max(0, missing) * float64(failureEvery)))
}

// fail notes that a token of an address was refused.
func (l *limiter) fail(a netip.Addr, now time.Time) {
	b := rate.NewLimiter(rate.Every(failureEvery), maxFailures)
	if old, ok, _ := l.buckets.PeekOrAdd(a, b); ok {
		b = old
	}
	b.AllowN(now, 1)
}

// addressOf is the peer's; IPv6 counts by /64, which one subscriber has to itself.
func addressOf(r *http.Request) netip.Addr {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	a := ap.Addr().Unmap().WithZone("")
	if p, err := a.Prefix(64); err == nil && a.Is6() {
		return p.Addr()
	}
	return a
}
