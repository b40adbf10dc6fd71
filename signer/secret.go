package signer

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"unicode/utf8"
)

// Prefixes of the secrets that we generate, so that scanners find one that has
// leaked.
const (
	credentialPrefix      = "pact_cred_"
	enrollmentTokenPrefix = "pact_enroll_"
)

// A bearer secret's length in characters.
const (
	minSecret = 16
	maxSecret = 4096
)

// checksumLength is how many characters of a generated secret are its checksum.
const checksumLength = 6

// Secret is a credential or an enrolment token. It prints, logs and marshals as
// "[redacted]".
type Secret struct{ value string }

const redacted = "[redacted]"

// Reveal returns the secret itself, for the one answer that shows it.
func (s Secret) Reveal() string { return s.value }

// Hash is what is stored of it. The secrets are long and random, or chosen by an
// operator who is told to choose them so: a slow hash would gain nothing.
func (s Secret) Hash() Hash { return sha256.Sum256([]byte(s.value)) }

func (s Secret) String() string               { return redacted }
func (s Secret) GoString() string             { return redacted }
func (s Secret) Format(f fmt.State, _ rune)   { _, _ = io.WriteString(f, redacted) }
func (s Secret) LogValue() slog.Value         { return slog.StringValue(redacted) }
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// NewCredential makes a credential: a prefix, 160 random bits and a checksum.
func NewCredential() Secret { return newSecret(credentialPrefix) }

// NewEnrollmentToken makes an enrolment token of the same form.
func NewEnrollmentToken() Secret { return newSecret(enrollmentTokenPrefix) }

func newSecret(prefix string) Secret {
	value := prefix + rand.Text() + rand.Text()[:6] // base32: 32 characters
	return Secret{value + checksum(value)}
}

// checksum finds typing errors and cut ends before anybody is asked; it protects
// from nothing else.
func checksum(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])[:checksumLength]
}

// ErrSecret: the text is no secret that could have been given out. The error
// never holds it.
var ErrSecret = errors.New("not a credential of 16 to 4096 characters, or a generated one with a typing error")

// ParseCredential reads a bearer credential. One with our prefix must have its
// checksum; an operator's own needs 16 to 4096 characters.
func ParseCredential(text string) (Secret, error) { return parseSecret(text, credentialPrefix) }

// ParseEnrollmentToken reads an enrolment token.
func ParseEnrollmentToken(text string) (Secret, error) {
	if !strings.HasPrefix(text, enrollmentTokenPrefix) {
		return Secret{}, ErrSecret
	}
	return parseSecret(text, enrollmentTokenPrefix)
}

func parseSecret(text, prefix string) (Secret, error) {
	if len(text) > 4*maxSecret {
		return Secret{}, ErrSecret
	}
	if n := utf8.RuneCountInString(text); n < minSecret || n > maxSecret {
		return Secret{}, ErrSecret
	}
	if strings.HasPrefix(text, prefix) {
		body := text[:len(text)-checksumLength]
		if len(body) <= len(prefix) || checksum(body) != text[len(body):] {
			return Secret{}, ErrSecret
		}
	}
	return Secret{text}, nil
}
