package sandbox

import (
	"fmt"
	"time"
)

// Params are the durations and limits of a sandbox. Start from [Defaults];
// [Params.Scaled] shortens them all for a demo or a test.
type Params struct {
	// KeySetTTL is how long an issuer's JWKS is used before it is read again.
	KeySetTTL time.Duration
	// KeySetRefetch is the least time between two reads of one JWKS because a
	// token named an unknown kid.
	KeySetRefetch time.Duration
	// KeySetRetry is how long an issuer whose JWKS could not be had is not asked
	// again.
	KeySetRetry time.Duration
	// Leeway is the clock skew allowed to a PA-JWT, for iat and exp (at most 30 s).
	Leeway time.Duration

	// MaxAge is how long others may keep a card, the metadata and the JWKS.
	MaxAge time.Duration
	// ContextIdle closes a conversation that was not used for so long.
	ContextIdle time.Duration

	// DeviceInterval is the least time between two polls of a pending device
	// code, SlowDown what each poll that comes too early adds to it (RFC 8628
	// section 3.5). Clients are told whole seconds, rounded up.
	DeviceInterval time.Duration
	SlowDown       time.Duration
	// DeviceCodeTTL is the life of a device code and of its sign-in link.
	DeviceCodeTTL time.Duration
	// AssertionTTL is the life of the proof of a login, SessionTTL that of a
	// consent page. Each works once.
	AssertionTTL time.Duration
	SessionTTL   time.Duration
	// TokenTTL is the life of a delegation token (at most 1 h by protocol),
	// GrantTTL that of the grant and its refresh tokens.
	TokenTTL time.Duration
	GrantTTL time.Duration

	// IssuerLimit and UserLimit bound the calls of an issuer and of a user of
	// it, DeviceLimit a user's device authorizations, LoginLimit the failed
	// logins with an email, whether or not an account has it, and the owner's. From
	// one address there are ten times as many.
	IssuerLimit Limit
	UserLimit   Limit
	DeviceLimit Limit
	LoginLimit  Limit
	// RegisterLimit bounds the registrations that an address, and an origin outside
	// its well-known place, has the sandbox read a key set for.
	RegisterLimit Limit
}

// Limit allows Burst calls at once and one more each time Every has passed.
type Limit struct {
	Every time.Duration
	Burst int
}

// times allows n times as many.
func (l Limit) times(n int) Limit {
	return Limit{Every: max(l.Every/time.Duration(n), 1), Burst: l.Burst * n}
}

// Defaults are the values of a sandbox in real time. The limits are generous:
// they stop a loop that ran wild, not a test.
func Defaults() Params {
	return Params{
		KeySetTTL:      10 * time.Minute,
		KeySetRefetch:  30 * time.Second,
		KeySetRetry:    5 * time.Second,
		Leeway:         30 * time.Second,
		MaxAge:         5 * time.Minute,
		ContextIdle:    24 * time.Hour,
		DeviceInterval: 3 * time.Second,
		SlowDown:       5 * time.Second,
		DeviceCodeTTL:  10 * time.Minute,
		AssertionTTL:   2 * time.Minute,
		SessionTTL:     10 * time.Minute,
		TokenTTL:       time.Hour,
		GrantTTL:       90 * 24 * time.Hour,
		IssuerLimit:    Limit{Every: 5 * time.Millisecond, Burst: 2000},
		UserLimit:      Limit{Every: 20 * time.Millisecond, Burst: 500},
		DeviceLimit:    Limit{Every: 10 * time.Second, Burst: 60},
		LoginLimit:     Limit{Every: time.Minute, Burst: 10},
		RegisterLimit:  Limit{Every: 5 * time.Second, Burst: 20},
	}
}

// durations are all of them, by name.
func (p *Params) durations() map[string]*time.Duration {
	return map[string]*time.Duration{
		"KeySetTTL": &p.KeySetTTL, "KeySetRefetch": &p.KeySetRefetch, "KeySetRetry": &p.KeySetRetry,
		"Leeway": &p.Leeway,
		"MaxAge": &p.MaxAge, "ContextIdle": &p.ContextIdle,
		"DeviceInterval": &p.DeviceInterval, "SlowDown": &p.SlowDown, "DeviceCodeTTL": &p.DeviceCodeTTL,
		"AssertionTTL": &p.AssertionTTL, "SessionTTL": &p.SessionTTL,
		"TokenTTL": &p.TokenTTL, "GrantTTL": &p.GrantTTL,
		"IssuerLimit.Every": &p.IssuerLimit.Every, "UserLimit.Every": &p.UserLimit.Every,
		"DeviceLimit.Every": &p.DeviceLimit.Every, "LoginLimit.Every": &p.LoginLimit.Every,
		"RegisterLimit.Every": &p.RegisterLimit.Every,
	}
}

// Scaled divides every duration by n.
func (p Params) Scaled(n int) Params {
	for _, d := range p.durations() {
		*d /= time.Duration(max(n, 1))
	}
	return p
}

// Validate names the first field that cannot work.
func (p Params) Validate() error {
	for name, d := range p.durations() {
		if *d <= 0 {
			return fmt.Errorf("sandbox: Params.%s is %v: it must be positive", name, *d)
		}
	}
	for name, n := range map[string]int{
		"IssuerLimit": p.IssuerLimit.Burst, "UserLimit": p.UserLimit.Burst,
		"DeviceLimit": p.DeviceLimit.Burst, "LoginLimit": p.LoginLimit.Burst,
		"RegisterLimit": p.RegisterLimit.Burst,
	} {
		if n < 1 {
			return fmt.Errorf("sandbox: Params.%s.Burst is %d: it must be at least 1", name, n)
		}
	}
	if d := Defaults(); p.Leeway > d.Leeway || p.TokenTTL > d.TokenTTL || p.TokenTTL < time.Second {
		return fmt.Errorf("sandbox: Params.Leeway (%v) may be at most %v and Params.TokenTTL (%v) between 1s and %v", p.Leeway, d.Leeway, p.TokenTTL, d.TokenTTL)
	}
	return nil
}
