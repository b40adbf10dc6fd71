// Package config is the signer's configuration: what can be set, where it comes
// from, and what is refused.
//
// Every key has a dotted path, as in the YAML file: listeners.public.address,
// issuers.0.url. A value is taken from the first of these that has it:
//
//  1. a flag: one of the named flags, or --set PATH=VALUE for any key
//  2. the environment: PACT_SIGNER_ and the path in capitals, with "_" between
//     the parts and the words: PACT_SIGNER_LISTENERS_PUBLIC_ADDRESS,
//     PACT_SIGNER_ISSUERS_0_TOKEN_TTL
//  3. the YAML file
//  4. the default
//
// Items of a list are named by their number, counted from 0; the number after
// the last one appends. A list of plain values can also be set as a whole,
// separated by commas. An empty environment variable counts as not set.
// Durations are written as Go writes them: 120s, 1h30m.
//
// Nothing unknown is passed over: an unknown or repeated key, a second YAML
// document or an unknown PACT_SIGNER_ variable is an error that names it.
// (Variables of the kinds that Kubernetes injects for a service called
// pact-signer, such as PACT_SIGNER_SERVICE_HOST, are not ours and are ignored.)
package config

import (
	"net"
	"path/filepath"
	"slices"
	"time"

	"github.com/adrg/xdg"

	"github.com/pactsigner/pactsigner/rotation"
)

// Config is a whole configuration. Start from Default, or read one with Load.
// Fields without a value are completed by Complete.
type Config struct {
	// Data is the folder of everything that the embedded custody and store
	// keep, 0700. Default: pact-signer in the XDG state home.
	Data string `yaml:"data"`
	// Replica is this process's name in the fleet, unique among its replicas.
	// Default: host name, process id and a random part.
	Replica string `yaml:"replica"`
	// Listeners are the four faces.
	Listeners Listeners `yaml:"listeners"`
	// Insecure allows what is refused otherwise.
	Insecure Insecure `yaml:"insecure"`
	// TrustedProxies are the networks (CIDR) whose X-Forwarded-For is believed
	// when the address of an enrolling caller is told. Default: none.
	TrustedProxies []string `yaml:"trustedProxies"`
	// Issuers are the issuers that this deployment serves. Default: one without
	// a URL of its own.
	Issuers []Issuer `yaml:"issuers"`
	// Custody says who holds the private keys.
	Custody Custody `yaml:"custody"`
	// Store says where records are kept.
	Store Store `yaml:"store"`
	// Admin is about who may call the admin listener.
	Admin Admin `yaml:"admin"`
	// Log is about the log on standard error.
	Log Log `yaml:"log"`
	// Tracing sends traces of requests to a collector.
	Tracing Tracing `yaml:"tracing"`
	// DrainTimeout bounds how long requests in flight may take to finish once
	// the process was told to stop; 1s to 5m. Default: 10s.
	DrainTimeout time.Duration `yaml:"drainTimeout"`
	// Development is for demonstrations and tests.
	Development Development `yaml:"development"`
}

// Listeners are the four faces of the signer.
type Listeners struct {
	// Public serves the contract over REST, the key sets and discovery.
	// Default: 127.0.0.1:8787. Without a certificate it is meant to stand
	// behind a proxy that ends TLS.
	Public Listener `yaml:"public"`
	// GRPC serves the contract over gRPC. Default: 127.0.0.1:8788.
	GRPC Listener `yaml:"grpc"`
	// Admin serves operators, gRPC and REST on one port. Default: 127.0.0.1:8789.
	Admin Listener `yaml:"admin"`
	// Ops serves /metrics, /readyz and /livez. Default: 127.0.0.1:8790.
	Ops Listener `yaml:"ops"`
}

// Listener is one listening socket.
type Listener struct {
	// Address is host:port; port 0 picks a free one.
	Address string `yaml:"address"`
	// CertFile and KeyFile are PEM files; with them the listener speaks TLS 1.2
	// or newer. Both or neither.
	CertFile string `yaml:"certFile"`
	KeyFile  string `yaml:"keyFile"`
}

// TLS reports whether the listener speaks TLS.
func (l Listener) TLS() bool { return l.CertFile != "" }

// Loopback reports whether only this machine can reach the listener.
func (l Listener) Loopback() bool {
	host, _, err := net.SplitHostPort(l.Address)
	return err == nil && loopbackHost(host)
}

// Insecure names what is refused unless it is asked for.
type Insecure struct {
	// Admin allows the admin listener beyond loopback without TLS.
	Admin bool `yaml:"admin"`
	// GRPC allows the gRPC listener beyond loopback without TLS.
	GRPC bool `yaml:"grpc"`
	// OpenEnrolment allows enrolment mode open when the public or the gRPC
	// listener is beyond loopback: anybody who can reach it becomes a caller.
	OpenEnrolment bool `yaml:"openEnrolment"`
	// Vault allows Vault beyond loopback without TLS: who is on the way sees the
	// signer's token, and can sign with it.
	Vault bool `yaml:"vault"`
	// Redis allows Redis beyond loopback without TLS: who is on the way can
	// change every record.
	Redis bool `yaml:"redis"`
}

// Issuer is one issuer.
type Issuer struct {
	// URL is the issuer as it stands in the tokens: an https origin, or http on
	// loopback. Empty, if it is the only issuer and the public listener is on
	// loopback: the public listener's URL.
	URL string `yaml:"url"`
	// SignerURLs are the base URLs at which callers call the signer for this
	// issuer, origins by the same rules; requests are routed by their hosts.
	// Default: the issuer's URL.
	SignerURLs []string `yaml:"signerUrls"`
	// Algorithm is that of the first key, ES256 or RS256. Later ones follow
	// what was rotated to. Default: ES256.
	Algorithm string `yaml:"algorithm"`
	// TokenTTL is how long a token lives, 60s to 300s. Default: 120s.
	TokenTTL time.Duration `yaml:"tokenTTL"`
	// Enrolment is open, token or closed. Default: open for an issuer without a
	// URL, which is one on loopback, else token.
	Enrolment string `yaml:"enrolment"`
	// MaxDevices is the most devices that may enrol; 0 is no cap. Default: 0.
	MaxDevices int `yaml:"maxDevices"`
	// Limits are the rate limits.
	Limits Limits `yaml:"limits"`
	// Rotation are the parameters of the key schedule.
	Rotation Rotation `yaml:"rotation"`
}

// Limits are an issuer's rate limits.
type Limits struct {
	// Caller is per device or credential. Default: 2/s, burst 120.
	Caller Limit `yaml:"caller"`
	// Enroll is per address on enrol. Default: 1/s, burst 30.
	Enroll Limit `yaml:"enroll"`
}

// Limit is a token bucket.
type Limit struct {
	// Rate is per second; 0 does not limit.
	Rate float64 `yaml:"rate"`
	// Burst is how many may come at once; at least 1 with a rate.
	Burst int `yaml:"burst"`
}

// Rotation are the parameters of an issuer's key schedule.
type Rotation struct {
	// Period is how long a key signs before the next one takes over by itself;
	// 0 rotates by command only. Default: 720h.
	Period time.Duration `yaml:"period"`
	// Lead is how long a key is published before it signs: as long as the
	// slowest verifier caches a key set. Default: 1h.
	Lead time.Duration `yaml:"lead"`
	// Overlap is how long a key stays published after it signed last.
	// Default: 1h.
	Overlap time.Duration `yaml:"overlap"`
	// Skew is how far the clocks of two replicas may be apart. Default: 5s.
	Skew time.Duration `yaml:"skew"`
}

// Custody says who holds the private keys.
type Custody struct {
	// Kind is local: keys in a folder, encrypted at rest; or vault. Default:
	// local.
	Kind string `yaml:"kind"`
	// Dir is the folder, for local. Default: custody in the data folder.
	Dir string `yaml:"dir"`
	// PassphraseFile holds the passphrase that the keys are encrypted under, for
	// local. Default: a key file beside the keys, mode 0600.
	PassphraseFile string `yaml:"passphraseFile"`
	// Vault is the Vault, for kind vault.
	Vault Vault `yaml:"vault"`
}

// Vault is a HashiCorp Vault that holds the keys.
type Vault struct {
	// Addresses are tried in turn: https://vault.example.com:8200. Plain http
	// only on loopback, or with insecure.vault.
	Addresses []string `yaml:"addresses"`
	// Namespace is the namespace of everything below. Default: none.
	Namespace string `yaml:"namespace"`
	// CAFile holds the certificates of the authority that Vault's certificate
	// is from. Default: the system's.
	CAFile string `yaml:"caFile"`
	// Auth says how the signer logs in.
	Auth VaultAuth `yaml:"auth"`
	// Transit is the mount of the transit engine. Default: transit.
	Transit string `yaml:"transit"`
	// KV is the mount of the KV version 2 engine. Default: secret.
	KV string `yaml:"kv"`
	// Prefix begins the names of this deployment's keys and documents; every
	// deployment on one Vault has its own. Default: pact-signer.
	Prefix string `yaml:"prefix"`
	// Wrapped keeps the private keys encrypted in KV and signs in memory: faster,
	// and through a loss of Vault, but the keys are in the signer's memory.
	// Default: false, Vault signs. It is chosen once, before the first key.
	Wrapped bool `yaml:"wrapped"`
}

// VaultAuth is a login to Vault. Secrets are in files, which are read again at
// every login.
type VaultAuth struct {
	// Method is token, approle or kubernetes.
	Method string `yaml:"method"`
	// Mount is the auth method's mount. Default: the method's name.
	Mount string `yaml:"mount"`
	// TokenFile holds the token, for method token.
	TokenFile string `yaml:"tokenFile"`
	// RoleIDFile and SecretIDFile hold the two ids, for method approle.
	RoleIDFile   string `yaml:"roleIdFile"`
	SecretIDFile string `yaml:"secretIdFile"`
	// Role is the role to log in to, for method kubernetes.
	Role string `yaml:"role"`
	// JWTFile holds the service account's token, for method kubernetes.
	// Default: the one that Kubernetes mounts.
	JWTFile string `yaml:"jwtFile"`
}

// Store says where records are kept.
type Store struct {
	// Kind is bolt: one file, for one replica; or redis, for any number. With
	// redis `signer init` comes before the first start. Default: bolt.
	Kind string `yaml:"kind"`
	// Path is the file, for bolt. Default: store.db in the data folder.
	Path string `yaml:"path"`
	// Redis is the Redis, for kind redis.
	Redis Redis `yaml:"redis"`
}

// Redis is a Redis 6.2 or later that keeps the records.
type Redis struct {
	// Mode is standalone, sentinel or cluster. Default: standalone.
	Mode string `yaml:"mode"`
	// Addresses are host:port: of the server, the sentinels, or some of the
	// cluster's nodes.
	Addresses []string `yaml:"addresses"`
	// MasterName is what the sentinels call the master, for mode sentinel.
	MasterName string `yaml:"masterName"`
	// Username is the ACL user. Default: the default user.
	Username string `yaml:"username"`
	// PasswordFile holds the user's password. Default: none.
	PasswordFile string `yaml:"passwordFile"`
	// SentinelUsername and SentinelPasswordFile are for the sentinels
	// themselves. Default: none.
	SentinelUsername     string `yaml:"sentinelUsername"`
	SentinelPasswordFile string `yaml:"sentinelPasswordFile"`
	// TLS is how the connections are protected. Beyond loopback it is required,
	// unless insecure.redis is set.
	TLS RedisTLS `yaml:"tls"`
	// Prefix begins every key; every deployment on one Redis has its own.
	// Default: pact.
	Prefix string `yaml:"prefix"`
	// Acks is how many copies must have a permit, a kill or a revocation before
	// it counts. Set it to a majority of master and replicas, less the master: 1
	// of 2 replicas. 0 is for a Redis without replicas. Default: 0.
	Acks int `yaml:"acks"`
}

// RedisTLS is TLS to Redis and its sentinels.
type RedisTLS struct {
	// Enabled speaks TLS 1.2 or newer.
	Enabled bool `yaml:"enabled"`
	// CAFile holds the certificates of the authority that Redis's certificate is
	// from. Default: the system's.
	CAFile string `yaml:"caFile"`
	// CertFile and KeyFile are the signer's own certificate. Both or neither.
	CertFile string `yaml:"certFile"`
	KeyFile  string `yaml:"keyFile"`
	// ServerName is the name that Redis's certificate must have. Default: the
	// host that is connected to.
	ServerName string `yaml:"serverName"`
}

// Admin is about who may call the admin listener.
type Admin struct {
	// Tokens are further admin tokens, besides the first one, which `signer
	// init` makes. `signer token create` prints an item for this list.
	Tokens []AdminToken `yaml:"tokens"`
}

// AdminToken is an admin token, of which only the hash is known here.
type AdminToken struct {
	// Name is who acts, in the audit log. Unique.
	Name string `yaml:"name"`
	// Role is viewer, operator or admin.
	Role string `yaml:"role"`
	// Hash is sha256: and the hash in hexadecimal.
	Hash string `yaml:"hash"`
}

// Log is about the log on standard error.
type Log struct {
	// Level is debug, info, warn or error. Default: info.
	Level string `yaml:"level"`
	// Format is json, text, or auto: text on a terminal. Default: auto.
	Format string `yaml:"format"`
}

// Tracing sends traces of requests to an OpenTelemetry collector, by OTLP. They hold
// neither tokens nor who called.
type Tracing struct {
	// Endpoint is the collector's host:port, and for protocol http also the path that
	// follows it, which is /v1/traces if there is none. Default: none, nothing is
	// traced.
	Endpoint string `yaml:"endpoint"`
	// Protocol is grpc or http. Default: grpc.
	Protocol string `yaml:"protocol"`
	// Insecure speaks to the collector without TLS.
	Insecure bool `yaml:"insecure"`
	// CAFile holds the certificates of the authority that the collector's certificate
	// is from. Default: the system's.
	CAFile string `yaml:"caFile"`
	// HeadersFile holds headers that the collector asks for, such as a token, one
	// "name: value" on each line. It is read at the start. Default: none.
	HeadersFile string `yaml:"headersFile"`
	// SampleRatio is which part of the requests is traced, 0 to 1. Default: 0.1.
	SampleRatio float64 `yaml:"sampleRatio"`
	// TrustParent goes on with the trace that a caller names in its traceparent
	// header, and traces a request if the caller does: for callers that are all
	// known. Default: false, every request is a trace of its own.
	TrustParent bool `yaml:"trustParent"`
}

// Enabled reports whether anything is traced.
func (t Tracing) Enabled() bool { return t.Endpoint != "" }

// Development is for demonstrations and tests.
type Development struct {
	// TimeScale divides every duration of tokens, keys and the kill switch: with
	// 60 a minute takes a second. Permits, deadlines and staleness keep what a
	// busy machine needs. Only with issuers on loopback, and only so far that a
	// token lives for a second.
	// Default: 1.
	TimeScale int `yaml:"timeScale"`
	// ClockOffset shifts this replica's clock, -1h to 1h, to try what a wrong one
	// does. Only with issuers on loopback. Default: 0s.
	ClockOffset time.Duration `yaml:"clockOffset"`
}

// Default is the configuration of a signer that was told nothing.
func Default() Config {
	return Config{
		Data: filepath.Join(xdg.StateHome, "pact-signer"),
		Listeners: Listeners{
			Public: Listener{Address: "127.0.0.1:8787"},
			GRPC:   Listener{Address: "127.0.0.1:8788"},
			Admin:  Listener{Address: "127.0.0.1:8789"},
			Ops:    Listener{Address: "127.0.0.1:8790"},
		},
		Custody: Custody{Kind: "local", Vault: Vault{
			Auth:    VaultAuth{JWTFile: "/var/run/secrets/kubernetes.io/serviceaccount/token"},
			Transit: "transit", KV: "secret", Prefix: "pact-signer",
		}},
		Store:        Store{Kind: "bolt", Redis: Redis{Mode: "standalone", Prefix: "pact"}},
		Log:          Log{Level: "info", Format: "auto"},
		Tracing:      Tracing{Protocol: "grpc", SampleRatio: 0.1},
		DrainTimeout: 10 * time.Second,
		Development:  Development{TimeScale: 1},
	}
}

// DefaultIssuer is an issuer without a URL and with the defaults of the rest;
// Complete chooses its enrolment mode.
func DefaultIssuer() Issuer {
	p := rotation.Defaults()
	return Issuer{
		Algorithm: string(p.Algorithm),
		TokenTTL:  p.TokenTTL,
		Limits: Limits{
			Caller: Limit{Rate: 2, Burst: 120},
			Enroll: Limit{Rate: 1, Burst: 30},
		},
		Rotation: Rotation{Period: p.Period, Lead: p.Lead, Overlap: p.Overlap, Skew: p.Skew},
	}
}

// Embedded says that the records are this process's own: it makes the store
// itself. Otherwise replicas share it, and `signer init` makes it.
func (c Config) Embedded() bool { return c.Store.Kind == "bolt" }

// Complete fills in what follows from other fields (paths in the data folder,
// the one issuer) and validates the result.
func (c Config) Complete() (Config, error) {
	if c.Data != "" {
		abs, err := filepath.Abs(c.Data)
		if err != nil {
			return c, err
		}
		c.Data = abs
	}
	if c.Custody.Dir == "" {
		c.Custody.Dir = filepath.Join(c.Data, "custody")
	}
	if c.Store.Path == "" {
		c.Store.Path = filepath.Join(c.Data, "store.db")
	}
	c.Issuers = slices.Clone(c.Issuers)
	if len(c.Issuers) == 0 {
		c.Issuers = []Issuer{DefaultIssuer()}
	}
	for i := range c.Issuers {
		if is := &c.Issuers[i]; is.Enrolment == "" && is.URL == "" {
			is.Enrolment = "open"
		} else if is.Enrolment == "" {
			is.Enrolment = "token"
		}
	}
	return c, c.Validate()
}
