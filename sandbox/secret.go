package sandbox

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"math/big"
	"strings"
	"time"

	"github.com/google/uuid"
)

// newSecret returns 256 random bits in base64url behind a prefix.
func newSecret(prefix string) string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return prefix + base64.RawURLEncoding.EncodeToString(b[:])
}

// hashOf is what is kept of a secret.
func hashOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

func newUUID() string { return uuid.NewString() }

// userCodeLetters are those of RFC 8628 section 6.1: no vowels, so no words.
const userCodeLetters = "BCDFGHJKLMNPQRSTVWXZ"

// newUserCode returns eight letters as XXXX-XXXX.
func newUserCode() string {
	return randomLetters(userCodeLetters, 4) + "-" + randomLetters(userCodeLetters, 4)
}

func randomLetters(letters string, n int) string {
	var b strings.Builder
	for range n {
		i, _ := rand.Int(rand.Reader, big.NewInt(int64(len(letters)))) // never fails
		b.WriteByte(letters[i.Int64()])
	}
	return b.String()
}

// parseUserCode reads a user code as people type it; "" if it is none.
func parseUserCode(typed string) string {
	if len(typed) > 64 {
		return ""
	}
	code := strings.Map(func(r rune) rune {
		if r == '-' || r == ' ' {
			return -1
		}
		return r
	}, strings.ToUpper(strings.TrimSpace(typed)))
	if len(code) != 8 || strings.Trim(code, userCodeLetters) != "" {
		return ""
	}
	return code[:4] + "-" + code[4:]
}

// crockford is the alphabet of ULIDs.
const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// newULID returns 48 bits of milliseconds and 80 random bits in 26 characters.
func newULID(now time.Time) string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], uint64(now.UnixMilli())<<16)
	_, _ = rand.Read(b[6:]) // never fails
	n := new(big.Int).SetBytes(b[:])
	out, mod := make([]byte, 26), big.NewInt(0)
	for i := len(out) - 1; i >= 0; i-- {
		n.DivMod(n, big.NewInt(32), mod)
		out[i] = crockford[mod.Int64()]
	}
	return string(out)
}
