package signer

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// AdminConfig configures the operator's side of a signer. Store, Switch, Guard,
// Fleet, Keyring, Issuers and Tokens are required.
type AdminConfig struct {
	// Store keeps the records and the audit log.
	Store Store
	// Switch is thrown and lifted here.
	Switch *killswitch.Switch
	// Guard says whether this replica may sign a registration, and what it
	// knows of the switch.
	Guard *killswitch.Guard
	// Ready says why this replica should get no traffic. Nil: it always should.
	Ready func() error
	// LongestTTL is how long a token can live that any replica made, if that can be
	// longer than the TokenTTL of Issuers.
	LongestTTL time.Duration
	// KillParams are those of Switch and Guard. Zero: the product's.
	KillParams killswitch.Params
	// AuditHead learns of every act's audit entry, and VerifyAudit asks it what the
	// log must hold. Nil: neither.
	AuditHead AuditHead
	// Fleet lists the replicas that the store has seen.
	Fleet AdminFleet
	// Activities is where replicas tell what they did, and Activity what this one did
	// until now. Nil: nobody told anything, and this one did nothing.
	Activities ActivityStore
	Activity   func() Activity
	// State exports and imports the store, and accepts its loss. Nil: it cannot be done.
	State AdminState
	// Keyring signs registrations and derives the subjects of credentials.
	Keyring custody.Keyring
	// Issuers are the deployment's issuers, each with its rotation controller.
	Issuers []Issuer
	// Tokens are who may call.
	Tokens []AdminToken
	// HTTPClient reaches Providers for registrations. Its redirect policy and
	// timeout are replaced. Default: one of its own.
	HTTPClient *http.Client
	// RegisterTimeout bounds one registration. Default: 10 s.
	RegisterTimeout time.Duration
	// AcceptSlack is how long after its expiry a token can still be accepted by
	// a Provider whose clock is off. Default: 60 s.
	AcceptSlack time.Duration
	// Now is this replica's clock. Default: time.Now.
	Now func() time.Time
	// Version and Replica say who answers.
	Version, Replica string
	// Log gets the causes of failures. Default: slog.Default.
	Log *slog.Logger
	// Observe is told of each call and how it ended; method is that of the service, or
	// empty for one that was refused before it was known. Nil: nobody is.
	Observe func(method string, err error)
}

// AdminFleet lists replicas. The switch's store implements it.
type AdminFleet interface {
	// Replicas lists the replicas seen within the last liveFor.
	Replicas(ctx context.Context, liveFor time.Duration) ([]killswitch.Replica, error)
}

// Role is what a caller of the admin listener may do. A higher role may do all
// that a lower one may.
type Role int

// The roles. The zero Role may do nothing.
const (
	RoleViewer   Role = iota + 1 // reads
	RoleOperator                 // stops things: kill, resume, invalidate, revoke
	RoleAdmin                    // gives rights: keys, credentials, audiences
)

// ParseRole reads a role's name: viewer, operator or admin.
func ParseRole(s string) (Role, error) {
	for r := RoleViewer; r <= RoleAdmin; r++ {
		if s == r.String() {
			return r, nil
		}
	}
	return 0, fmt.Errorf("role: %q is unknown (viewer, operator or admin)", s)
}

func (r Role) String() string {
	switch r {
	case RoleViewer:
		return "viewer"
	case RoleOperator:
		return "operator"
	case RoleAdmin:
		return "admin"
	}
	return "none"
}

// AdminToken is one bearer token of the admin listener. Only its hash is kept.
type AdminToken struct {
	// Name is the actor in the audit log, unique, at most 64 characters of
	// a-z, A-Z, 0-9 and ".", "_", "-", "@".
	Name string
	Role Role
	Hash Hash
}

// NewAdminToken makes a token's secret, to be shown this once, and its hash.
func NewAdminToken() (secret string, hash Hash) {
	secret = "pact_admin_" + rand.Text() + rand.Text() // 260 bits
	return secret, sha256.Sum256([]byte(secret))
}

// ParseAdminTokenHash reads a hash as configuration files hold it: "sha256:" and
// 64 hexadecimal digits.
func ParseAdminTokenHash(s string) (Hash, error) {
	var h Hash
	digits, ok := strings.CutPrefix(s, "sha256:")
	b, err := hex.DecodeString(digits)
	if !ok || err != nil || len(b) != len(h) {
		return h, errors.New(`hash: want "sha256:" and 64 hexadecimal digits`)
	}
	copy(h[:], b)
	return h, nil
}

// FormatAdminTokenHash writes a hash as ParseAdminTokenHash reads it.
func FormatAdminTokenHash(h Hash) string { return "sha256:" + hex.EncodeToString(h[:]) }

// Admin is the AdminService: everything that an operator does to a signer.
// Callers reach it through Handler only, which authenticates them. Safe for
// concurrent use.
type Admin struct {
	signerv1.UnimplementedAdminServiceServer

	cfg     AdminConfig
	issuers map[string]Issuer
	client  *http.Client
	handler http.Handler

	replacing sync.Mutex // held while the store's content is replaced
}

// NewAdmin checks the configuration and returns the service.
func NewAdmin(cfg AdminConfig) (*Admin, error) {
	for _, f := range []struct {
		missing bool
		name    string
	}{
		{cfg.Store == nil, "Store"}, {cfg.Switch == nil, "Switch"}, {cfg.Guard == nil, "Guard"},
		{cfg.Fleet == nil, "Fleet"}, {cfg.Keyring == nil, "Keyring"},
		{len(cfg.Issuers) == 0, "Issuers"}, {len(cfg.Tokens) == 0, "Tokens"},
	} {
		if f.missing {
			return nil, fmt.Errorf("admin: %s is required", f.name)
		}
	}
	if cfg.KillParams == (killswitch.Params{}) {
		cfg.KillParams = killswitch.Defaults()
	}
	if cfg.RegisterTimeout == 0 {
		cfg.RegisterTimeout = 10 * time.Second
	}
	if cfg.AcceptSlack == 0 {
		cfg.AcceptSlack = 60 * time.Second
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Observe == nil {
		cfg.Observe = func(string, error) {}
	}
	a := &Admin{cfg: cfg, issuers: make(map[string]Issuer), client: registrationClient(cfg)}
	for _, i := range cfg.Issuers {
		if i.URL == "" || i.Keys == nil {
			return nil, errors.New("admin: every issuer needs a URL and Keys")
		}
		if _, twice := a.issuers[i.URL]; twice {
			return nil, fmt.Errorf("admin: issuer %s is there twice", i.URL)
		}
		a.issuers[i.URL] = i
	}
	if err := adminCheckTokens(cfg.Tokens); err != nil {
		return nil, err
	}
	var err error
	a.handler, err = a.newHandler()
	return a, err
}

// Handler serves the AdminService as gRPC and as REST on one listener, with
// authentication and roles on both. Its http.Server needs HTTP/2 enabled for gRPC,
// on a listener without TLS as unencrypted HTTP/2 (http.Protocols).
func (a *Admin) Handler() http.Handler { return a.handler }

// newHandler puts gRPC and REST side by side.
func (a *Admin) newHandler() (http.Handler, error) {
	server := grpc.NewServer(
		grpc.UnaryInterceptor(a.unary),
		grpc.StreamInterceptor(a.stream),
		grpc.MaxRecvMsgSize(adminMaxBody),
	)
	signerv1.RegisterAdminServiceServer(server, a)
	rest, err := a.newREST()
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.allowLong(w, r)
		if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			server.ServeHTTP(w, r)
			return
		}
		rest.ServeHTTP(w, r)
	}), nil
}

// issuer resolves a request's issuer: empty means the only one.
func (a *Admin) issuer(url string) (Issuer, error) {
	if url == "" && len(a.cfg.Issuers) == 1 {
		return a.cfg.Issuers[0], nil
	}
	if i, ok := a.issuers[url]; ok {
		return i, nil
	}
	known := make([]string, len(a.cfg.Issuers))
	for n, i := range a.cfg.Issuers {
		known[n] = i.URL
	}
	if url == "" {
		return Issuer{}, adminInvalid("issuer", "is needed, since there are several: %s", strings.Join(known, ", "))
	}
	return Issuer{}, adminInvalid("issuer", "%q is not one of this deployment: %s", url, strings.Join(known, ", "))
}

// entry begins the audit entry of an act: who, what, on what and why.
func (a *Admin) entry(ctx context.Context, action, issuer, target, reason string) audit.Entry {
	return audit.Entry{
		Time: a.cfg.Now(), Actor: adminCaller(ctx).Name, Action: action,
		Issuer: issuer, Target: target, Reason: reason, Detail: map[string]string{},
	}
}

// adminNewID returns 80 random bits, for records that operators name.
func adminNewID() string { return strings.ToLower(rand.Text()[:16]) }
