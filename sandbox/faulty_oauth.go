package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"io"
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
	if s.faults.hit(ctx, "device-no-complete") {
		d.VerificationAll = ""
	}
	if n, on := s.faults.number(ctx, "device-expires"); on {
		d.ExpiresIn = n
	}
	// A count is of the polls that come too late.
	if n, on := s.faults.announced(ctx, "code-immortal"); on {
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
		switch {
		case s.faults.hit(ctx, "poll-slow-down"):
			code, on = "slow_down", true
		case s.faults.hit(ctx, "poll-pending"):
			code, on = "authorization_pending", true
		default:
			code, on = s.faults.take(ctx, "poll-error")
		}
	}
	if on {
		oauthFail(code, "The sandbox was told so").write(w)
	}
	return on
}

// refreshes tells whether a call is a refresh that a fault lets pass without a
// PA-JWT: then it is taken for one by whose refresh token it brings.
func (s *Sandbox) refreshes(r *http.Request) (who caller, ok bool, err error) {
	if ctx := r.Context(); r.Header.Values("Authorization") == nil && s.faults.on(ctx, "lax-refresh-auth") {
		body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1)) // more than that is refused later
		if err != nil {
			return caller{}, false, nil // so is this
		}
		r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), r.Body))
		form, refusal := parseForm(r.Header.Get("Content-Type"), body, s.broken(ctx))
		if refusal != nil || form.Get("grant_type") != grantRefresh {
			return caller{}, false, nil
		}
		if who, ok, err = s.store.refresher(ctx, hashOf(form.Get("refresh_token"))); err != nil || !ok {
			return caller{}, false, err
		}
		return who, s.faults.hit(ctx, "lax-refresh-auth"), nil
	}
	return caller{}, false, nil
}

// refresher is who may use a refresh token.
func (s *store) refresher(ctx context.Context, hash string) (who caller, found bool, err error) {
	err = s.view(ctx, func(t *tx) error {
		found, err = t.get("SELECT g.issuer, g.subject FROM refreshes r JOIN grants g ON g.id = r.grant_id WHERE r.hash = ?",
			[]any{hash}, &who.issuer, &who.subject)
		return err
	})
	return who, found, err
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
	// A count is of the turns that come too late.
	if n, on := s.faults.announced(ctx, "lax-delegation-expired"); on {
		return time.Duration(n) * time.Second
	}
	return s.params.TokenTTL
}

// spoilScopes changes what the answer of the token endpoint, and the token, give.
func (s *Sandbox) spoilScopes(ctx context.Context, b *business, scopes []string, refreshed bool) []string {
	extra := "grant-extra"
	if refreshed {
		extra = "refresh-wide"
		if v, on := s.faults.take(ctx, "refresh-narrow"); on {
			v = cmp.Or(v, scopes[len(scopes)-1])
			scopes = slices.DeleteFunc(slices.Clone(scopes), func(id string) bool { return id == v })
		}
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
	if !ok || !s.faults.hit(ctx, fault) {
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
func (s *Sandbox) spoilClaims(ctx context.Context, b *business, c *tokenClaims, refreshed bool) {
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
	if s.faults.hit(ctx, "grant-scope") {
		c.Scope += " " + b.another("", strings.Fields(c.Scope))
	}
}

// strangeScope is a scope that no brand has.
const strangeScope = "sandbox:not-asked-for"

// spoilSignature flips the last bit of a JWS's signature if the fault is on.
func (s *Sandbox) spoilSignature(ctx context.Context, name, compact string) string {
	if !s.faults.hit(ctx, name) {
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
	if s.faults.hit(ctx, "identity-401") {
		return errToldTo
	}
	if s.faults.on(ctx, "replay-401") {
		token, _, _ := bearer(h, "Authorization") // it was good
		if s.faults.replayed(token) {
			if s.faults.hit(ctx, "replay-401") {
				return errToldTo
			}
		}
	}
	return nil
}
