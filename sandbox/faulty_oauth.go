package sandbox

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"
)

// refuseSignIn answers a sign-in start by fault.
func (s *Sandbox) refuseSignIn(ctx context.Context, w http.ResponseWriter) bool {
	if n, on := s.faults.number(ctx, "device-429"); on {
		tooMany(w, time.Duration(n)*time.Second)
		return true
	}
	if code, on := s.faults.take(ctx, "device-error"); on {
		oauthFail(code, "The sandbox was told so").write(w)
		return true
	}
	return false
}

// deviceAnswer is the answer to a sign-in start (RFC 8628 section 3.2).
type deviceAnswer struct {
	DeviceCode      string `json:"device_code"`
	UserCode        string `json:"user_code"`
	Verification    string `json:"verification_uri"`
	VerificationAll string `json:"verification_uri_complete,omitempty"`
	ExpiresIn       int    `json:"expires_in"`
	Interval        int    `json:"interval"`
}

func (s *Sandbox) spoilDevice(ctx context.Context, d *deviceAnswer) {
	if v, on := s.faults.take(ctx, "device-uri"); on {
		d.Verification = v
	}
	if v, on := s.faults.take(ctx, "device-complete-uri"); on {
		d.VerificationAll = v
	}
	if s.faults.hit(ctx, "device-foreign") {
		d.Verification, d.VerificationAll = elsewhereOrigin+"/login", elsewhereOrigin+"/login?user_code="+d.UserCode
	}
	if _, on := s.faults.take(ctx, "device-no-complete"); on {
		d.VerificationAll = ""
	}
	if n, on := s.faults.number(ctx, "device-expires"); on {
		d.ExpiresIn = n
	}
}

// refuseToken answers the token endpoint by fault.
func (s *Sandbox) refuseToken(ctx context.Context, w http.ResponseWriter, grantType string) bool {
	var code string
	on := false
	switch grantType {
	case grantRefresh:
		code, on = s.faults.take(ctx, "refresh-error")
	case grantDeviceCode:
		if n, on := s.faults.number(ctx, "poll-429"); on {
			tooMany(w, time.Duration(n)*time.Second)
			return true
		}
		if n, on := s.faults.number(ctx, "poll-status"); on {
			w.Header().Set("Cache-Control", "no-store")
			writeJSON(w, n, typeJSON, oauthFail("server_error", "The sandbox was told so"))
			return true
		}
		if _, on = s.faults.take(ctx, "poll-slow-down"); on {
			code = "slow_down"
		} else if _, on = s.faults.take(ctx, "poll-pending"); on {
			code = "authorization_pending"
		} else {
			code, on = s.faults.take(ctx, "poll-error")
		}
	}
	if on {
		oauthFail(code, "The sandbox was told so").write(w)
	}
	return on
}

// tokenType is the token_type of an answer.
func (s *Sandbox) tokenType(ctx context.Context) string {
	if s.faults.hit(ctx, "token-type") {
		return "mac"
	}
	return "Bearer"
}

// tokenLife is how long a delegation token lives.
func (s *Sandbox) tokenLife(ctx context.Context) time.Duration {
	if n, on := s.faults.number(ctx, "access-ttl"); on {
		return time.Duration(n) * time.Second
	}
	return s.params.TokenTTL
}

// spoilScopes changes what the answer of the token endpoint, and the token, give.
func (s *Sandbox) spoilScopes(ctx context.Context, b *business, scopes []string, refreshed bool) []string {
	extra, narrow := "grant-extra", ""
	if refreshed {
		extra, narrow = "refresh-wide", "refresh-narrow"
	}
	if v, on := s.faults.take(ctx, narrow); on {
		v = cmp.Or(v, scopes[len(scopes)-1])
		scopes = slices.DeleteFunc(slices.Clone(scopes), func(id string) bool { return id == v })
	}
	if v, on := s.faults.take(ctx, extra); on {
		if v = b.another(v, scopes); !slices.Contains(scopes, v) {
			scopes = append(slices.Clone(scopes), v)
		}
	}
	return scopes
}

// reused is the visit behind a secret of the pages that was used before. What was
// decided with it can be decided anew.
func (s *Sandbox) reused(ctx context.Context, secret, fault string) (visit, bool) {
	was, ok := s.spent.Get(hashOf(secret))
	if !ok || !s.lax(ctx, fault) {
		return visit{}, false
	}
	if err := s.store.reopen(ctx, was.visit.userCode); err != nil {
		s.log.Error("fault failed", "error", err)
	}
	return was.visit, true
}

// spoilConsent changes what the user is taken to have allowed.
func (s *Sandbox) spoilConsent(ctx context.Context, asked, granted []string) []string {
	switch {
	case len(granted) == 0 && s.faults.hit(ctx, "nothing-allowed"):
		return asked
	case len(granted) < len(asked) && s.faults.hit(ctx, "grant-all"):
		return asked
	case len(granted) > 1 && s.faults.hit(ctx, "grant-less"):
		return granted[:len(granted)-1]
	}
	return granted
}

// spoilClaims changes what the token alone says.
func (s *Sandbox) spoilClaims(ctx context.Context, c *tokenClaims, refreshed bool) {
	if v, on := s.faults.take(ctx, "grant-aud"); on {
		c.Audience = v
	}
	if v, on := s.faults.take(ctx, "grant-client-id"); on {
		c.ClientID = v
	}
	if s.faults.hit(ctx, "grant-no-id") {
		c.GrantID = ""
	}
	if refreshed && s.faults.hit(ctx, "refresh-grant") {
		c.GrantID = "a2agrant_" + newULID(s.now())
	}
	if v, on := s.faults.take(ctx, "grant-iss"); on {
		c.Issuer = v
	}
	if _, on := s.faults.take(ctx, "grant-scope"); on {
		scopes := strings.Fields(c.Scope)
		if len(scopes) > 1 {
			scopes = scopes[:len(scopes)-1]
		} else {
			scopes = append(scopes, strangeScope)
		}
		c.Scope = strings.Join(scopes, " ")
	}
}

// strangeScope is a scope that no brand has.
const strangeScope = "sandbox:not-asked-for"

// spoilSignature flips the last bit of a JWS's signature if the fault is on.
func (s *Sandbox) spoilSignature(ctx context.Context, name, compact string) string {
	if _, on := s.faults.take(ctx, name); !on {
		return compact
	}
	at := strings.LastIndexByte(compact, '.') + 1
	sig, _ := base64.RawURLEncoding.DecodeString(compact[at:]) // we made it
	sig[len(sig)-1] ^= 1
	return compact[:at] + base64.RawURLEncoding.EncodeToString(sig)
}

var errToldTo = errors.New("the sandbox was told to refuse it")

// refuseIdentity refuses a good PA-JWT by fault.
func (s *Sandbox) refuseIdentity(ctx context.Context, h http.Header) error {
	if _, on := s.faults.take(ctx, "identity-401"); on {
		return errToldTo
	}
	if s.faults.on(ctx, "replay-401") {
		token, _, _ := bearer(h, "Authorization") // it was good
		if s.faults.replayed(token) {
			if _, on := s.faults.take(ctx, "replay-401"); on {
				return errToldTo
			}
		}
	}
	return nil
}
