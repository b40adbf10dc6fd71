// Package probe asks a signer, from outside and as its clients do, whether what
// must work works and whether what must be refused is refused.
//
// A [Probe] is one caller of one issuer. [Probe.Round] makes every check once and
// returns a [Report]; [Probe.Loop] goes on for ever. A check passes only on exactly
// the answer that the contract (docs/contract.md) demands: a refusal with the right
// status and another body is somebody else's, a proxy's perhaps, and fails.
//
// What it leaves behind: a device, if it enrols one, which is always the same as
// long as its key is kept; an entry in the audit log for some of the refusals, see
// [Config.AuditedEvery]; nothing else. It registers no audience and throws no
// switch: an operator does that once. No report holds a token, an assertion or a
// credential, also if what answers sends it back.
package probe

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"
)

// Defaults of [Config].
const (
	DefaultAudience       = "urn:pact:probe"
	DefaultKilledAudience = "urn:pact:probe-killed"
	DefaultDeadline       = 2 * time.Second
	DefaultTimeout        = 5 * time.Second
	// DefaultSettle is the time within which every healthy replica follows a change of
	// the key schedule, 60 s, and some for clocks and for asking.
	DefaultSettle       = 75 * time.Second
	DefaultAuditedEvery = 10 * time.Minute
)

// Config says what is probed, and as whom. Issuer, and either Credential or Device,
// are required.
type Config struct {
	// Issuer is the issuer's URL, byte for byte as it stands in tokens.
	Issuer string
	// Signer is the base URL of the REST contract. Default: the issuer's.
	Signer string
	// ConnectTo is where sockets for the issuer and the signer go instead of to their
	// own hosts; URLs, Host headers and audiences stay theirs. Its form is
	// [SCHEME://]HOST:PORT: http or https says whether TLS is spoken there, if that is
	// not what the URL says. Behind an ingress that ends TLS listeners speak plain http.
	ConnectTo string
	// Replicas are the public listeners of single replicas, in the form of ConnectTo. A
	// name stands for every address that it resolves to, looked up again each time.
	// Empty: replicas are not compared.
	Replicas []string
	// GRPC is the gRPC listener, in the form of ConnectTo. Empty: it is not asked.
	GRPC string
	// RootCAs verify all of them. Nil: the system's.
	RootCAs *x509.CertPool

	// Credential is a bearer credential. Device is used instead if it is nil.
	Credential *Credential
	Device     *Device
	// EnrollmentToken lets Device enrol where the issuer wants a token. With one, a
	// device that the signer knows already is not enrolled again: tokens expire.
	EnrollmentToken *Credential

	// Audience must be registered; KilledAudience too, and be killed. Default:
	// DefaultAudience, and none: then there is no check of a killed scope.
	Audience       string
	KilledAudience string

	// Schedule asks the signer's operators' face for what is to be published. Nil: the
	// key set is not compared with it. It bounds its own time.
	Schedule func(context.Context) (Schedule, error)

	// Deadline is the most that enroll, status, sign and gRPC sign may take; Timeout
	// ends every request. Default: DefaultDeadline, DefaultTimeout.
	Deadline, Timeout time.Duration
	// Settle is how long key sets may disagree. A change of the schedule reaches
	// replicas one after another: one that is still to be told is no failure, one that
	// is not told for longer is. A round takes up to this long while they disagree.
	// Default: DefaultSettle.
	Settle time.Duration
	// AuditedEvery is how often the refusals are asked for that the signer writes to
	// its audit log. Between, what they were stands; after a failure they are asked for
	// in every round. Default: DefaultAuditedEvery.
	AuditedEvery time.Duration
	// Now is the clock, Lookup resolves the names of replicas to addresses. Default:
	// time.Now, net.DefaultResolver.LookupHost.
	Now    func() time.Time
	Lookup func(ctx context.Context, host string) ([]string, error)
}

// Probe is one caller of one issuer. Its methods must not be called at the same
// time.
type Probe struct {
	cfg      Config
	way      *way // to issuer and signer
	replicas []target
	grpc     []target          // at most one
	subject  string            // that the first round was told
	tokens   []string          // the last of them, by jti
	last     map[string]Result // by check
}

// ConfigError: a field of a Config cannot be used.
type ConfigError struct{ Field, Problem string }

func (e *ConfigError) Error() string { return "probe: " + e.Field + ": " + e.Problem }

// New checks a configuration. It asks nobody. The error is a *ConfigError.
func New(cfg Config) (*Probe, error) {
	if err := checkURL("Issuer", cfg.Issuer); err != nil {
		return nil, err
	}
	if cfg.Signer == "" {
		cfg.Signer = cfg.Issuer
	}
	if err := checkURL("Signer", cfg.Signer); err != nil {
		return nil, err
	}
	if (cfg.Credential == nil) == (cfg.Device == nil) {
		return nil, &ConfigError{"Credential", "say it or Device, and not both"}
	}
	if cfg.Audience == "" {
		cfg.Audience = DefaultAudience
	}
	if cfg.Audience == cfg.KilledAudience {
		return nil, &ConfigError{"KilledAudience", fmt.Sprintf("%q is the audience that must work", cfg.Audience)}
	}
	for _, d := range []struct {
		field *time.Duration
		name  string
		value time.Duration
	}{
		{&cfg.Deadline, "Deadline", DefaultDeadline}, {&cfg.Timeout, "Timeout", DefaultTimeout},
		{&cfg.Settle, "Settle", DefaultSettle}, {&cfg.AuditedEvery, "AuditedEvery", DefaultAuditedEvery},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
		if *d.field < 0 {
			return nil, &ConfigError{d.name, fmt.Sprintf("%v is negative", *d.field)}
		}
	}
	if cfg.Deadline > cfg.Timeout {
		return nil, &ConfigError{"Deadline", fmt.Sprintf("%v is longer than the %v after which nobody waits: nothing could be late", cfg.Deadline, cfg.Timeout)}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Lookup == nil {
		cfg.Lookup = net.DefaultResolver.LookupHost
	}
	p := &Probe{cfg: cfg, last: map[string]Result{}}
	to, err := targets("ConnectTo", cfg.ConnectTo)
	if err != nil {
		return nil, err
	}
	p.way = newWay(append(to, target{})[0], cfg.RootCAs, cfg.Timeout)
	if p.replicas, err = targets("Replicas", cfg.Replicas...); err != nil {
		return nil, err
	}
	if p.grpc, err = targets("GRPC", cfg.GRPC); err != nil {
		return nil, err
	}
	return p, nil
}

// targets reads what a field says, where it says something.
func targets(field string, values ...string) ([]target, error) {
	var list []target
	for _, s := range values {
		if s == "" {
			continue
		}
		t, err := parseTarget(s)
		if err != nil {
			return nil, &ConfigError{field, err.Error()}
		}
		list = append(list, t)
	}
	return list, nil
}

// checkURL refuses what cannot be an issuer or the base of a contract.
func checkURL(field, s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.HasSuffix(s, "/") {
		return &ConfigError{field, fmt.Sprintf("%q is not a URL like https://pa.example.com, without a slash at its end", s)}
	}
	return nil
}

// Outcome is how a check ended.
type Outcome string

// The outcomes.
const (
	Passed Outcome = "passed"
	Failed Outcome = "failed"
	// LeftOut: the check could not be made, or makes no sense for this caller. Another
	// check of the round failed if that is a fault.
	LeftOut Outcome = "left out"
)

// The checks, in the order of a report.
const (
	CheckEnroll       = "enroll"
	CheckStatus       = "status"
	CheckSign         = "sign"
	CheckVerify       = "verify"
	CheckSignGRPC     = "sign_grpc"
	CheckJWKS         = "jwks"
	CheckReplicas     = "jwks_replicas"
	CheckSchedule     = "jwks_schedule"
	CheckUnregistered = "unregistered_audience"
	CheckReplayed     = "replayed_assertion"
	CheckEndpoint     = "wrong_endpoint"
	CheckAlgNone      = "alg_none"
	CheckExpired      = "expired_assertion"
	CheckTampered     = "tampered_signature"
	CheckCredential   = "unknown_credential"
	CheckMember       = "unknown_member"
	CheckKilled       = "killed_audience"
)

// Checks are the names of all checks, in the order of a report.
func Checks() []string {
	return []string{
		CheckEnroll, CheckStatus, CheckSign, CheckVerify, CheckSignGRPC, CheckJWKS, CheckReplicas, CheckSchedule,
		CheckUnregistered, CheckReplayed, CheckEndpoint, CheckAlgNone, CheckExpired, CheckTampered, CheckCredential, CheckMember, CheckKilled,
	}
}

// Result is one check of a round.
type Result struct {
	Check   string
	Outcome Outcome
	// At is when it began, Took how long it took. A result that stands from an earlier
	// round has the time of that.
	At   time.Time
	Took time.Duration
	// Detail says what was seen, or why it was left out.
	Detail string
	// Remedy says what to do, if it failed.
	Remedy string
}

// Report is one round. Checks that were not configured are not in it.
type Report struct {
	Issuer string
	At     time.Time
	Took   time.Duration
	Checks []Result
	// Answered: somebody answered at least one request.
	Answered bool
}

// OK: no check failed.
func (r Report) OK() bool {
	for _, c := range r.Checks {
		if c.Outcome == Failed {
			return false
		}
	}
	return true
}

// Count is how many checks ended so.
func (r Report) Count(o Outcome) int {
	n := 0
	for _, c := range r.Checks {
		if c.Outcome == o {
			n++
		}
	}
	return n
}
