package agent

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/pactsigner/pactsigner/jwks"
)

// What SG-6 allows of a PA-JWT.
const (
	maxTokenLife = 300 * time.Second
	maxTokenSkew = 30 * time.Second
)

// ReasonInvalidToken is the code of a token that SG-6 refuses.
const ReasonInvalidToken = "invalid_token"

// ErrInvalidToken: the signer's answer is not a token that may be used (SG-6).
var ErrInvalidToken = errors.New(ReasonInvalidToken)

// TokenError says what is wrong with a signer's answer; it is ErrInvalidToken.
type TokenError struct{ Problems []Problem }

func (e *TokenError) Error() string { return problemText(e.Problems) }

// Is makes errors.Is(err, ErrInvalidToken) true.
func (e *TokenError) Is(target error) bool { return target == ErrInvalidToken }

// SubjectChangedError: the token is good but for its subject, which is not the
// one known (ID-5). It is ErrInvalidToken; a send reports identity_changed.
type SubjectChangedError struct{ Known, Got string }

func (e *SubjectChangedError) Error() string {
	return "the signer issued a token for another subject than before"
}

// Is makes errors.Is(err, ErrInvalidToken) true.
func (e *SubjectChangedError) Is(target error) bool { return target == ErrInvalidToken }

// SignWant is what a signer's answer must match.
type SignWant struct {
	Issuer, Audience, Nonce string
	Subject                 string // empty: not known yet
}

// PAToken is a PA-JWT that passed SG-6. It prints as "[redacted]".
type PAToken struct {
	compact Secret

	Issuer, Audience, Subject string
	ID                        string // jti; empty if the token has none
	KeyID, Algorithm          string
	IssuedAt, ExpiresAt       time.Time
}

// Reveal returns the compact token, for an Authorization header only.
func (t PAToken) Reveal() string { return string(t.compact) }

func (t PAToken) String() string               { return Redacted }
func (t PAToken) GoString() string             { return Redacted }
func (t PAToken) Format(f fmt.State, _ rune)   { _, _ = io.WriteString(f, Redacted) }
func (t PAToken) LogValue() slog.Value         { return slog.StringValue(Redacted) }
func (t PAToken) MarshalText() ([]byte, error) { return []byte(Redacted), nil }

// CheckSignResponse reads the signer's {token, nonce} and accepts the token
// only if all of SG-6 holds. The signature is not verified: the agent trusts
// the signer it asked, and the Provider verifies. The error is a *TokenError,
// or a *SubjectChangedError if the subject alone is wrong.
func CheckSignResponse(body []byte, want SignWant, now time.Time) (PAToken, error) {
	r := &reader{reason: ReasonInvalidToken}
	o, err := parseObject(body)
	if err != nil {
		r.add(r.reason, "", "the answer is %v", err)
		return PAToken{}, &TokenError{r.problems}
	}
	if nonce := r.text(o, "", "nonce", true); nonce != "" && nonce != want.Nonce {
		r.add(r.reason, "nonce", "is not the request's")
	}
	t := r.paToken(r.text(o, "", "token", true), want, now)
	if len(r.problems) > 0 {
		return PAToken{}, &TokenError{r.problems}
	}
	if want.Subject != "" && t.Subject != want.Subject {
		return PAToken{}, &SubjectChangedError{want.Subject, t.Subject}
	}
	return t, nil
}

func (r *reader) paToken(compact string, want SignWant, now time.Time) PAToken {
	if compact == "" {
		return PAToken{} // missing, and reported as that
	}
	jws, err := jwks.ParseCompact(compact, tokenAlgorithms...)
	if err != nil {
		r.add(r.reason, "token", "%v", err)
		return PAToken{}
	}
	o, err := parseObject(jws.Unverified())
	if err != nil {
		r.add(r.reason, "token", "its payload is %v", err)
		return PAToken{}
	}
	t := PAToken{
		compact: Secret(compact), KeyID: jws.KeyID, Algorithm: string(jws.Algorithm),
		Issuer:   r.text(o, "token.", "iss", true),
		Audience: r.text(o, "token.", "aud", true),
		Subject:  r.text(o, "token.", "sub", true),
		ID:       r.text(o, "token.", "jti", false),
	}
	if o.null("jti") {
		r.add(r.reason, "token.jti", "must be a string")
	}
	if t.Issuer != "" && t.Issuer != want.Issuer {
		r.add(r.reason, "token.iss", "is not the configured issuer, byte for byte")
	}
	if t.Audience != "" && t.Audience != want.Audience {
		r.add(r.reason, "token.aud", "is not the requested audience")
	}
	if utf8.RuneCountInString(t.Subject) > maxSubject {
		r.add(r.reason, "token.sub", "is longer than %d characters", maxSubject)
	}
	t.IssuedAt, t.ExpiresAt = r.lifetime(o, "token.", now, maxTokenLife)
	return t
}

// lifetime reads iat and exp: whole seconds, exp after iat and not past, iat at
// most 30 s ahead, the life at most maxLife (0: any).
func (r *reader) lifetime(o object, path string, now time.Time, maxLife time.Duration) (issued, expires time.Time) {
	iat, ok1 := r.integer(o, path, "iat")
	exp, ok2 := r.integer(o, path, "exp")
	if !ok1 || !ok2 {
		return
	}
	const latest = 1 << 40 // keeps the arithmetic from overflowing
	if iat < 0 || iat > latest || exp < 0 || exp > latest {
		r.add(r.reason, path+"exp", "iat or exp is no time")
		return
	}
	issued, expires = time.Unix(iat, 0).UTC(), time.Unix(exp, 0).UTC()
	switch {
	case exp <= iat:
		r.add(r.reason, path+"exp", "is not after iat")
	case maxLife > 0 && expires.Sub(issued) > maxLife:
		r.add(r.reason, path+"exp", "the token lives %v, and %v is the most", expires.Sub(issued), maxLife)
	}
	if issued.After(now.Add(maxTokenSkew)) {
		r.add(r.reason, path+"iat", "is more than %v in the future", maxTokenSkew)
	}
	if !expires.After(now) {
		r.add(r.reason, path+"exp", "is past")
	}
	return issued, expires
}
