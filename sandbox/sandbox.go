// Package sandbox is a complete PACT 1.0 business in one process: a Provider
// with its brands' agents, their login and consent pages, and a brand's own
// domain. It is for trying personal agents, signers and Providers' clients
// against, offline.
//
// [New] makes one of a [Config], which [LoadConfig] reads from a file; the zero Config is a sandbox on free loopback
// ports with two brands: [Larkline], an airline with delegation, and [Marrow], a
// bookshop that knows callers by identity only. [Sandbox.Start] serves it;
// [Sandbox.Ready] says where it is and how to sign in. Package person plays the user on
// the pages.
//
// It behaves as the protocol says and strictly so: what a Provider must refuse is
// refused. [Sandbox.SetFaults] breaks that on demand, to see what an agent does
// then; [Sandbox.Executed] tells what the brands really did. Its state is in memory
// and ends with it, or in the file of Config.State and goes on at the next start. It
// is not meant to be reachable from a network that is not trusted: by default every
// issuer on this machine may call.
package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/hashicorp/golang-lru/v2"

	"github.com/pactsigner/pactsigner/jwks"
	"github.com/pactsigner/pactsigner/sandbox/person"
)

// Config is what a sandbox is made of. The zero value works.
type Config struct {
	// Listen and BrandListen are the host:port of the Provider and of the brands'
	// own domain; "127.0.0.1:0" if empty.
	Listen, BrandListen string
	// PublicURL and BrandURL are the origins under which others reach the two;
	// "http://" and the listener's address if empty. Agents must be willing to use
	// them: https and a public host, or loopback.
	PublicURL, BrandURL string
	// Audience is what PA-JWTs for this Provider must have as aud; PublicURL +
	// "/a2a" if empty. It must not be an interface URL.
	Audience string
	// Brands at this Provider. The brands' own domain is the first one's.
	// Larkline and Marrow if empty.
	Brands []Brand
	// OneOrigin has the Provider serve the login too: there is no own domain of the
	// brands, and BrandListen and BrandURL must be empty.
	OneOrigin bool
	// Accounts are the users that can sign in. If empty there are two, with passwords
	// drawn at random.
	Accounts []Account
	// Issuers says which issuers may call. If nil, those on this machine may, and
	// others once they registered.
	Issuers *Issuers
	// Params; Defaults() if zero.
	Params Params
	// Now is the clock; time.Now if nil.
	Now func() time.Time
	// Log gets why callers were refused, and failures. Nothing if nil.
	Log *slog.Logger

	// State is the SQLite file that keeps conversations, grants, receipts, registered
	// issuers and the brands' keys, so that they survive a restart; in memory if empty.
	// It is made with mode 0600, and one sandbox at a time uses it. What was issued
	// names PublicURL: give the same one, or the same Listen, at the next start.
	State string
	// OwnerListen is the host:port, on loopback, of the owner's page. If it is empty
	// the Provider serves the page where PublicURL is http on loopback; anywhere else,
	// where a proxy or a tunnel may bring the Provider's callers, the page gets a free
	// port of 127.0.0.1, and the Provider has none.
	OwnerListen string
	// OwnerPassword opens the owner's page; drawn at random if empty.
	OwnerPassword string
	// FaultHeader has the header X-Sandbox-Fault of a request name faults for that
	// request, see [FaultHeader]. Whoever can send one can then switch rules off.
	FaultHeader bool
	// Faults are on from the start, as [Sandbox.SetFaults] takes them.
	Faults []string

	// PasswordMemory is what hashing a password takes, in KiB; 19456 if 0. Who starts
	// many sandboxes, for tests, takes less.
	PasswordMemory uint32
}

// Ready says where a sandbox is and how to use it. Others are the accounts beside
// that of Login.
type Ready struct {
	Provider string         `json:"provider"`
	Audience string         `json:"audience"`
	Brands   []ReadyBrand   `json:"brands"`
	Login    person.Login   `json:"login"`
	Others   []person.Login `json:"others"`
	Owner    OwnerLogin     `json:"owner"`
	Control  Control        `json:"control"`
}

// OwnerLogin is where the owner's page is and the password that opens it. It prints
// without the password, and encodes as JSON with it: the ready line is there to tell
// it.
type OwnerLogin struct {
	URL      string `json:"url"`
	Password string `json:"password"`
}

// String leaves the password out.
func (o OwnerLogin) String() string { return o.URL + " [redacted]" }

// GoString leaves the password out.
func (o OwnerLogin) GoString() string { return o.String() }

// Format leaves the password out, whatever the verb.
func (o OwnerLogin) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(o.String())) }

// LogValue leaves the password out.
func (o OwnerLogin) LogValue() slog.Value { return slog.StringValue(o.String()) }

// ReadyBrand is a brand and the URL of its card: the one on its own domain, which
// redirects, where it has one. Asks are messages that need a permission, Closes one
// that ends a conversation, for who tries the brand out.
type ReadyBrand struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Card   string `json:"card"`
	Asks   []Ask  `json:"asks,omitempty"`
	Closes string `json:"closes,omitempty"`
}

// Sandbox is a Provider and a brand's domain.
type Sandbox struct {
	publicURL, brandURL string
	audience            string
	brands              []*business
	accounts            []*account
	noAccount           *account // what a login under no account is compared with
	announced           []person.Login
	ownerPassword       passwordHash
	ownerLogin          OwnerLogin
	params              Params
	now                 func() time.Time
	log                 *slog.Logger

	registrations *registrations

	store      *store
	identities *identities
	fetcher    *keyFetcher
	faults     faults
	keySets    *lru.Cache[string, []byte] // of issuers, as read last
	executions executions
	spent      *lru.Cache[string, spent] // what became of pages, by hash of their secret
	answering  sync.Locker               // held while a consent is answered
	owner      *owner
	controlKey string // token of whoever may set our faults

	faultHeader bool                            // the requests' own faults count
	timer       func(time.Duration) *time.Timer // of a fault that holds an answer back
	closing     chan struct{}
	closeOnce   sync.Once

	issuerLimit, userLimit, deviceLimit, loginLimit, peerLoginLimit *limiter

	provider, brandSite, ownerSite listening
	started                        sync.WaitGroup
}

// listening is a handler and where it is served; its listener is nil if it is not.
type listening struct {
	listener net.Listener
	server   *http.Server

	mu     sync.Mutex
	unused map[net.Conn]struct{} // connections that no request came on yet
	closed bool                  // and none may any more
}

// follow keeps account of a connection.
func (l *listening) follow(conn net.Conn, state http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(l.unused, conn)
	case l.closed:
		_ = conn.Close()
	default:
		l.unused[conn] = struct{}{}
	}
}

// closeUnused closes the connections that no request came on, which
// [http.Server.Shutdown] would wait for: browsers open some in reserve.
func (l *listening) closeUnused() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for conn := range l.unused {
		_ = conn.Close()
	}
}

// business is a brand as served.
type business struct {
	Brand
	interfaceURL    string
	cardBody        []byte
	key             *asKey                // nil without delegation
	spare           atomic.Pointer[asKey] // of the key- faults
	metadataHandler http.Handler
	keysHandler     http.Handler
}

func (b *business) asIssuer() string { return b.interfaceURL + "/oauth" }
func (b *business) cardURL() string  { return b.interfaceURL + "/.well-known/agent-card.json" }
func (b *business) metadataURL() string {
	return b.asIssuer() + "/.well-known/oauth-authorization-server"
}
func (b *business) jwksURL() string    { return b.asIssuer() + "/jwks.json" }
func (b *business) deviceURL() string  { return b.asIssuer() + "/device_authorization" }
func (b *business) tokenURL() string   { return b.asIssuer() + "/token" }
func (b *business) consentURL() string { return b.asIssuer() + "/consent" }
func (b *business) connectedURL(decision string) string {
	return b.asIssuer() + "/connected?brand=" + b.ID + "&status=" + decision
}

// New makes a sandbox and opens its listeners, so that its URLs are known;
// Close gives them up. An error names the field of the Config.
func New(cfg Config) (_ *Sandbox, err error) {
	s := &Sandbox{
		params: cfg.Params,
		now:    cfg.Now,
		log:    cfg.Log,

		faultHeader: cfg.FaultHeader,
		timer:       time.NewTimer,
		closing:     make(chan struct{}),
	}
	if s.params == (Params{}) {
		s.params = Defaults()
	}
	if err := s.params.Validate(); err != nil {
		return nil, err
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	issuers := cmp.Or(cfg.Issuers, &Issuers{Local: true})
	if err := issuers.validate(); err != nil {
		return nil, fmt.Errorf("sandbox: Issuers: %w", err)
	}
	if err := s.openAccounts(cfg); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = s.Close()
		}
	}()
	if s.publicURL, err = s.provider.open("Listen", cfg.Listen, "PublicURL", cfg.PublicURL, s.serveProvider); err != nil {
		return nil, err
	}
	if err := s.openBrandSite(cfg); err != nil {
		return nil, err
	}
	if err := s.openOwnerSite(cfg.OwnerListen); err != nil {
		return nil, err
	}
	s.audience = cmp.Or(cfg.Audience, s.publicURL+"/a2a")
	if s.store, err = newStore(cfg.State, s.params); err != nil {
		return nil, fmt.Errorf("sandbox: State: %w", err)
	}
	s.store.lax, s.store.user = s.faults.hit, s.hasAccount
	if err := s.openBrands(cfg.Brands); err != nil {
		return nil, err
	}
	s.spent, _ = lru.New[string, spent](spentPages) // fails only for a size under one
	s.answering = &sync.Mutex{}
	s.controlKey = newSecret("sbx_")
	s.fetcher = newKeyFetcher(s.now, s.params)
	s.keySets, _ = lru.New[string, []byte](jwks.DefaultCacheSize) // fails only for a size under one
	s.identities = &identities{
		now:    s.now,
		leeway: s.params.Leeway,
		keys: &jwks.Cache{
			Fetch: s.issuerKeys, Now: s.now,
			Size: keptSets, TTL: s.params.KeySetTTL, RefetchEvery: s.params.KeySetRefetch,
		},
		issuers: issuers,
		registered: func(ctx context.Context, issuer string) (string, error) {
			p, _, err := s.store.platform(ctx, issuer)
			return p.JWKSURI, err
		},
	}
	s.identities.lax = s.faults.hit
	s.registrations = newRegistrations(s.params)
	s.issuerLimit, s.userLimit = newLimiter(s.params.IssuerLimit), newLimiter(s.params.UserLimit)
	s.deviceLimit, s.loginLimit = newLimiter(s.params.DeviceLimit), newLimiter(s.params.LoginLimit)
	s.peerLoginLimit = newLimiter(s.params.LoginLimit.times(loginsOfPeer))
	if err := s.SetFaults(cfg.Faults...); err != nil {
		return nil, err
	}
	s.owner = newOwner(s)
	return s, nil
}

// open listens and returns the origin.
func (l *listening) open(listenField, listen, urlField, origin string, h http.HandlerFunc) (string, error) {
	var err error
	if l.listener, err = net.Listen("tcp", cmp.Or(listen, "127.0.0.1:0")); err != nil {
		return "", fmt.Errorf("sandbox: %s: %w", listenField, err)
	}
	l.unused = map[net.Conn]struct{}{}
	l.server = &http.Server{
		Handler:           h,
		ConnState:         l.follow,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	if origin == "" {
		if addr, ok := l.listener.Addr().(*net.TCPAddr); ok && addr.IP.IsUnspecified() {
			return "", fmt.Errorf("sandbox: %s is missing: needed with %s %q, which names no host", urlField, listenField, listen)
		}
		origin = "http://" + l.listener.Addr().String()
	}
	if err := checkOrigin(origin); err != nil {
		return "", fmt.Errorf("sandbox: %s %w", urlField, err)
	}
	return origin, nil
}

// openBrandSite opens the brands' own domain, unless the Provider serves it all.
func (s *Sandbox) openBrandSite(cfg Config) (err error) {
	if !cfg.OneOrigin {
		s.brandURL, err = s.brandSite.open("BrandListen", cfg.BrandListen, "BrandURL", cfg.BrandURL, s.serveBrandSite)
		return err
	}
	if cfg.BrandListen != "" || cfg.BrandURL != "" {
		return errors.New("sandbox: BrandListen and BrandURL must be empty with OneOrigin")
	}
	s.brandURL = s.publicURL
	return nil
}

// openOwnerSite decides where the owner's page is. With an origin elsewhere, or with
// https, something stands before the Provider's listener: all that it brings in from
// outside has a peer, and often a Host, of this machine, so the page is not there.
func (s *Sandbox) openOwnerSite(listen string) error {
	origin := s.publicURL
	if listen != "" || !onLoopback(origin) || !strings.HasPrefix(origin, "http://") {
		listen = cmp.Or(listen, "127.0.0.1:0")
		if err := checkOwnerListen(listen); err != nil {
			return fmt.Errorf("sandbox: OwnerListen: %w", err)
		}
		var err error
		if origin, err = s.ownerSite.open("OwnerListen", listen, "OwnerListen", "", s.serveOwnerSite); err != nil {
			return err
		}
	}
	s.ownerLogin.URL = origin + OwnerPath
	return nil
}

// checkOwnerListen tells whether an address is of this machine only.
func checkOwnerListen(address string) error {
	if host, _, err := net.SplitHostPort(address); err != nil || !loopbackHost(host) {
		return fmt.Errorf("%q: write HOST:PORT with a loopback address, such as 127.0.0.1:8793", address)
	}
	return nil
}

func (s *Sandbox) openBrands(brands []Brand) error {
	if len(brands) == 0 {
		brands = []Brand{Larkline(s.now()), Marrow()}
	}
	for _, brand := range brands {
		if err := brand.validate(); err != nil {
			return fmt.Errorf("sandbox: Brands: %q: %w", brand.Name, err)
		}
		if s.business(brand.ID) != nil {
			return fmt.Errorf("sandbox: Brands: id %q appears twice", brand.ID)
		}
		brand.askFirst()
		b := &business{Brand: brand, interfaceURL: s.publicURL + "/a2a/" + brand.ID}
		if s.audience == b.interfaceURL {
			return errors.New("sandbox: Audience must not be an interface URL: it is what only this Provider and the issuer agreed on")
		}
		if err := b.open(s.publicURL, s.params.MaxAge, s.store); err != nil {
			return fmt.Errorf("sandbox: brand %q: %w", brand.Name, err)
		}
		s.brands = append(s.brands, b)
	}
	return nil
}

// open renders what the brand publishes, with its key of the state.
func (b *business) open(publicURL string, maxAge time.Duration, state *store) (err error) {
	if b.cardBody, err = json.Marshal(b.card(publicURL)); err != nil || !b.delegated() {
		return err
	}
	private, err := state.brandKey(context.Background(), b.ID)
	if err != nil {
		return err
	}
	if b.key, err = asKeyOf(private); err != nil {
		return err
	}
	body, err := json.Marshal(b.metadata())
	if err != nil {
		return err
	}
	serve := func(d jwks.Document) http.Handler {
		return jwks.Handler(maxAge, func() (*jwks.Document, error) { return &d, nil })
	}
	b.metadataHandler, b.keysHandler = serve(jwks.DocumentOf(body)), serve(b.key.document)
	return nil
}

// maxMemory bounds a brand's memory of a user, in bytes.
const maxMemory = 256 << 10

// check holds a brand to its own rules: what it used was allowed, what it misses
// can be given.
func (b *business) check(t Turn, r Reply) error {
	for _, used := range r.Used {
		if !t.Allowed(used) {
			return fmt.Errorf("sandbox: the brand used %q, which was not allowed", used)
		}
	}
	if len(r.Missing) > 0 {
		if _, ok := b.pick(r.Missing); !ok || slices.ContainsFunc(r.Missing, t.Allowed) {
			return fmt.Errorf("sandbox: the brand misses %q, which it has or nobody can give", r.Missing)
		}
		return nil
	}
	if strings.TrimSpace(r.Text) == "" {
		return errors.New("sandbox: the brand answered nothing")
	}
	if r.Memory != nil && (!r.Memory.IsValid() || len(r.Memory) > maxMemory) {
		return fmt.Errorf("sandbox: the brand's memory is not JSON, or larger than %d bytes", maxMemory)
	}
	return nil
}

func (s *Sandbox) listenings() []*listening {
	return []*listening{&s.provider, &s.brandSite, &s.ownerSite}
}

// Start serves until Close. Call it once.
func (s *Sandbox) Start() {
	for _, l := range s.listenings() {
		if l.listener == nil {
			continue
		}
		s.started.Go(func() {
			if err := l.server.Serve(l.listener); !errors.Is(err, http.ErrServerClosed) {
				s.log.Error("listener failed", "address", l.listener.Addr().String(), "error", err)
			}
		})
	}
}

// closeTimeout is how long Close waits for requests in flight.
const closeTimeout = 5 * time.Second

// Close stops serving: requests in flight finish first, within five seconds, but
// for those that a fault holds back.
func (s *Sandbox) Close() error {
	s.closeOnce.Do(func() { close(s.closing) })
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var errs []error
	for _, l := range s.listenings() {
		if l.server != nil {
			l.closeUnused()
			errs = append(errs, l.server.Shutdown(ctx), l.server.Close())
		}
		if l.listener != nil {
			if err := l.listener.Close(); !errors.Is(err, net.ErrClosed) {
				errs = append(errs, err)
			}
		}
	}
	s.started.Wait()
	for _, b := range s.brands {
		if b.close != nil {
			b.close()
		}
	}
	if s.store != nil {
		errs = append(errs, s.store.close())
	}
	if s.fetcher != nil {
		s.fetcher.close()
	}
	return errors.Join(errs...)
}

// Provider is the Provider's handler, for who serves it by other means than Start.
func (s *Sandbox) Provider() http.Handler { return http.HandlerFunc(s.serveProvider) }

// BrandSite is the handler of the brands' own domain.
func (s *Sandbox) BrandSite() http.Handler { return http.HandlerFunc(s.serveBrandSite) }

// Ready says where the sandbox is and how to sign in.
func (s *Sandbox) Ready() Ready {
	r := Ready{
		Provider: s.publicURL, Audience: s.audience,
		Login: s.announced[0], Others: s.announced[1:], Owner: s.ownerLogin,
		Control: Control{URL: s.publicURL + ControlPath, Token: s.controlKey},
	}
	for i, b := range s.brands {
		card := b.cardURL()
		// The Provider's own well-known card is there for a single brand only.
		if i == 0 && (s.brandURL != s.publicURL || len(s.brands) == 1) {
			card = s.brandURL + "/.well-known/agent-card.json"
		}
		r.Brands = append(r.Brands, ReadyBrand{ID: b.ID, Name: b.Name, Card: card, Asks: b.Asks, Closes: b.Closes})
	}
	return r
}

func (s *Sandbox) business(id string) *business {
	for _, b := range s.brands {
		if b.ID == id {
			return b
		}
	}
	return nil
}

// limit uses up a call of the caller and one of its issuer. If either has none left
// it uses up neither, and says how long to wait until both have.
func (s *Sandbox) limit(who caller) time.Duration {
	wait, _ := takeAll(s.now(), call{s.userLimit, limitKey(who)}, call{s.issuerLimit, who.issuer})
	return wait
}

// limitKey is unambiguous: an issuer holds no space.
func limitKey(who caller) string { return who.issuer + " " + who.subject }
